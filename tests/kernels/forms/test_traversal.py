"""Each result of a form along a graph is computed in one traversal, where its rows are summed."""

import pytest

import eqlayers as eq
from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.formula import Block, Expression, Operand, formula
from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.traversal import TRAVERSALS, traversal_of


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
