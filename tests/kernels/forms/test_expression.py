"""Expressions keep each value once, and the partial derivatives of every node are right."""

import math

import pytest

from eqlayers_kernels.forms.expression import FUNCTIONS, Expression, nested, partials, tangent_series
from tests.each import each


def value_of(expr: Expression, number: int, loads: list[float]) -> float:
    """The value of a node, by the definition of its kind."""
    op, args = expr.nodes[number]
    if op in ("load", "constant"):
        return loads[args[1]] if op == "load" else args[0]
    values = [value_of(expr, arg, loads) for arg in args]
    if op == "inverse_length":
        return 1 / math.hypot(*values)
    if op == "sigmoid":
        return 1 / (1 + math.exp(-values[0]))
    return {"add": sum, "multiply": math.prod, "tanh": lambda v: math.tanh(*v)}[op](values)


def test_equal_values_are_one_node() -> None:
    expr = Expression()
    x, y = expr.load(0, 0), expr.load(0, 1)
    assert expr.multiply(x, y) == expr.multiply(y, x)
    assert expr.add(x, expr.zero) == x
    assert expr.multiply(x, expr.one) == x
    assert expr.multiply(x, expr.zero, y) == expr.zero
    assert expr.scale(2.0, expr.scale(0.5, x)) == x
    assert expr.scale(2.0, expr.scale(3.0, x)) == expr.scale(6.0, x)
    assert expr.add() == expr.zero
    assert expr.multiply() == expr.one
    assert expr.multiply(expr.constant(2.0), expr.constant(3.0)) == expr.constant(6.0)
    before = len(expr.nodes)
    again = Expression(expr.nodes)
    assert (again.load(0, 1), again.multiply(y, x), again.zero) == (y, expr.multiply(x, y), expr.zero)
    assert len(again.nodes) == before, "an expression that goes on from nodes knows them"


@each("op", ["add", "multiply", "inverse_length", *FUNCTIONS])
def test_partial_derivatives_are_those_of_finite_differences(op: str) -> None:
    expr, step = Expression(), 1e-5
    loads = [0.7, -1.1, 0.4][: 1 if op in FUNCTIONS else 3 if op == "inverse_length" else 2]
    args = [expr.load(0, n) for n in range(len(loads))]
    place = getattr(expr, op)(*args)
    parts = {arg: nested(expr, expr.one, factors) for arg, factors in partials(expr, expr.nodes[place], place)}
    assert sorted(parts) == args
    for number, arg in enumerate(args):
        ahead, behind = (
            value_of(expr, place, [x + s * (n == number) for n, x in enumerate(loads)]) for s in (step, -step)
        )
        assert value_of(expr, parts[arg], loads) == pytest.approx((ahead - behind) / (2 * step), abs=1e-9)


def test_small_numbers_meet_large_factors_one_by_one() -> None:
    """The factors of a short vector's derivative overflow if they are multiplied first."""
    expr = Expression()
    small, large, other = (expr.load(0, n) for n in range(3))
    product = nested(expr, small, [large, large, other])
    loads = [1e-300, 1e200, 1e-50]
    assert value_of(expr, product, loads) == pytest.approx(1e50)
    assert nested(expr, small, []) == small
    assert partials(expr, expr.nodes[small], small) == partials(expr, expr.nodes[expr.one], expr.one) == []


def test_the_series_of_the_hyperbolic_tangent() -> None:
    """Abramowitz and Stegun 4.5.64; twelve terms are exact to rounding where kernels take them."""
    assert tangent_series(5) == (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835)
    for t in (1e-9, 0.1, 0.3):
        series = sum(factor * t ** (2 * k + 1) for k, factor in enumerate(tangent_series(12)))
        assert series == pytest.approx(math.tanh(t), rel=4e-16)
