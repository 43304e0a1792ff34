"""Formulas: what nodes are kept, derivatives that are formulas, against finite differences and one another."""

import numpy as np
import pytest

import eqlayers as eq
from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.formula import (
    TRAVERSALS,
    Block,
    Expression,
    Formula,
    Node,
    Operand,
    evaluate,
    formula,
    traversal_of,
)
from eqlayers_kernels.forms.product import ProductForm
from tests.each import refused
from tests.formulas import cubic, edges_of_points, functions


class Primitives:
    """In float64."""

    @staticmethod
    def inverse_length(*vector):
        square = sum(v * v for v in vector)
        return np.where(square > 1e-100, 1 / np.sqrt(np.where(square > 1e-100, square, 1.0)), 0.0)

    @staticmethod
    def sigmoid(value):
        return 1 / (1 + np.exp(-value))

    tanh = staticmethod(np.tanh)


def run(base, operands):
    """Outputs by result, ``[components, rows]``; operands ``[components, rows]``, whatever their map of rows."""
    found = evaluate(base, lambda operand, component: operands[operand][component], Primitives)
    rows = operands[0].shape[1]
    return [np.stack([np.zeros(rows) + (0.0 if p is None else p) for p in part]) for part in found]


def some(base, seed=0, rows=4):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(one.components, rows)) for one in base.operands]


SAMPLES = {"edges": edges_of_points(), "cubic": cubic(1), "functions": functions(1)}


@pytest.mark.parametrize("name", SAMPLES)
def test_gradients_and_derivatives_along_are_those_of_finite_differences(name):
    base = SAMPLES[name]
    operands, tangents, step = some(base), some(base, 1), 1e-6
    ahead, behind = (run(base, [o + s * t for o, t in zip(operands, tangents, strict=False)]) for s in (step, -step))
    expected = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=False)]
    along = run(base.jvp([True] * len(operands)), [*operands, *tangents])
    for found, want in zip(along, expected, strict=True):
        np.testing.assert_allclose(found, want, atol=1e-7)
    cotangents = [np.random.default_rng(2).normal(size=z.shape) for z in along]
    gradients = run(base.vjp([True] * len(along), [True] * len(operands)), [*operands, *cotangents])
    left = sum((c * d).sum(0) for c, d in zip(cotangents, along, strict=False))
    right = sum((g * t).sum(0) for g, t in zip(gradients, tangents, strict=False))
    np.testing.assert_allclose(left, right, atol=1e-12)


@pytest.mark.parametrize("name", SAMPLES)
def test_second_derivatives_are_symmetric_and_third_are_those_of_the_second(name):
    base = SAMPLES[name]
    count, results = len(base.operands), len(base.results)
    a, b = [True] * results, [True] * count
    gradient = base.vjp(a, b)
    second = gradient.jvp([*b, *[False] * results])
    operands, cotangents = some(base), [np.ones((one.components, 4)) for one in base.results]
    first_way, second_way = some(base, 1), some(base, 2)
    found = [run(second, [*operands, *cotangents, *way]) for way in (first_way, second_way)]
    left = sum((f * t).sum(0) for f, t in zip(found[0], second_way, strict=False))
    right = sum((f * t).sum(0) for f, t in zip(found[1], first_way, strict=False))
    np.testing.assert_allclose(left, right, atol=1e-11)
    third, step = second.jvp([*b, *[False] * (results + count)]), 1e-6
    ahead, behind = (
        run(second, [*(o + s * t for o, t in zip(operands, second_way, strict=False)), *cotangents, *first_way])
        for s in (step, -step)
    )
    for got, x, y in zip(run(third, [*operands, *cotangents, *first_way, *second_way]), ahead, behind, strict=True):
        np.testing.assert_allclose(got, (x - y) / (2 * step), atol=1e-5)


def test_every_derivative_has_the_rows_and_columns_of_what_it_is_the_derivative_of():
    base = edges_of_points()
    gradient = base.vjp([True, False, True], [True, True, False])
    assert [one.rows for one in gradient.operands] == ["src", "dst", "each", "each", "each"]
    assert [(one.rows, one.blocks) for one in gradient.results] == [(o.rows, o.blocks) for o in base.operands[:2]]
    second = gradient.vjp([True, True], [False, False, True, True, False])
    assert [one.rows for one in second.operands[5:]] == ["src", "dst"]  # cotangents of sums are gathered
    assert [one.width for one in second.results] == [4, 3]
    assert base.jvp([True, False, False]).operands[3].rows == "src"


