"""Backend ``triton``: printed kernels for products, convolutions and formulas; CUDA and HIP tensors.

In a process that runs Triton's interpreter (``TRITON_INTERPRET=1``) CPU tensors are taken as well, when the backend is
named: the interpreter shows that a kernel is right, and is far too slow to be chosen by default.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.errors import KernelError
from eqlayers_kernels.triton.print import groups
from eqlayers_kernels.triton.run.edges import TraversalTables
from eqlayers_kernels.triton.run.forms import FormRunner
from eqlayers_kernels.triton.run.formula_run import FormulaRunner

from ..dtypes import DTYPES
from ..errors import EqlayersWarning
from ..forms.request import Request, Runner, Sizes
from .multilinear import product_in_torch
from .tables import by_traversal, ends_by_traversal
from .torch_formulas import run_in_torch

#: Bytes of which Triton has pointers be a multiple, in kernels with wide loads.
ALIGNMENT = 16
Result = TypeVar("Result")


def refuse(request: Request) -> str | None:
    """None if the kernels can run the call, else why not."""
    device, form = request.device.type, request.form
    if device != "cuda" and not (device == "cpu" and availability.interpreted()):
        return f"needs CUDA or HIP tensors, got {device}"
    if (reason := availability.why_not()) is not None:
        return reason
    if request.dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {request.dtype}"
    return None if form is None or form.program is None else groups.why_not(form.program)


def only_named(request: Request) -> bool:
    """Whether another backend should run the call unless this backend is named: Triton's interpreter is slow."""
    return request.device.type == "cpu" or availability.interpreted()


def make_runner(request: Request) -> Runner:
    """Printed kernels for a product or a formula; see :func:`eqlayers.core.backends.forms.run_form`."""
    what, kernels, in_torch = _KERNELS[request.form.family](request)
    reading, without = request.form.reading, TorchInstead(f"the {what} {request.key.partition('/')[0]}")

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sizes) -> Sequence[Tensor]:
        tables = None if graph is None else by_traversal(graph.contiguous(), sizes, reading)
        read = [aligned(tensor) for tensor in operands]
        return without(read[0].device, lambda: kernels(read, tables, sizes), lambda: in_torch(read, tables))

    return run


TablesOf = Mapping[str, TraversalTables] | None
#: Words for a warning, the printed kernels, and torch in their place.
Ways = tuple[
    str,
    Callable[[Sequence[Tensor], TablesOf, Sizes], Sequence[Tensor]],
    Callable[[Sequence[Tensor], TablesOf], Sequence[Tensor]],
]


def _of_product(request: Request) -> Ways:
    form: ProductForm = request.form
    kind, on = form.kind, availability.processor_of(request.device)
    options = not request.deterministic, form.reading
    runner = FormRunner(form.program, kind, request.dtype, request.graph, form.shared, on, *options)
    read = [(pointer, kind.names.index(pointer)) for pointer, _ in runner.given]

    def named(operands: Sequence[Tensor]) -> dict[str, Tensor]:
        return {pointer: operands[number] for pointer, number in read}

    def in_order(results: Mapping[str, Tensor]) -> list[Tensor]:
        return [results[name] for name in kind.results]

    return (
        "convolution or product",
        lambda operands, tables, sizes: in_order(runner(named(operands), tables)),
        lambda operands, tables: in_order(product_in_torch(request, named(operands), tables)),
    )


def _of_formula(request: Request) -> Ways:
    base: Formula = request.form
    runner = FormulaRunner(base, request.dtype, availability.processor_of(request.device))
    return (
        "formula",
        lambda operands, tables, sizes: runner(operands, tables, sizes[0], sizes[1:3]),
        lambda operands, tables: run_in_torch(base, operands, None if tables is None else ends_by_traversal(tables)),
    )


_KERNELS: dict[str, Callable[[Request], Ways]] = {"product": _of_product, "formula": _of_formula}


class TorchInstead:
    """Torch in place of kernels that do not compile, from the first failure on; a warning then gives the reason."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.on: set[torch.device] = set()

    def __call__(self, device: torch.device, kernels: Callable[[], Result], torch_: Callable[[], Result]) -> Result:
        """The result of the printed kernels, or of torch where they do not run."""
        if device not in self.on:
            try:
                return kernels()
            except KernelError as error:
                warnings.warn(
                    f"kernels of {self.what} must compile for {device}, with fewer registers if need be, got {error}. "
                    "Torch computes it from now on, slower and in more memory. Another release of Triton may.",
                    EqlayersWarning,
                    stacklevel=2,
                )
                self.on.add(device)
        return torch_()


def aligned(tensor: Tensor) -> Tensor:
    """Contiguous rows at a 16-byte aligned address, so that slices use the same compiled kernels."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
