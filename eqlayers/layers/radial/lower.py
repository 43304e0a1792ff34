"""Interpolation between equally spaced knots: which rows of a table a length combines, with which polynomials."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula

from ...core.forms.keys import register_formula


class Interpolation(NamedTuple):
    """A way to interpolate.

    A length reads consecutive rows of a table: the value at the knot before it, the difference to the value at the knot
    behind it, and derivatives at both, in units of the distance of knots. Slopes are combinations of differences and
    derivatives alone, so they keep the digits of the dtype however near the knots are; as differences of rounded values
    they would lose them.
    """

    derivatives: int  # of the function at the knots, that a table is made from
    orders: int  # rows of the table from interval to interval. Rows that are read beyond these belong to the next one
    smooth: int  # continuous derivatives
    #: For each row that a length reads, one after the other, its coefficient as a polynomial of the place between
    #: two knots, 0 to 1: numbers from the constant one on.
    polynomials: tuple[tuple[float, ...], ...]


#: Slope at the first knot, its value, the difference to the second, and the slope at the second.
_CUBIC = ((0, 1, -2, 1), (1,), (0, 0, 3, -2), (0, 0, -1, 1))
#: Slope and curvature at the first knot, its value, the difference to the second, and slope and curvature there.
_QUINTIC = (
    (0, 1, 0, -6, 8, -3), (0, 0, 1 / 2, -3 / 2, 3 / 2, -1 / 2), (1,), (0, 0, 0, 10, -15, 6),
    (0, 0, 0, -4, 7, -3), (0, 0, 0, 1 / 2, -1, 1 / 2),
)  # fmt: skip

#: ``[4, 4]``: from the factors of the rows of `_CUBIC` at a length to the factors of a spline's coefficients.
TO_COEFFICIENTS = (
    (-1 / 2, 0.0, 1 / 2, 0.0), (1 / 6, 2 / 3, 1 / 6, 0.0), (-1 / 6, -1 / 2, 1 / 2, 1 / 6), (0.0, -1 / 2, 0.0, 1 / 2)
)  # fmt: skip

#: The ways to interpolate.
INTERPOLATIONS = {
    "spline": Interpolation(0, 3, 2, _CUBIC),  # slopes of the spline of all values
    "hermite": Interpolation(1, 3, 1, _CUBIC),
    "quintic": Interpolation(2, 4, 2, _QUINTIC),
    "lagrange": Interpolation(0, 4, 0, _CUBIC),  # slopes of the cubic through four points, others in each interval
}


@lru_cache
def coefficients_formula(name: str) -> Formula:
    """Places ``[E, 1]`` between two knots, and factors ``[E, 1]``, to coefficients times factors ``[E, reads]``."""
    expr = Expression()
    place, factor, outputs = expr.load(0, 0), expr.load(1, 0), []
    for numbers in INTERPOLATIONS[name].polynomials:
        value = expr.zero
        for number in reversed(numbers):
            value = expr.add(expr.multiply(value, place), expr.constant(number))
        outputs.append(expr.multiply(value, factor))
    operands = [Operand(one, 1, (Block(0, 1),)) for one in ("place", "factor")]
    results = [Operand("coefficients", len(outputs), (Block(0, len(outputs)),))]
    return register_formula(formula(expr, operands, results, [outputs]))
