"""Rows between the rows of a table, each a sum of consecutive ones with coefficients of its own."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..backends import BACKENDS
from ..forms.program import Form
from ..graph import Graph
from ..lowering.program import interpolation_program
from .product import apply_form, chosen


@lru_cache
def _form(width: int, reads: int) -> Form:
    return Form(interpolation_program(width, reads))


def interpolate(table: Tensor, orders: int, interval: Tensor, coefficients: Tensor, backend: str | None) -> Tensor:
    """``[E, W]``: rows ``orders * interval`` and the next of a table ``[R, W]``, times coefficients ``[E, reads]``.

    The rows of an interval are read once for all that lie in it; gradients of the table are sums in a fixed order.
    """
    width, reads = table.shape[1], coefficients.shape[1]
    rows = table.unfold(0, reads, orders).transpose(1, 2).reshape(-1, reads * width)
    form = _form(width, reads)
    name = chosen(table.device.type, table.dtype, backend, form.key)
    edges = torch.stack([interval, torch.arange(interval.shape[0], device=interval.device)])
    if form.program.paths and BACKENDS[name].whole is None:
        graph = Graph(edges, rows.shape[0], interval.shape[0], copy=False)
        return apply_form([rows, coefficients, rows.new_empty(interval.shape[0], 0)], graph, form, name)
    gathered = rows.index_select(0, interval).reshape(-1, reads, width)
    return torch.einsum("erw,er->ew", gathered, coefficients)
