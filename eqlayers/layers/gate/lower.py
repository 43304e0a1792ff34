r"""Gates as formulas: scalars through activations, other irreps times an activated scalar, in one pass over the rows.

The number of channels is the greatest common divisor of the multiplicities: irreps of 64, 32 and 16 copies are 4, 2 and
1 blocks of 16 channels. If it is small, every copy is a component, and rows have no channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula
from eqlayers_kernels.forms.program import Slot

from ...core.forms.description import register_formula
from ..base.columns import block_of
from ..pointwise.module import FEWEST

#: Multiplicity, components of one copy, and the name of the activation with its factor; gates have none.
Group = tuple[int, int, str, float]
#: Name of an activation and a factor of its result; '' is the identity.
Act = tuple[str, float]
AS_IT_IS: Act = ("", 1.0)


class Source(NamedTuple):
    """Location of copies in an operand or the result: a slot, and the first copy in the slot."""

    slot: Slot
    first: int = 0
    operand: int = 0


class Part(NamedTuple):
    """A range of copies in a gate: its source, its activation, and the scalars that multiply it, with theirs.

    In the output, parts follow one another, unless ``out`` is given.
    """

    mul: int
    source: Source
    act: Act = AS_IT_IS
    gate: Source | None = None
    gate_act: Act = AS_IT_IS
    out: Source | None = None


def common_channels(muls: Iterable[int]) -> int:
    """The greatest common divisor of multiplicities, as the number of channels; 0 if it is too small."""
    channels = math.gcd(*muls)
    return channels if channels >= FEWEST else 0


def blocks_of(source: Source, mul: int, channels: int, layout: str) -> list[Block]:
    """The blocks of ``mul`` copies of an operand: one for each ``channels`` copies, or for each copy if that is 0."""
    firsts = range(source.first, source.first + mul, max(channels, 1))
    return [block_of(source.slot, layout, channels > 0, first) for first in firsts]


def activated(expr: Expression, act: Act, value: int) -> int:
    """Append an activation of a node, times its factor, to an expression; returns the new node."""
    name, factor = act
    if not name:
        return expr.scale(factor, value)
    activation: int = expr.multiply(value, expr.sigmoid(value)) if name == "silu" else getattr(expr, name)(value)
    return expr.scale(factor, activation)


@lru_cache(maxsize=256)
def gated_formula(parts: tuple[Part, ...], widths: tuple[int, ...], layout: str, added: int, residual: bool) -> Formula:
    """The formula from operands to the concatenated parts; each part has at least one copy.

    The operands are: ``added`` rows of the first width, 1 or more, which are summed; the other rows, which sources
    name; and if ``residual`` a row of the output's width, which is added to the output.
    """
    channels = common_channels(part.mul for part in parts)
    expr, each = Expression(), max(channels, 1)
    offsets: dict[tuple[Source, int], int] = {}  # first component of copies that have been read
    blocks: list[list[Block]] = [[] for _ in widths]
    counts = [0] * len(widths)

    def offset(source: Source, mul: int) -> int:
        """The index in its operand of the first component; copies that are read twice are loaded once."""
        first = offsets.get((source, mul))
        if first is None:
            first = offsets[source, mul] = counts[source.operand]
            new = blocks_of(source, mul, channels, layout)
            blocks[source.operand] += new
            counts[source.operand] += len(new) * source.slot.dim
        return first

    numbers = [number + added - 1 if number else 0 for number in range(len(widths))]
    outputs, outward, width = [], [], 0
    for mul, source, act, gate, gate_act, out in parts:
        dim = source.slot.dim
        outward += blocks_of(out or Source(Slot(width, mul, dim)), mul, channels, layout)
        width += mul * dim
        start, gates = offset(source, mul), 0 if gate is None else offset(gate, mul)

        def load(source: Source, component: int) -> int:
            number = numbers[source.operand]
            terms = range(added) if source.operand == 0 else (number,)
            return expr.add(*(expr.load(number_of_operand, component) for number_of_operand in terms))

        for k in range(mul // each):
            factor = None if gate is None else activated(expr, gate_act, load(gate, gates + k))
            for i in range(k * dim, (k + 1) * dim):
                value = activated(expr, act, load(source, start + i))
                outputs.append(value if factor is None else expr.multiply(value, factor))
    operands = [Operand(f"x{n}" if n else "x", widths[0], tuple(blocks[0])) for n in range(added)]
    operands += [Operand(f"given{n}", widths[n], tuple(blocks[n])) for n in range(1, len(widths))]
    if residual:
        outputs = [expr.add(value, expr.load(len(operands), i)) for i, value in enumerate(outputs)]
        operands.append(Operand("kept", width, tuple(outward)))
    return register_formula(formula(expr, operands, [Operand("z", width, tuple(outward))], [outputs], channels))


def gate_formula(groups: Sequence[Group], gate: Act, layout: str, added: int, residual: bool) -> Formula:
    """The formula from gates and groups to groups; groups that are not activated have a gate for each copy.

    ``added`` and ``residual`` are as in `gated_formula`.
    """
    gates = Slot(0, sum(mul for mul, _, name, _ in groups if not name), 1)
    parts, start, used = [], gates.mul, 0
    for mul, dim, name, factor in groups:
        source = Source(Slot(start, mul, dim))
        start += mul * dim
        if mul and name:
            parts.append(Part(mul, source, (name, factor)))
        elif mul:
            parts.append(Part(mul, source, gate=Source(gates, used), gate_act=gate))
        used += 0 if name else mul
    return gated_formula(tuple(parts), (start,), layout, added, residual)
