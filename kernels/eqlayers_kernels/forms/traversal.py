"""Traversals: the orders in which kernels process the rows of a batch, one by one or node by node."""

from __future__ import annotations

from typing import NamedTuple


class Traversal(NamedTuple):
    """One order of rows, and the operands and results whose rows belong to its nodes."""

    rows: str  # which operands and results have a row for each node, see `Operand.rows`; empty without nodes
    operand: str  # the operand of a product that has these rows
    results: str  # the operands of a product whose gradients are computed in this order along a graph; z is the product


TRAVERSALS = {
    "rows": Traversal("", "", ""),
    "by_dst": Traversal("dst", "z", "z"),
    "by_src": Traversal("src", "x", "xywc"),
    "by_place": Traversal("table", "t", "t"),  # by knot interval; this key is part of names in printed kernels
}


def traversal_of(rows: str) -> str:
    """The key in `TRAVERSALS` by which a result with rows ``rows`` is summed."""
    return next((name for name, traversal in TRAVERSALS.items() if traversal.rows == rows), "rows")
