"""The orders in which kernels take the rows of a batch: one by one, or node by node."""

from __future__ import annotations

from typing import NamedTuple


class Traversal(NamedTuple):
    """One order."""

    rows: str  # which operands and results have a row for each node, see `Operand.rows`; empty without nodes
    operand: str  # the operand of a product that has these rows
    results: str  # the operands of a product whose gradients are computed in this order along a graph; z is the product


TRAVERSALS = {
    "rows": Traversal("", "", ""),
    "by_dst": Traversal("dst", "z", "z"),
    "by_src": Traversal("src", "x", "xywc"),
    "by_place": Traversal("table", "t", "t"),  # by knot interval; printed kernels have the older word in their names
}


def traversal_of(rows: str) -> str:
    """The order in which a result with such rows is summed."""
    return next((name for name, one in TRAVERSALS.items() if one.rows == rows), "rows")
