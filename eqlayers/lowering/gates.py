r"""Gates as formulas: scalars through activations, other irreps times an activated scalar, in one pass over the rows.

Channels are what the multiplicities have in common: irreps of 64, 32 and 16 copies are 4, 2 and 1 blocks of 16.
Where they have little in common, every copy is a component, and rows have no channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula

from ..forms.keys import register_formula

#: Fewer channels than this do not fill a vector: lanes are rows then.
FEWEST = 4

#: Multiplicity, components of one copy, and the name of the activation with its factor; gates have none.
Group = tuple[int, int, str, float]


def _blocks(groups: Sequence[tuple[int, int]], channels: int, layout: str) -> tuple[Block, ...]:
    """Of groups of copies and their components: so many channels at a time; copy by copy without channels."""
    out: list[Block] = []
    start = 0
    for mul, dim in groups:
        for part in range(mul // max(channels, 1)):
            if not channels:
                out.append(Block(start + part, dim, mul) if layout == "ir_mul" else Block(start + part * dim, dim))
            elif layout == "ir_mul":
                out.append(Block(start + part * channels, dim, mul, 1))
            else:
                out.append(Block(start + part * channels * dim, dim, 1, dim))
        start += mul * dim
    return tuple(out)


def _activated(expr: Expression, name: str, factor: float, value: int) -> int:
    found: int = expr.multiply(value, expr.sigmoid(value)) if name == "silu" else getattr(expr, name)(value)
    return expr.scale(factor, found)


@lru_cache(maxsize=256)
def gate_formula(groups: tuple[Group, ...], gate: tuple[str, float], layout: str, added: int, kept: bool) -> Formula:
    """Of gates, then groups, to groups.

    Args:
        groups: Of the output, in order. Scalars have one component.
        gate: Activation of the gates, and its factor.
        layout: 'ir_mul' or 'mul_ir'.
        added: Operands that are added up to the input, 1 or more.
        kept: Whether a further operand, of the output's columns, is added to the output.

    Returns:
        The formula.

    Example:
        >>> base = gate_formula(((8, 1, "silu", 1.0), (4, 3, "", 1.0)), ("sigmoid", 1.0), "ir_mul", 1, False)
        >>> base.channels, base.operands[0].width, base.results[0].width
        (4, 24, 20)
    """
    gates = sum(mul for mul, _, name, _ in groups if not name)
    sizes = [(mul, dim) for mul, dim, _, _ in groups if mul]
    channels = math.gcd(gates, *(mul for mul, _ in sizes))
    if channels < FEWEST:
        channels = 0
    expr, each = Expression(), max(channels, 1)
    inward = _blocks([(gates, 1), *sizes] if gates else sizes, channels, layout)
    outward = _blocks(sizes, channels, layout)
    width = sum(mul * dim for mul, dim in sizes)
    operands = [Operand(f"x{n}" if n else "x", gates + width, inward) for n in range(added)]
    if kept:
        operands.append(Operand("kept", width, outward))
    count = operands[0].components
    values = [expr.add(*(expr.load(n, i) for n in range(added))) for i in range(count)]
    factors = [_activated(expr, *gate, value) for value in values[: gates // each]]
    outputs, place, used = [], gates // each, 0
    for mul, dim, name, factor in groups:
        for _ in range(mul // each):
            for _ in range(dim):
                value = values[place]
                outputs.append(_activated(expr, name, factor, value) if name else expr.multiply(value, factors[used]))
                place += 1
            used += not name
    if kept:
        outputs = [expr.add(value, expr.load(added, i)) for i, value in enumerate(outputs)]
    result = Operand("z", width, outward)
    return register_formula(formula(expr, operands, [result], [outputs], channels))
