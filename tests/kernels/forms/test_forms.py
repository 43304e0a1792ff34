"""Products as forms with derivatives of any order, content as JSON with its keys, and expressions."""

import hashlib
import json
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.expression import FUNCTIONS, Expression, nested, partials, tangent_series
from eqlayers_kernels.forms.formula import Block, Formula, Node, Operand
from eqlayers_kernels.forms.product import TABLED, ProductForm, Reading, SumForm
from eqlayers_kernels.forms.program import Axis, Path, Program, Slot, as_json, key_of
from tests.by_hand import contract
from tests.each import each

#: Paths with weights and one without.
SPECS = (("uvu", (4, 1, 0), (3, 3, 1)), ("uuu", (3, 3, 0), (1, 3, 3)), ("uvw", (2, 1, 3), (3, 1, 3)))


@pytest.fixture(scope="module")
def form(programs: Any) -> ProductForm:
    program = programs.random_program("mul_ir", True, SPECS)
    path = program.paths[1]._replace(weight=None)
    path = path._replace(axes=tuple(axis._replace(w=0) for axis in path.axes))
    return ProductForm(type(program)((program.paths[0], path, *program.paths[2:]), program.widths, "mul_ir"))


def of_product(form: ProductForm, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Results from the definition of `Kind`."""
    out = []
    for wanted in form.task.results:
        moves = form.task.tangents if form.task.order == 2 else ("",)
        total = np.zeros((2, dict(zip("xywz", form.program.widths, strict=True))[wanted]))
        for moving in (name for name in moves if name != wanted):
            operands = {name: arrays["g" if name == "z" else name] for name in "xywz" if name != wanted}
            operands |= {moving: arrays[f"d{moving}"]} if moving else {}
            total += contract((form.weighted if moving == "w" else form).program, wanted, **operands)
        out.append(total)
    return out


def results(form: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    assert [a.shape[1] for a in operands] == [one.width for one in form.operands]
    if not isinstance(form, SumForm):
        return of_product(form, dict(zip(form.names, operands, strict=True)))
    out = [np.zeros((2, one.width)) for one in form.results]
    for part in form.parts:
        values = results(part.form, [operands[pick] for pick in part.picks])
        for target, value in zip(part.targets, values, strict=True):
            out[target] = out[target] + value
    return out


def draw(operands: Any, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, one.width)) for one in operands]


@each("order", [0, 1, 2, 3])
def test_derivatives_are_those_of_finite_differences(form: ProductForm, order: int) -> None:
    """Along tangents, and as gradients of all operands."""
    current: Any = form
    for _ in range(order):
        current = current.vjp([True] * len(current.results), [True] * len(current.operands))
    operands, tangents, step = draw(current.operands, 1), draw(current.operands, 2), 1e-4
    along = current.jvp([True] * len(operands))
    ahead, behind = (
        results(current, [a + s * t for a, t in zip(operands, tangents, strict=True)]) for s in (step, -step)
    )
    changes = results(along, [*operands, *tangents])
    for change, a, b in zip(changes, ahead, behind, strict=True):
        np.testing.assert_allclose(change, (a - b) / (2 * step), rtol=0, atol=1e-5)
    gradient, cotangents = current.vjp([True] * len(changes), [True] * len(operands)), draw(along.results, 3)
    gradients = results(gradient, [*operands, *cotangents])
    left = sum((c * d).sum() for c, d in zip(cotangents, changes, strict=True))
    assert left == pytest.approx(sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True)), rel=1e-10)


def test_operands_and_results_follow_from_the_kind(form: ProductForm) -> None:
    x, y, w, z = form.program.widths
    gradient = form.vjp([True], [True, False, True])
    assert isinstance(gradient, ProductForm)
    assert gradient.task == Task(1, ("x", "w"))
    assert [(one.name, one.width) for one in gradient.operands] == [("x", x), ("y", y), ("w", w), ("g", z)]
    assert [one.name for one in gradient.results] == ["gradient of x", "gradient of w"]
    second = gradient.vjp([False, True], [True, False, False, True])
    assert [(one.name, one.width) for one in second.operands[4:]] == [("dw", w)]
    assert [one.width for one in second.results] == [x, z]
    assert len(form.weighted.program.paths) == len(form.program.paths) - 1
    assert form.vjp([True], [True] * 3).name != gradient.name == form.vjp([True], [True, False, True]).name
    assert form.with_rows(("src", "each", "one"), ("dst",)).shared


def test_weights_of_a_table_are_read_by_interval(form: ProductForm) -> None:
    """Cubic polynomials by knots, and values with two derivatives at both ends of an interval."""
    for reads, orders in ((4, 1), (6, 3)):
        reading = Reading(reads, orders)
        for intervals in (1, 2, 9):
            assert reading.intervals(reading.rows(intervals)) == intervals
        assert reading.rows(2) == reads + orders
        assert [reading.intervals(rows) for rows in (0, reads - 1)] == [0, 0]
    assert Reading(6, 3).intervals(8) == 0, "no number of rows of a table"
    parts = torch.arange(1.0, 9.0).view(2, 4)  # of two intervals of four rows, one column
    assert Reading(4, 1).folded(parts).flatten().tolist() == [1, 2 + 5, 3 + 6, 4 + 7, 8]
    assert Reading(4, 3).folded(parts).flatten().tolist() == [1, 2, 3, 4 + 5, 6, 7, 8]
    tabled = form.tabled(4, 1)
    assert tabled.rows == TABLED
    assert [(one.name, one.rows) for one in tabled.operands] == list(zip("xytc", TABLED, strict=False))
    assert [one.width for one in tabled.operands[2:]] == [form.program.widths[2], 4]
    assert tabled.name != form.tabled(6, 3).name


class Renamed(NamedTuple):
    """A block with other names."""

    begin: int
    count: int
    apart: int
    step: int


def test_numbers_come_back_bit_by_bit() -> None:
    numbers = [0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, 1e22, -1.5]
    read = json.loads(as_json(numbers))
    assert [struct.pack("d", number) for number in read] == [struct.pack("d", number) for number in numbers]
    assert as_json([1, 1.0, "x", None, (2, [])]) == b'[1,1.0,"x",null,[2,[]]]'


def test_keys_are_short_hashes_of_the_text() -> None:
    content = [Block(1, 2, 3, 4), 0.5, "mul_ir"]
    assert key_of(content) == hashlib.sha256(b'[[1,2,3,4],0.5,"mul_ir"]').hexdigest()[:16]
    assert key_of([Renamed(1, 2, 3, 4), 0.5, "mul_ir"]) == key_of(content), "names are in no key"
    others = ([Block(1, 2, 3, 4), 0.5 + 2.0**-53, "mul_ir"], [[1, 2, 3], 4, 0.5, "mul_ir"], [*content, None])
    assert len({key_of(content), *map(key_of, others)}) == 4


def test_keys_of_forms_stay() -> None:
    """Keys that are written down: exported graphs hold them, so they may never change."""
    path = Path(Slot(0, 2, 1), Slot(0, 1, 3), Slot(0, 2, 3), 0, (Axis(2, x=1, w=1, z=1),), ((0, 1, 1, 0.1),))
    assert Program((path,), (2, 3, 2, 6), "mul_ir").key == "f4e8e15b443556c6"
    nodes, row = (Node("load", (0, 1)), Node("constant", (0.1,)), Node("multiply", (0, 1))), (Block(0, 2),)
    base = Formula((Operand("x", 2, row),), (Operand("z", 2, row),), nodes, ((2, None),))
    assert base.key == "3da20f0f70889e6c"


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
    if op in ("at_most_one", "below_one"):
        return min(values[0], 1.0) if op == "at_most_one" else float(values[0] < 1)
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


@each("first", [0.7, 1.7])
@each("op", ["add", "multiply", "inverse_length", *FUNCTIONS])
def test_partial_derivatives_are_those_of_finite_differences(op: str, first: float) -> None:
    expr, step = Expression(), 1e-5
    loads = [first, -1.1, 0.4][: 1 if op in FUNCTIONS else 3 if op == "inverse_length" else 2]
    args = [expr.load(0, n) for n in range(len(loads))]
    place = getattr(expr, op)(*args)
    parts = {arg: nested(expr, expr.one, factors) for arg, factors in partials(expr, expr.nodes[place], place)}
    assert sorted(parts) == (args if op != "below_one" else [])
    for number, arg in enumerate(args):
        ahead, behind = (
            value_of(expr, place, [x + s * (n == number) for n, x in enumerate(loads)]) for s in (step, -step)
        )
        assert value_of(expr, parts.get(arg, expr.zero), loads) == pytest.approx(
            (ahead - behind) / (2 * step), abs=1e-9
        )


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
