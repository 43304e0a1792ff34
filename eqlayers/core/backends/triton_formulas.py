"""Formulas as printed Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run.edges import unpack
from eqlayers_kernels.triton.run.formula_run import FormulaRunner

from .multilinear import ends_of
from .request import Request, Runner
from .torch_formulas import run_in_torch
from .triton import TorchInstead, aligned, packed


def make_runner(request: Request) -> Runner:
    """The kernels of a formula; sums have a fixed order."""
    base: Formula = request.form
    kernels = FormulaRunner(base, request.dtype, availability.processor_of(request.device))
    without = TorchInstead(f"the formula {request.key}")

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
        rows, senders, receivers = sizes
        tables = None
        if graph is not None:
            tables = unpack(packed(graph.contiguous(), rows, senders, receivers), rows, senders, receivers)
        own, nodes = [aligned(t) for t in operands], (senders, receivers)

        def in_torch() -> list[Tensor]:
            return run_in_torch(base, own, None if tables is None else ends_of(tables))

        return without(own[0].device, lambda: kernels(own, tables, rows, nodes), in_torch)

    return run