def test_gradients_near_and_at_the_zero_vector_are_finite():
    base = edges_of_points()
    flags = ([True] * 3, [True] * 3)
    first = base.vjp(*flags)
    second = first.vjp(flags[1], [True] * 6)
    third = second.vjp([True] * 6, [True] * 9)
    for size in (0.0, 1e-20, 1e-12, 1e-3):
        shift = np.array([[size, 2 * size], [0.0, size], [size, 0.0]])
        operands = [np.zeros((3, 2)), np.zeros((3, 2)), shift]
        for way in (first, second, third):
            inputs = [*operands, *(np.ones((one.components, 2)) for one in way.operands[3:])]
            assert all(np.isfinite(part).all() for part in run(way, inputs)), size
            if size == 0.0 and way is not first:
                assert not run(way, inputs)[2].any()


def test_nodes_that_no_result_needs_are_gone():
    expr = Expression()
    x = expr.load(0, 0)
    row = (Operand("x", 2, (Block(0, 2),)),)
    result = (Operand("z", 2, (Block(0, 2),)),)
    made = formula(expr, row, result, [[expr.multiply(x, x), expr.zero]])
    assert made.nodes == (Node("load", (0, 0)), Node("multiply", (0, 0)))
    assert made.outputs == ((1, None),)
    assert made.operations == 1
    base = edges_of_points()
    assert base.part([1]).results == base.results[1:2]
    assert base.part([1]).operations < base.operations


def test_keys_are_those_of_the_content():
    assert cubic(4).key == cubic(4).key
    assert len({cubic(4).key, cubic(5).key, cubic(4, "mul_ir").key, cubic(4, rows="each").key}) == 4
    assert "x: 4 components in 16 columns, rows each" in str(cubic(4))


X = Operand("x", 2, (Block(0, 2),))


test_formulas_that_a_kernel_could_not_be_printed_of_are_refused = refused(
    "fields, message",
    [
        (((X._replace(rows="node"),), (), (), ()), "rows of x must be one of each, one, src, dst, got 'node'"),
        (((X._replace(width=1),), (), (), ()), "blocks of x must be apart and lie in 1 columns"),
        (((X._replace(blocks=(Block(0, 2), Block(1, 1))),), (), (), ()), "blocks of x must be apart"),
        (((X,), (), (Node("add", (0, 0)),), ()), "node 0 must name earlier nodes"),
        (((X,), (), (Node("load", (0, 2)),), ()), "node 0 must load a component that is there"),
        (((X,), (X._replace(name="z"),), (), ((None,),)), "z must have 2 outputs, got 1"),
        (((X,), (), (Node("load", (-1, 0)),), ()), "node 0 must load a component that is there"),
        (((X._replace(blocks=(Block(0, -5), Block(0, 2))),), (), (), ()), "x must have blocks of 0 components or more"),
        (((X._replace(width=-1, blocks=()),), (), (), ()), "x must have blocks of 0 components or more"),
        (((X,), (X,), (Node("load", (0, 0)),), ((0, -1),)), "outputs of x must be nodes"),
        (((X,), (X,), (Node("load", (0, 0)),), ((0, 1),)), "outputs of x must be nodes"),
    ],
    lambda fields: Formula(*fields),
    error=ValueError,
)


def test_rows_of_nodes_have_one_traversal_each() -> None:
    assert [traversal_of(rows) for rows in ("each", "one", "src", "dst", "table")] == [
        "rows",
        "rows",
        "by_src",
        "by_dst",
        "by_place",
    ]
    assert sorted("".join(one.results for one in TRAVERSALS.values())) == sorted("xywctz")


def test_traversals_of_a_product() -> None:
    program = eq.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)]).plan.form.program
    form = ProductForm(program, ("src", "each", "each", "dst"), Task(2, ("x", "w", "z"), ("x",)))
    assert form.traversals(False) == {"rows": [0, 1, 2]}
    assert form.traversals(True) == {"by_dst": [2], "by_src": [0, 1]}
    assert form.part([2]).task.results == ("z",)


@pytest.mark.parametrize(
    ("operands", "results", "wanted"),
    [
        (("src", "each"), ("each",), {"by_src": [0]}),
        (("src", "dst"), ("each",), {"by_dst": [0]}),
        (("each", "each"), ("each", "src", "dst"), {"by_src": [1, 0], "by_dst": [2]}),
    ],
)
def test_traversals_of_a_formula(
    operands: tuple[str, ...], results: tuple[str, ...], wanted: dict[str, list[int]]
) -> None:
    expr = Expression()
    product = expr.multiply(expr.load(0, 0), expr.load(1, 0))
    rows = [Operand(f"x{n}", 1, (Block(0, 1),), one) for n, one in enumerate((*operands, *results))]
    base = formula(expr, rows[: len(operands)], rows[len(operands) :], [[product]] * len(results))
    assert base.traversals(True) == wanted
    assert base.traversals(False) == {"rows": list(range(len(results)))}
    assert all(base.covers(number) for number in range(len(results)))
