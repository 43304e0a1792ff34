"""Norms: e3nn's values, derivatives and state; zero slope at zero; both layouts."""

import random
from typing import Any

import hypothesis
import pytest
import torch
from e3nn import o3
from hypothesis import given
from hypothesis import strategies as st

from eqlayers import functional, to_ir_mul
from eqlayers.nn import MeanSquaredNorm, Norm


@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=4)  # each compiles kernels
def test_random_norms_equal_e3nn(twins: Any, number: int) -> None:
    dice = random.Random(number)
    irreps, squared = twins.irreps(dice, low=0, high=4, lmax=3), dice.choice([True, False])
    theirs = twins.e3nn(o3.Norm, irreps, squared)
    ours, flipped = Norm(irreps, squared).double(), Norm(irreps, squared, layout="ir_mul").double()
    assert (ours.irreps_in, ours.irreps_out, ours.squared) == (theirs.irreps_in, theirs.irreps_out, squared)
    x = torch.randn(2, 3, irreps.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
    reference = twins.two_orders(theirs, {"x": x}, ("x",))
    twins.assert_close(twins.two_orders(ours, {"x": x}, ("x",)), reference, 16)
    value = flipped(to_ir_mul(x, irreps))  # the output are scalars, the same in both layouts
    twins.assert_close({"value": value}, {"value": reference["value"]}, 16)


def test_state_travels_both_ways() -> None:
    ours, theirs = Norm("2x0e + 3x1o"), o3.Norm("2x0e + 3x1o")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert set(ours.state_dict()) >= {"tp.weight", "tp.output_mask"}
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert list(ours.parameters()) == []


@pytest.mark.parametrize("squared", [True, False])
def test_the_slope_at_zero_is_zero(squared: bool) -> None:
    x = torch.zeros(2, 11, requires_grad=True)
    norms = Norm("2x0e + 3x1o", squared)(x)
    (slope,) = torch.autograd.grad(norms.sum(), x, create_graph=not squared)
    assert torch.equal(norms, torch.zeros(2, 5))
    assert torch.equal(slope, torch.zeros(2, 11))


@pytest.mark.parametrize("squared", [True, False])
def test_three_derivatives_at_zero_are_finite(squared: bool) -> None:
    x = torch.zeros(2, 11, requires_grad=True)
    total = Norm("2x0e + 3x1o", squared)(x).sum()
    for _ in range(3):
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        assert bool(torch.isfinite(slope).all())
        total = slope.sum() + slope.square().sum()
    forward = torch.func.jacfwd(Norm("2x0e + 3x1o", squared))(torch.zeros(11))
    assert torch.equal(forward, torch.zeros(5, 11))


@pytest.mark.parametrize("scaled", [True, False])
def test_mean_squares_by_hand(scaled: bool) -> None:
    irreps = o3.Irreps("3x1o + 2x0e + 0x1e + 2x2e")
    x = torch.randn(4, 3, irreps.dim, dtype=torch.float64)
    squares = Norm(irreps, squared=True).double()(x)  # 3 + 2 + 2 of them
    sizes = torch.tensor([3.0, 3, 3, 1, 1, 5, 5], dtype=torch.float64) if scaled else 1.0
    squares = squares / sizes
    copies, batch = MeanSquaredNorm(irreps, scaled=scaled), MeanSquaredNorm(irreps, "batch", scaled)
    wanted = torch.stack([part.mean(-1) for part in squares.split([3, 2, 2], -1)], -1)
    torch.testing.assert_close(copies(x), wanted, rtol=1e-14, atol=0)
    torch.testing.assert_close(batch(x), squares.mean((0, 1)), rtol=1e-14, atol=0)
    assert (copies.irreps_out, batch.irreps_out) == (o3.Irreps("3x0e"), o3.Irreps("7x0e"))
    flipped = MeanSquaredNorm(irreps, "batch", scaled, layout="ir_mul")(to_ir_mul(x, irreps))
    torch.testing.assert_close(flipped, batch(x), rtol=1e-14, atol=0)
    assert torch.equal(batch(x[:0]), torch.zeros(7, dtype=torch.float64))


@pytest.mark.kernels
@pytest.mark.parametrize("squared", [True, False])
def test_half_precision_under_autocast_is_float32(squared: bool) -> None:
    x = torch.full((2, 3), 200.0, dtype=torch.float16)
    with torch.autocast("cpu", torch.bfloat16):
        for found in (Norm("1o", squared)(x), functional.norm(x, "1o", squared)):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, torch.full((2, 1), 120000.0 if squared else 120000.0**0.5))


def test_text() -> None:
    assert repr(Norm("3x1o + 2x1o", backend="torch")) == "Norm(5x1o | mul_ir, backend torch)"


def test_a_norm_of_nan_is_nan() -> None:
    x = torch.tensor([float("nan"), 0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0])
    for found in (Norm("3x1o")(x), functional.norm(x, "3x1o")):
        assert torch.equal(found.isnan(), torch.tensor([True, False, False]))
        assert found[1:].tolist() == [5.0, 0.0]


def test_repeated_irreps_in_ir_mul_are_read_group_by_group() -> None:
    v = torch.randn(4, 3, 3)
    x = torch.cat([v[:, :2].transpose(1, 2).flatten(1), v[:, 2]], 1)
    layer = Norm("2x1o + 1x1o", layout="ir_mul")
    for norms in (layer(x), functional.norm(x, "2x1o + 1x1o", layout="ir_mul")):
        torch.testing.assert_close(norms, v.norm(dim=2))
    assert (str(layer.irreps_in), str(Norm("2x1o + 1x1o").irreps_in)) == ("2x1o+1x1o", "3x1o")
