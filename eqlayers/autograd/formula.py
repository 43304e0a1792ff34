"""Formulas of any number of operands as one torch operator, which is its own derivative."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eqlayers_kernels.formula import Formula

from ..backends.formulas import run_in_torch
from ..info.graph import Graph


def run_formula(
    base: Formula, operands: Sequence[Tensor], graph: Graph | None = None, backend: str | None = None
) -> tuple[Tensor, ...]:
    """Run a formula, differentiable to any order.

    Args:
        base: What to compute.
        operands: ``[rows, width]`` each, of one dtype and device; ``[width]`` for one row that serves all.
        graph: Sender and receiver of each row of the batch, for operands or results with rows of those.
        backend: Name of the backend that runs it; None for the best of the operands' device.

    Returns:
        ``[rows, width]`` of every result.
    """
    ends = None if graph is None else (*graph.ends, graph.num_src, graph.num_dst)
    return tuple(run_in_torch(base, operands, ends))
