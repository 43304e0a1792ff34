r"""Formulas of norms: squared norms of irrep copies, and copies times a factor each.

A layer reads its features twice: for the squares and for the result. In between, torch computes with one number for
each copy. Even scalars may have means and biases (``has_mean``): torch computes with these directly.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula
from eqlayers_kernels.forms.program import Slot

from ...core.forms.keys import register_formula
from ..gate.lower import Source, blocks_of, common_channels


class CopyGroup(NamedTuple):
    """An irreps group: copies, components of a copy, whether it has a mean and bias, and a factor of its squares."""

    mul: int
    dim: int
    has_mean: bool = False
    factor: float = 1.0


class _Row:
    """Collects consecutive blocks of a row of an operand or a result."""

    def __init__(self) -> None:
        self.width, self.components = 0, 0
        self.blocks: list[Block] = []

    def add(self, mul: int, dim: int, channels: int, layout: str) -> list[list[int]]:
        """Append a group; returns the indices of its components, for each block of its copies."""
        new = blocks_of(Source(Slot(self.width, mul, dim)), mul, channels, layout)
        self.blocks += new
        self.width += mul * dim
        first = self.components
        self.components += len(new) * dim
        return [list(range(start, start + dim)) for start in range(first, self.components, dim)]

    def operand(self, name: str, rows: str = "each") -> Operand:
        """The row as an operand or a result."""
        return Operand(name, self.width, tuple(self.blocks), rows)


@lru_cache(maxsize=256)
def squares_formula(groups: tuple[CopyGroup, ...], layout: str) -> Formula:
    """The formula from features to even scalars with a mean, and to squared norms of other copies, if there are any."""
    groups = tuple(group for group in groups if group.mul)
    channels = common_channels(group.mul for group in groups)
    expr, x, direct, squares = Expression(), _Row(), _Row(), _Row()
    values: tuple[list[int | None], list[int | None]] = ([], [])
    for mul, dim, has_mean, factor in groups:
        (direct if has_mean else squares).add(mul, 1, channels, layout)
        for block in x.add(mul, dim, channels, layout):
            loads = [expr.load(0, i) for i in block]
            values[not has_mean].append(
                loads[0] if has_mean else expr.scale(factor, expr.add(*(expr.multiply(v, v) for v in loads)))
            )
    rows = [(direct.operand("scalars"), values[0]), (squares.operand("squares"), values[1])]
    present = [(row, nodes) for row, nodes in rows if row.width]
    results, outputs = [row for row, _ in present], [nodes for _, nodes in present]
    return register_formula(formula(expr, [x.operand("x")], results, outputs, channels))


@lru_cache(maxsize=256)
def scaled_formula(groups: tuple[CopyGroup, ...], layout: str, rows: str) -> Formula:
    """Features, factors of copies without a mean, and new values of scalars with one, to features.

    ``rows``: whether factors are of 'each' row, or of 'one' row for all. Operands without columns are left out.
    """
    groups = tuple(group for group in groups if group.mul)
    channels = common_channels(group.mul for group in groups)
    expr, x, numbers, scalars = Expression(), _Row(), _Row(), _Row()
    outputs: list[int | None] = []
    some = any(not group.has_mean for group in groups)
    for mul, dim, has_mean, _ in groups:
        components = (scalars if has_mean else numbers).add(mul, 1, channels, layout)
        for block, (k,) in zip(x.add(mul, dim, channels, layout), components, strict=True):
            if has_mean:
                outputs.append(expr.load(1 + some, k))
            else:
                outputs += [expr.multiply(expr.load(0, i), expr.load(1, k)) for i in block]
    blocks = [x.operand("x"), numbers.operand("numbers", rows), scalars.operand("scalars")]
    operands = [row for row in blocks if row.width or row.name == "x"]
    return register_formula(formula(expr, operands, [x.operand("z")], [outputs], channels))


@lru_cache(maxsize=256)
def centred_formula(groups: tuple[CopyGroup, ...], layout: str) -> Formula:
    """Features, a factor for each copy, and means and biases of scalars (`has_mean`), to features.

    All operands but the features are shared by all rows. Operands without columns are left out.
    """
    groups = tuple(group for group in groups if group.mul)
    channels = common_channels(group.mul for group in groups)
    expr, x, numbers, means = Expression(), _Row(), _Row(), _Row()
    outputs: list[int | None] = []
    for mul, dim, has_mean, _ in groups:
        factors = [expr.load(1, k) for (k,) in numbers.add(mul, 1, channels, layout)]
        blocks = x.add(mul, dim, channels, layout)
        if has_mean:
            for (i,), (k,), factor in zip(blocks, means.add(mul, 1, channels, layout), factors, strict=True):
                centred = expr.add(expr.load(0, i), expr.scale(-1.0, expr.load(2, k)))
                outputs.append(expr.add(expr.multiply(centred, factor), expr.load(3, k)))
        else:
            for block, factor in zip(blocks, factors, strict=True):
                outputs += [expr.multiply(expr.load(0, i), factor) for i in block]
    operands = [x.operand("x"), numbers.operand("numbers", "one")]
    operands += [means.operand(name, "one") for name in ("means", "biases") if means.width]
    return register_formula(formula(expr, operands, [x.operand("z")], [outputs], channels))
