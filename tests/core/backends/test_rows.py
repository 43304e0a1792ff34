"""Rows of operands as data: whatever they are, a form and its derivatives equal rows gathered and summed."""

from itertools import product

import pytest
import torch
from torch import Tensor

import eqlayers as eq
from eqlayers import Graph
from eqlayers.core.backends.whole import define
from eqlayers.core.forms.description import describe, register_formula, with_rows
from eqlayers.core.operator import form_operator, sorted_edges
from eqlayers.errors import IndexRangeError
from eqlayers.layers.base.module import run_formula
from eqlayers_kernels.forms.formula import ROWS, Block, Expression, Operand, formula

pytestmark = pytest.mark.usefixtures("needs_a_compiler")

PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]
FORM = eq.TensorProduct("2x0e + 1o", "0e + 1o", "2x0e + 2x1o", PATHS).plan.form
EDGES = torch.tensor([[2, 0, 2, 1, 0], [0, 3, 3, 0, 1]])
COUNT = {"each": 5, "src": 3, "dst": 4}
MAPS = list(product(ROWS, repeat=4))[::3]  # each pair of rows of any two operands is among these


def gathered(t: Tensor, rows: str) -> Tensor:
    """A row for every row of the batch."""
    if rows in ("src", "dst"):
        return t[EDGES["sd".index(rows[0])]]
    return t if rows == "each" else t.expand(5, -1)


def by_hand(rows: tuple[str, ...], x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """The product of gathered rows, and the sum that z's rows mean."""
    z = define(FORM.key, *(gathered(t, own) for t, own in zip((x, y, w), rows, strict=False)))
    if rows[3] in ("each", "one"):
        return z if rows[3] == "each" else z.sum(0)
    return z.new_zeros(COUNT[rows[3]], z.shape[1]).index_add(0, EDGES["sd".index(rows[3][0])], z)


@pytest.mark.parametrize("rows", MAPS, ids=lambda rows: "".join(one[0] for one in rows))
def test_products_with_any_rows(rows: tuple[str, ...]) -> None:
    made = torch.Generator().manual_seed(0)
    widths = FORM.program.widths
    shapes = [(n,) if own == "one" else (COUNT[own], n) for own, n in zip(rows, widths, strict=False)]
    operands = [torch.randn(s, dtype=torch.float64, generator=made).requires_grad_() for s in shapes[:3]]
    nodes = any(own in ("src", "dst") for own in rows)
    tables, sizes = (sorted_edges(EDGES, 3, 4), (5, 3, 4)) if nodes else (None, (5, 0, 0))
    key = with_rows(FORM.key, *rows)
    gradients = describe(f"{key}/g1:111").form.results
    assert [one.rows for one in gradients] == list(rows[:3])  # a gradient has its operand's rows
    ways = [(form_operator(operands, tables, *sizes, key)[0]), by_hand(rows, *operands)]
    for order in range(3):
        a, b = ways
        torch.testing.assert_close(a, b, atol=1e-11, rtol=0)
        cotangent = torch.linspace(-1, 1, a.numel(), dtype=a.dtype).view_as(a)
        found = [torch.autograd.grad(t, operands, cotangent, create_graph=True) for t in ways]
        ways = [torch.cat([t.flatten() for t in part]).sin() for part in found] if order < 2 else []
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want, atol=1e-10, rtol=0)


# -- a table that rows interpolate in ----------------------------------------------------------------------------------

KNOTS, WIDTH, POINTS = 9, 6, 4


def interpolation() -> object:
    """``sum_k b[n, k] T[i(n) + k]``: the table's rows from k on are operand k, gathered by one index."""
    expr = Expression()
    terms = [
        [expr.multiply(expr.load(0, k), expr.load(1 + k, column)) for k in range(POINTS)] for column in range(WIDTH)
    ]
    tables = [Operand(f"table from {k}", WIDTH, (Block(0, WIDTH),), "src") for k in range(POINTS)]
    operands = [Operand("coefficients", POINTS, (Block(0, POINTS),)), *tables]
    results = [Operand("z", WIDTH, (Block(0, WIDTH),))]
    return register_formula(formula(expr, operands, results, [[expr.add(*t) for t in terms]]))


@pytest.mark.parametrize("backend", [None, "reference"])
def test_rows_interpolated_in_a_table(backend: str | None) -> None:
    base, start = interpolation(), torch.tensor([0, 5, 2, 2, 0, 3, 5, 5])
    graph = Graph(torch.stack([start, torch.arange(8)]), KNOTS - POINTS + 1, 8)
    table = torch.randn(KNOTS, WIDTH, dtype=torch.float64, requires_grad=True)
    b = torch.randn(8, POINTS, dtype=torch.float64, requires_grad=True)

    def rows(table: Tensor, b: Tensor) -> Tensor:
        views = [table[k : KNOTS - POINTS + 1 + k] for k in range(POINTS)]
        return run_formula(base, [b, *views], graph, backend)[0]  # type: ignore[arg-type]

    want = torch.einsum("nk,nkc->nc", b, table[start[:, None] + torch.arange(POINTS)])
    torch.testing.assert_close(rows(table, b), want, atol=1e-14, rtol=0)
    assert torch.autograd.gradcheck(rows, (table, b))
    assert torch.autograd.gradgradcheck(rows, (table, b), fast_mode=True)


@pytest.mark.parametrize("bad", [-1, KNOTS - POINTS + 1])
def test_an_index_outside_the_table(bad: int) -> None:
    graph = Graph(torch.tensor([[bad], [0]]), KNOTS - POINTS + 1, 1)
    views = [torch.ones(KNOTS - POINTS + 1, WIDTH)] * POINTS
    with pytest.raises(IndexRangeError, match=r"edge_index\[0\] \(src\) must lie in \[0, 6\)"):
        run_formula(interpolation(), [torch.ones(1, POINTS), *views], graph)  # type: ignore[arg-type]
