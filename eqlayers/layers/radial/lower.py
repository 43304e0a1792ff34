"""Cubic splines between equally spaced knots, as combinations of rows of a table with polynomial coefficients."""

from __future__ import annotations

from functools import lru_cache

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula

from ...core.forms.keys import register_formula

#: Rows of a table for each knot: the slope, times the distance of knots, the value,
#: and the difference to the next value. A length reads these and the next slope. Slopes of weights are combinations of
#: differences and slopes alone, so they keep the digits of the dtype however near the knots are.
ORDERS = 3
#: The coefficient of each row that a length reads as a polynomial of the offset from the knot before it, 0 to 1:
#: numbers from the constant one on.
POLYNOMIALS = ((0, 1, -2, 1), (1,), (0, 0, 3, -2), (0, 0, -1, 1))
#: ``[4, 4]``: from the coefficients of rows at a length to the coefficients of B-splines.
TO_COEFFICIENTS = (
    (-1 / 2, 0.0, 1 / 2, 0.0), (1 / 6, 2 / 3, 1 / 6, 0.0), (-1 / 6, -1 / 2, 1 / 2, 1 / 6), (0.0, -1 / 2, 0.0, 1 / 2)
)  # fmt: skip


@lru_cache
def coefficients_formula() -> Formula:
    """The formula from offsets ``[E, 1]`` in an interval and factors ``[E, 1]`` to coefficients ``[E, 4]``."""
    expr = Expression()
    offset, factor, outputs = expr.load(0, 0), expr.load(1, 0), []
    for numbers in POLYNOMIALS:
        value = expr.zero
        for number in reversed(numbers):
            value = expr.add(expr.multiply(value, offset), expr.constant(number))
        outputs.append(expr.multiply(value, factor))
    operands = [Operand(name, 1, (Block(0, 1),)) for name in ("place", "factor")]  # names are part of the key
    results = [Operand("coefficients", len(outputs), (Block(0, len(outputs)),))]
    return register_formula(formula(expr, operands, results, [outputs]))
