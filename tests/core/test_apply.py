"""A program with rows of edges and of nodes gives the same by a kernel and as operations of torch."""

import pytest
import torch
from torch import Tensor

import eqlayers as eq
from eqlayers.core.apply import as_rows, broadcast_at_once, run_by_row, run_program
from eqlayers.core.forms.description import ROW_MAPS, Form

GRAPH = eq.Graph(torch.tensor([[0, 1, 2, 2, 0], [1, 0, 1, 3, 3]]), 3, 4)
COUNTS = {"each": 5, "src": 3, "dst": 4}


@pytest.fixture
def form() -> Form:
    form: Form = eq.TensorProduct("2x0e + 2x1o", "1o", "2x1o + 2x0e", [(0, 0, 0, "uvu", True)]).plan.form
    return form


def drawn(form: Form, rows: tuple[str, ...]) -> list[Tensor]:
    widths = zip(form.program.widths[:3], rows, strict=False)
    shapes = [(width,) if one == "one" else (COUNTS[one], width) for width, one in widths]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.kernels
@pytest.mark.parametrize("rows", [*ROW_MAPS.values(), ("src", "dst", "each", "each"), ("src", "each", "one", "each")])
def test_rows_of_edges_and_nodes(form: Form, rows: tuple[str, str, str, str]) -> None:
    graph = GRAPH if {"src", "dst"} & {*rows} else None
    operands, of_rows = drawn(form, rows), form.with_rows(*rows)
    z = {name: run_program(of_rows, operands, graph, name) for name in (None, "torch", "reference")}
    assert z[None].shape == (COUNTS[rows[3]], form.program.widths[3])
    for name in ("torch", "reference"):
        torch.testing.assert_close(z[None], z[name])
    grads = [torch.autograd.grad(one.square().sum(), operands) for one in z.values()]
    for own, other in zip(*grads[:2], strict=True):
        torch.testing.assert_close(own, other)


def test_leading_axes_broadcast(form: Form) -> None:
    x, y, w = drawn(form, ("each", "each", "one"))
    z = run_by_row(form, x[:2, None], y[:3], (2, 3), None, w)
    assert z.shape == (2, 3, form.program.widths[3])
    torch.testing.assert_close(z[1, 2], run_by_row(form, x[1:2], y[2:3], (1,), "reference", w)[0])


@pytest.mark.kernels
def test_kernels_run_at_once_where_leading_axes_broadcast_and_nothing_else(form: Form) -> None:
    x, y, w = drawn(form, ("each", "each", "one"))
    call = form.calls[False, True]
    z = broadcast_at_once(call, (x[:2, None], y[:3], w), None)
    assert z is not None
    torch.testing.assert_close(z, run_by_row(form, x[:2, None], y[:3], (2, 3), "reference", w))
    assert broadcast_at_once(call, (x[0], y[0], w), "cpu").shape == (form.program.widths[3],)  # type: ignore[union-attr]
    others = {
        "leading axes that do not broadcast": (x[:2], y[:3], w),
        "another width": (x[:2, None, 1:], y[:3], w),
        "another dtype": (x[:2, None], y[:3].float(), w),
        "no axis": (x[:2, None], y.sum(), w),
    }
    assert {name for name, operands in others.items() if broadcast_at_once(call, operands, None) is None} == {*others}
    assert broadcast_at_once(call, (x[:2, None], y[:3], w), "torch") is None


def test_one_row_for_all_is_a_view() -> None:
    row = torch.ones(3)
    assert as_rows(row, (4,)).stride() == (0, 1)
    assert as_rows(torch.ones(2, 1, 3), (2, 5)).shape == (10, 3)
