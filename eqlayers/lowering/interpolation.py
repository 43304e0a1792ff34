"""Interpolation between equally spaced knots: which rows of a table a length combines, with which polynomials."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula

from ..forms.keys import register_formula


class Interpolation(NamedTuple):
    """A way to interpolate.

    Attributes:
        orders: Derivatives at a knot that the table holds, one row each, in units of the distance of knots; also rows
            from interval to interval.
        extra: Rows of the table beside ``orders`` for each knot.
        smooth: Continuous derivatives.
        polynomials: For each row that a length reads, one after the other, its coefficient as a polynomial of the
            place between two knots, 0 to 1: numbers from the constant one on.
    """

    orders: int
    extra: int
    smooth: int
    polynomials: tuple[tuple[float, ...], ...]


#: The ways to interpolate. Where two are equally exact, the first has the smallest table.
INTERPOLATIONS = {
    # B-splines
    "spline": Interpolation(
        1, 2, 2,
        ((1 / 6, -1 / 2, 1 / 2, -1 / 6), (2 / 3, 0, -1, 1 / 2), (1 / 6, 1 / 2, 1 / 2, -1 / 2), (0, 0, 0, 1 / 6)),
    ),
    # value and slope at both ends
    "hermite": Interpolation(2, 0, 1, ((1, 0, -3, 2), (0, 1, -2, 1), (0, 0, 3, -2), (0, 0, -1, 1))),
    # value, slope and curvature at both ends
    "quintic": Interpolation(
        3, 0, 2,
        (
            (1, 0, 0, -10, 15, -6), (0, 1, 0, -6, 8, -3), (0, 0, 1 / 2, -3 / 2, 3 / 2, -1 / 2),
            (0, 0, 0, 10, -15, 6), (0, 0, 0, -4, 7, -3), (0, 0, 0, 1 / 2, -1, 1 / 2),
        ),
    ),
    # values at four points, the place being between the second and the third
    "lagrange": Interpolation(
        1, 0, 0, ((0, -1 / 3, 1 / 2, -1 / 6), (1, -1 / 2, -1, 1 / 2), (0, 1, 1 / 2, -1 / 2), (0, -1 / 6, 0, 1 / 6))
    ),
}  # fmt: skip


@lru_cache
def coefficients_formula(name: str) -> Formula:
    """Places ``[E, 1]`` between two knots, and factors ``[E, 1]``, to coefficients times factors ``[E, reads]``.

    Example:
        >>> coefficients_formula("spline").results[0].width
        4
    """
    expr = Expression()
    place, factor, found = expr.load(0, 0), expr.load(1, 0), []
    for numbers in INTERPOLATIONS[name].polynomials:
        value = expr.zero
        for number in reversed(numbers):
            value = expr.add(expr.multiply(value, place), expr.constant(number))
        found.append(expr.multiply(value, factor))
    operands = [Operand(one, 1, (Block(0, 1),)) for one in ("place", "factor")]
    results = [Operand("coefficients", len(found), (Block(0, len(found)),))]
    return register_formula(formula(expr, operands, results, [found]))
