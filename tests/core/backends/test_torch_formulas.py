"""Formulas in torch have the numbers of their definition by hand, in every layout, with any rows and in every dtype."""

import pytest
import torch

from eqlayers.core.backends.rows import Endpoints
from eqlayers.core.backends.torch_formulas import Primitives, run_in_torch
from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula
from tests.each import each
from tests.formulas import cubic, edges_of_points, functions

ENDS = Endpoints(torch.tensor([2, 0, 2, 1]), torch.tensor([0, 3, 3, 0]), 3, 5)


def test_lengths_and_vectors_between_points() -> None:
    base = edges_of_points()
    start, end, shift = (torch.randn(n, one.width).double() for n, one in zip((3, 5, 4), base.operands, strict=True))
    vector, length, harmonics = run_in_torch(base, [start, end, shift], ENDS)
    wanted = end[ENDS.dst] - start[ENDS.src] + shift[:, :3]  # a column of the shift stands behind its block
    torch.testing.assert_close(vector, wanted)
    torch.testing.assert_close(length, wanted.norm(dim=1, keepdim=True))
    unit = wanted / wanted.norm(dim=1, keepdim=True)
    torch.testing.assert_close(harmonics[:, 2:5], unit)
    torch.testing.assert_close(harmonics[:, 6], 1.5 * unit[:, 2] ** 2 - 0.5)
    assert harmonics[:, 1].tolist() == [1.0] * 4, "a number is spread over the rows"
    assert not harmonics[:, [0, 7, 8]].any(), "columns of no component and of none are 0"


def columns_of(one: Operand, channels: int) -> list[int]:
    return [column for component in one.columns(channels) for column in component]


@each("layout", ["mul_ir", "channels"])
def test_layouts_of_channels_differ_in_their_columns_alone(layout: str) -> None:
    """A block of l = 1 behind one of l = 0; components may lie side by side or channels apart."""
    channels, components = 5, (1, 3)
    base, other = cubic(channels, rows="one", components=components), cubic(channels, layout, "one", components)
    x = torch.randn(4, channels * 4).double()
    coefficients = torch.randn(base.operands[1].width).double()
    turned = torch.empty_like(x)
    turned[:, columns_of(other.operands[0], channels)] = x[:, columns_of(base.operands[0], channels)]
    (z,), (wanted,) = (run_in_torch(f, [t, coefficients], None) for f, t in ((other, turned), (base, x)))
    places = [columns_of(f.results[0], channels) for f in (other, base)]
    torch.testing.assert_close(z[:, places[0]], wanted[:, places[1]], rtol=0, atol=0)


def total_of(rows: str) -> Formula:
    """Twice a number, summed over the rows of a node or all."""
    expr = Expression()
    one = Operand("x", 1, (Block(0, 1),))
    double = expr.scale(2.0, expr.load(0, 0))
    return formula(expr, [one], [one._replace(name="z", rows=rows)], [[double]])


def test_rows_of_results_are_summed() -> None:
    x = torch.arange(1.0, 5.0)[:, None]
    assert run_in_torch(total_of("each"), [x], ENDS)[0].flatten().tolist() == [2, 4, 6, 8]
    assert run_in_torch(total_of("one"), [x], None)[0].tolist() == [20]
    assert run_in_torch(total_of("src"), [x], ENDS)[0].flatten().tolist() == [4, 8, 8]
    assert run_in_torch(total_of("dst"), [x], ENDS)[0].flatten().tolist() == [10, 0, 0, 10, 0]
    assert run_in_torch(total_of("one"), [x[:0]], None)[0].tolist() == [0]


def test_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    x = torch.randn(50, 9).half()
    (rounded,) = run_in_torch(functions(3), [x], None)
    (exact,) = run_in_torch(functions(3), [x.double()], None)
    assert rounded.dtype == torch.float16
    # half of the last place, and the errors of float32; 2^-25 is half of the distance of the smallest numbers
    assert bool(((rounded.double() - exact).abs() <= (2.0**-11 + 1e-5) * exact.abs() + 2.0**-25).all())


@each("dtype", [torch.float32, torch.float64])
def test_the_zero_vector_has_no_direction_and_no_derivatives(dtype: torch.dtype) -> None:
    vector = [torch.tensor([0.0, 3.0, torch.nan], dtype=dtype, requires_grad=True) for _ in range(3)]
    inverse = Primitives.inverse_length(*vector)
    assert inverse[:2].tolist() == [0.0, pytest.approx(27**-0.5)]
    assert bool(inverse[2].isnan()), "an undefined number is not hidden"
    first = torch.autograd.grad(inverse[:2].sum(), vector, create_graph=True)
    second = torch.autograd.grad(sum(one[:2].sum() for one in first), vector[0])[0]
    assert all(one[:2].tolist() == [0.0, pytest.approx(-3 * 27**-1.5)] for one in first)
    assert second[0] == 0.0
