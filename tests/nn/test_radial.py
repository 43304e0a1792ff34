"""Radial functions: values at both ends, smoothness at the cutoff, and the network of weights."""

from __future__ import annotations

import math

import pytest
import torch

from eqlayers.nn import BesselBasis, PolynomialCutoff, RadialNetwork
from eqlayers.testing import check_derivatives


def derivatives(fn: torch.nn.Module, r: float, order: int) -> list[float]:
    """Value and derivatives at one length, summed over functions."""
    x = torch.tensor([r], dtype=torch.float64, requires_grad=True)
    y = fn(x).sum()
    out = [float(y.detach())]
    for _ in range(order):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
        y = y.sum()
        out.append(float(y.detach()))
    return out


@pytest.mark.parametrize("cutoff", [1.0, 5.0])
@pytest.mark.parametrize("p", [2, 3, 6])
def test_cutoff_is_smooth_at_both_ends(cutoff: float, p: int) -> None:
    envelope = PolynomialCutoff(cutoff, p)
    assert derivatives(envelope, 0.0, 1) == [1.0, 0.0]
    inside = derivatives(envelope, cutoff * (1 - 1e-9), 2)
    assert max(abs(v) for v in inside) < 1e-5  # value, slope and curvature vanish like (1 - u)^3 and its derivatives
    assert derivatives(envelope, cutoff, 2) == [0.0] * 3
    assert derivatives(envelope, 1.7 * cutoff, 2) == [0.0] * 3


@pytest.mark.parametrize("p", [2, 6])
def test_cutoff_falls_and_equals_its_formula(p: int) -> None:
    u = torch.linspace(0, 1, 201, dtype=torch.float64)
    f = PolynomialCutoff(3.0, p)(3 * u)
    formula = 1 - (p + 1) * (p + 2) / 2 * u**p + p * (p + 2) * u ** (p + 1) - p * (p + 1) / 2 * u ** (p + 2)
    torch.testing.assert_close(f, formula, rtol=0, atol=1e-13)
    assert (f.diff() <= 1e-15).all()


def test_bessel_basis_equals_its_formula_and_is_finite_at_zero() -> None:
    basis = BesselBasis(6, 4.0)
    r = torch.linspace(0.01, 4.5, 50, dtype=torch.float64)
    n = torch.arange(1, 7, dtype=torch.float64)
    formula = math.sqrt(2 / 4) * torch.sin(n * math.pi * r[:, None] / 4) / r[:, None]
    torch.testing.assert_close(basis(r), formula * basis.envelope(r)[:, None], rtol=0, atol=1e-13)
    at_zero = basis(torch.zeros(1, dtype=torch.float64))[0]
    torch.testing.assert_close(at_zero, math.sqrt(2 / 4) * math.pi / 4 * n, rtol=1e-14, atol=0)
    assert all(math.isfinite(v) for v in derivatives(basis, 0.0, 2))
    assert derivatives(basis, 4.0, 2) == [0.0] * 3


def test_bessel_functions_are_orthonormal_without_the_envelope() -> None:
    basis = BesselBasis(5, 3.0)
    r = torch.linspace(1e-6, 3 - 1e-6, 4001, dtype=torch.float64)
    values = basis(r) / basis.envelope(r)[:, None].clamp(min=1e-30)
    inside = r < 2.7  # beyond, the quotient by the envelope loses its digits
    values = torch.where(
        inside[:, None],
        values,
        math.sqrt(2 / 3) * torch.sin(torch.arange(1, 6) * math.pi * r[:, None] / 3) / r[:, None],
    )
    gram = torch.trapezoid(values[:, :, None] * values[:, None] * (r * r)[:, None, None], r, dim=0)
    torch.testing.assert_close(gram, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("hidden", [(), (16,), (8, 8)])
def test_network_vanishes_smoothly_at_the_cutoff(hidden: tuple[int, ...]) -> None:
    network = RadialNetwork(5, num_basis=4, cutoff=2.0, hidden=hidden).double()
    assert network(torch.tensor([1.0, 2.0, 9.0]).double())[1:].abs().max() == 0
    assert derivatives(network, 2.0, 2) == [0.0] * 3
    before = derivatives(network, 2.0 - 1e-6, 1)
    assert max(abs(v) for v in before) < 1e-6
    assert abs(derivatives(network, 1.0, 0)[0]) > 1e-3


def test_network_has_unit_weights_at_the_start() -> None:
    """Division by the root of the width: the variance of the output does not grow with the width."""
    narrow, wide = (RadialNetwork(400, hidden=(width,))(torch.full((1,), 1.0)).std() for width in (16, 1024))
    assert 0.3 < float(narrow.detach() / wide.detach()) < 3


def test_network_has_three_derivatives() -> None:
    network = RadialNetwork(2, num_basis=2, cutoff=2.0, hidden=(3,)).double()
    r = torch.tensor([0.4, 1.3], dtype=torch.float64, requires_grad=True)
    assert check_derivatives(network, [r], order=3, tolerance=1e-5).ok


def test_network_of_no_edges() -> None:
    assert RadialNetwork(7)(torch.zeros(0)).shape == (0, 7)
