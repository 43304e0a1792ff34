r"""Bessel functions with their envelope, and the hidden layers of radial networks, as formulas: one call each.

With :math:`u = r / r_c` the functions are :math:`\sqrt{2/r_c^3}\, f(u)\, a_n(u)` with :math:`a_n = \sin(n \pi u) / u`,
from :math:`a_1` and :math:`c_1 = \cos(\pi u)` by the sums of angles: all terms are finite at 0, and so are their
derivatives of every order. Both are power series in :math:`u^2 - 1/2`, cut off where terms are below rounding errors.
The envelope is :math:`f = (1 - u)^3 \sum_{k<p} \tfrac{(k+1)(k+2)}{2} u^k`, whose terms are all positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from e3nn.o3 import Irreps

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula

from ...core.forms.description import Form, register_formula
from ..base.columns import row_of
from ..gate.lower import Act, activated
from ..tensor_product.lower import linear_program

#: Most functions, and the largest power of an envelope, in a formula; others are computed by torch.
MOST_FUNCTIONS, MOST_POWER = 32, 32
#: Terms of the power series: third derivatives have the last digit of float64.
TERMS = 14


@lru_cache(maxsize=256)
def bessel_formula(number: int, cutoff: float, p: int) -> Formula:
    """The formula from lengths ``[E, 1]`` to ``[E, number]`` Bessel functions times the envelope of power p."""
    expr = Expression()
    u = expr.at_most_one(expr.scale(1 / cutoff, expr.load(0, 0)))  # 1 beyond the cutoff, with derivatives of 0
    square = expr.multiply(u, u)
    shifted = expr.add(square, expr.constant(-0.5))
    cosine, sine = (polynomial(expr, shifted, _series(odd)) for odd in (False, True))
    rest = expr.add(expr.one, expr.scale(-1.0, u))
    falling = expr.multiply(expr.multiply(rest, rest), rest)
    envelope = expr.multiply(falling, polynomial(expr, u, [(k + 1) * (k + 2) / 2 for k in range(p)]))
    scaled = expr.scale(math.sqrt(2 / cutoff) / cutoff, envelope)
    outputs, a, c = [], sine, cosine
    for _ in range(number):
        outputs.append(expr.multiply(scaled, a))
        turned = expr.multiply(square, expr.multiply(a, sine))
        a, c = (
            expr.add(expr.multiply(a, cosine), expr.multiply(c, sine)),
            expr.add(expr.multiply(c, cosine), expr.scale(-1.0, turned)),
        )
    return register_formula(formula(expr, [row_of("lengths", 1)], [row_of("functions", number)], [outputs]))


@lru_cache(maxsize=256)
def activation_formula(width: int, act: Act, scale: float) -> Formula:
    """The formula from ``[N, width]`` to an activation of ``scale`` times each number."""
    expr = Expression()
    blocks = (Block(0, 1, width, 1),)
    value = activated(expr, act, expr.scale(scale, expr.load(0, 0)))
    return register_formula(
        formula(expr, [Operand("x", width, blocks)], [Operand("z", width, blocks)], [[value]], width)
    )


@lru_cache(maxsize=256)
def matrix_form(width: int, width_out: int) -> Form | None:
    """The form of ``[N, width]`` times a matrix ``[width * width_out]``; None for an empty one."""
    irreps = Irreps(f"{width}x0e"), Irreps(f"{width_out}x0e")
    return Form(linear_program(irreps, [(0, 0, 1.0)], "mul_ir")) if width and width_out else None


def polynomial(expr: Expression, at: int, coefficients: Sequence[float]) -> int:
    """The node of a polynomial by Horner's rule; coefficients from the lowest power."""
    value = expr.zero
    for coefficient in reversed(coefficients):
        value = expr.add(expr.multiply(value, at), expr.constant(coefficient))
    return value


def _series(odd: bool) -> list[float]:
    r"""Coefficients of :math:`\cos(\pi u)`, or :math:`\sin(\pi u) / u` if ``odd``, in powers of :math:`u^2 - 1/2`."""
    pi, half = Fraction(math.pi), Fraction(1, 2)
    powers = [(-1) ** k * pi ** (2 * k + odd) / math.factorial(2 * k + odd) for k in range(2 * TERMS)]
    return [
        float(sum(power * math.comb(k, m) * half ** (k - m) for k, power in enumerate(powers) if k >= m))
        for m in range(TERMS)
    ]
