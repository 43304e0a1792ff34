"""Radial bases and cutoffs: numbers against high precision, the ends, the knots, other envelopes, tables, messages."""

import math
import re
from collections.abc import Callable

import mpmath
import pytest
import torch
from e3nn.math import soft_one_hot_linspace

from eqlayers.errors import ConfigError
from eqlayers.nn import (
    BesselBasis,
    ChebyshevBasis,
    CosineBasis,
    CosineCutoff,
    FourierBasis,
    GaussianBasis,
    PolynomialCutoff,
    RadialNetwork,
    RadialTable,
    SmoothCutoff,
    SmoothFiniteBasis,
    TabledBasis,
)
from tests.cases import default_dtype
from tests.each import each

CUTOFF, START, NUMBER = 4.0, 0.5, 3
EPS = torch.finfo(torch.float64).eps
BASES = [GaussianBasis, CosineBasis, SmoothFiniteBasis, FourierBasis, ChebyshevBasis]


def orders(fn: Callable[[torch.Tensor], torch.Tensor], r: float, order: int = 3) -> list[list[float]]:
    """Value and derivatives of every function at one length."""
    x = torch.tensor(r, dtype=torch.float64, requires_grad=True)
    rows = []
    for y in fn(x).reshape(-1):
        row = [y]
        for _ in range(order):
            row.append(
                torch.autograd.grad(row[-1], x, create_graph=True)[0] if row[-1].requires_grad else y.new_zeros(())
            )
        rows.append([float(v.detach()) for v in row])
    return rows


def tangents(fn: Callable[[mpmath.mpf], mpmath.mpf], r: float, order: int = 3) -> list[float]:
    """Tangents in 50 digits."""
    with mpmath.workdps(50):
        return [float(mpmath.diff(fn, mpmath.mpf(r), n)) for n in range(order + 1)]


def bump(d: mpmath.mpf) -> mpmath.mpf:
    return mpmath.mpf("1.14136") * mpmath.exp(2 - 1 / (1 + d) - 1 / (1 - d)) if abs(d) < 1 else mpmath.mpf(0)


def step(v: mpmath.mpf) -> mpmath.mpf:
    def soft(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp(-1 / x) if x > 0 else mpmath.mpf(0)

    return soft(1 - v) / (soft(v) + soft(1 - v))


GAP = (CUTOFF - START) / (NUMBER + 1)  # between bumps that lie inside
#: Basis -> its functions in high precision, of a length and a number.
EXACT: dict[type, Callable[[mpmath.mpf, int], mpmath.mpf]] = {
    GaussianBasis: lambda r, n: mpmath.exp(-(((r - START) / GAP - n - 1) ** 2)) / mpmath.mpf("1.12"),
    CosineBasis: lambda r, n: mpmath.cos(mpmath.pi / 2 * ((r - START) / GAP - n - 1)),
    SmoothFiniteBasis: lambda r, n: bump((r - START) / GAP - n - 1),
    FourierBasis: lambda r, n: mpmath.sin(mpmath.pi * (n + 1) * (r - START) / (CUTOFF - START)) / mpmath.sqrt(1.75),
    ChebyshevBasis: lambda r, n: mpmath.chebyt(n, 1 - 2 * (r - START) / (CUTOFF - START)),
}


@each("kind", BASES)
@each("r", [0.5001, 0.9, 1.41, 2.2501, 3.1, 3.9, 3.9999])
def test_functions_and_three_derivatives(kind: type, r: float) -> None:
    found = orders(kind(NUMBER, CUTOFF, None, start=START), r)
    for n, row in enumerate(found):
        wanted = tangents(lambda x, n=n: EXACT[kind](x, n), r)
        if kind is CosineBasis and abs((r - START) / GAP - n - 1) >= 1:
            wanted = [0.0] * 4
        for order, (a, b) in enumerate(zip(row, wanted, strict=True)):
            # a bump's n-th derivative divides n roundings by s^2, where s is at least 1e-4 of the bump
            assert abs(a - b) <= 64 * EPS * 40**order, (n, order, a, b)


@pytest.mark.parametrize("name", ["gaussian", "cosine", "smooth_finite", "fourier"])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("number", [2, 8])
def test_bases_are_those_of_e3nn(name: str, inside: bool, number: int) -> None:
    """Also outside of both ends, on them, and on the middle of every function."""
    kinds = {
        "gaussian": GaussianBasis,
        "cosine": CosineBasis,
        "smooth_finite": SmoothFiniteBasis,
        "fourier": FourierBasis,
    }
    r = torch.cat([torch.linspace(-1, 5, 97), torch.linspace(0.5, 4.0, 8)]).double()
    with default_dtype(torch.float64):
        wanted = soft_one_hot_linspace(r, 0.5, 4.0, number, name, inside)
    found = kinds[name](number, 4.0, None, start=0.5, inside=inside)(r)
    torch.testing.assert_close(found, wanted, rtol=0, atol=64 * EPS * number)


@each("envelope", [PolynomialCutoff, CosineCutoff, SmoothCutoff])
@each("kind", [*BASES, BesselBasis])
def test_the_end_has_the_derivatives_that_it_names(kind: type, envelope: type) -> None:
    """At the cutoff and beyond all is 0; just before, so many derivatives are."""
    basis = kind(NUMBER, CUTOFF, envelope=envelope(CUTOFF))
    assert basis.continuous == envelope.continuous
    for r in (CUTOFF, 5.0, 1e30):
        assert orders(basis, r) == [[0.0] * 4] * NUMBER
    for row in orders(basis, CUTOFF * (1 - 1e-6)):
        for order in range(min(int(min(basis.continuous, 9)), 3) + 1):
            assert abs(row[order]) < 1e-3
    for r in (0.0, 1e-300, 1e-5):
        assert all(math.isfinite(v) for row in orders(basis, r) for v in row)


@pytest.mark.parametrize("kind", BASES)
def test_the_start_is_finite_and_smooth(kind: type) -> None:
    """At r = 0 the derivatives are those just after it."""
    basis = kind(NUMBER, CUTOFF, None)
    for a, b in zip(orders(basis, 0.0), orders(basis, 1e-9), strict=True):
        assert all(abs(x - y) < 1e-6 for x, y in zip(a, b, strict=True))


def test_bumps_at_their_knots() -> None:
    """On the middle of one, all others end: derivatives 0 of these, of the one 0, -4 and 0 by d."""
    basis = SmoothFiniteBasis(3, 4.0)
    for row, wanted in zip(orders(basis, 2.0), ([0.0] * 4, [1.14136, 0.0, -4 * 1.14136, 0.0], [0.0] * 4), strict=True):
        assert row == pytest.approx(wanted, abs=1e-12)
    for s in (1e-3, 1.4e-3, 1.5e-3, 1e-5, 1e-9, 1e-16):  # around where exp(-1/s) leaves the numbers
        assert all(math.isfinite(v) for row in orders(basis, 3.0 - s) for v in row)


@pytest.mark.parametrize("r", [0.3, 1.001, 1.03, 1.2, 1.8, 2.4999, 2.5, 2.5001, 3.3, 3.9, 3.97])
def test_the_smooth_cutoff_and_its_derivatives(r: float) -> None:
    (found,) = orders(SmoothCutoff(4.0, start=1.0), r)
    wanted = tangents(lambda x: step((x - 1) / 3), r)
    for order, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert abs(a - b) <= 64 * EPS * 20**order


@pytest.mark.parametrize("kind", [BesselBasis, *BASES])
def test_bases_are_nothing_at_infinity(kind: type) -> None:
    """Where padding puts an edge: values and derivatives, beside a length that is near and one that is far."""
    basis = kind(NUMBER, CUTOFF)
    assert orders(basis, math.inf, 0) == [[0.0]] * basis.num_basis
    lengths = torch.tensor([1.0, math.inf, 1.5], dtype=torch.float64, requires_grad=True)
    if kind is BesselBasis:
        assert orders(basis, math.inf, 3) == [[0.0] * 4] * basis.num_basis
        (slope,) = torch.autograd.grad(basis(lengths).square().sum(), lengths)
        assert bool(torch.isfinite(slope).all())
    torch.testing.assert_close(basis(lengths)[::2], basis(lengths[::2]), rtol=64 * EPS, atol=64 * EPS)


def test_cutoffs_at_their_ends() -> None:
    smooth, cosine = SmoothCutoff(4.0, start=1.0), CosineCutoff(4.0)
    for r in (0.0, 0.7, 1.0, 1.0 + 1e-12):
        assert orders(smooth, r, 5) == [[1.0] + [0.0] * 5]
    for r in (4.0 - 1e-12, 4.0, 5.0, 1e30, math.inf):
        assert orders(smooth, r, 5) == [[0.0] * 6]
    assert orders(cosine, 0.0, 1) == [[1.0, 0.0]]
    assert orders(cosine, 4.0) == [[0.0] * 4]
    (before,) = orders(cosine, 4.0 - 1e-7)
    assert before == pytest.approx([0, 0, math.pi**2 / 32, 0], abs=1e-6)
    assert orders(cosine, 1.3) == [
        pytest.approx(tangents(lambda x: (1 + mpmath.cos(mpmath.pi * x / 4)) / 2, 1.3), abs=1e-15)
    ]
    nan = torch.tensor(math.nan)
    assert all(bool(cut(nan).isnan()) for cut in (smooth, cosine, PolynomialCutoff(4.0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_numbers_have_finite_derivatives(dtype: torch.dtype) -> None:
    ends = torch.arange(6, dtype=dtype) * 0.8  # of the four bumps
    beside = [torch.nextafter(ends, torch.full_like(ends, to)) for to in (-1.0, 9.0)]
    far = torch.tensor([1e6, 1e12], dtype=dtype)  # where the last of nine polynomials is infinite
    x = torch.cat([torch.linspace(0, 5, 4001, dtype=dtype), ends, *beside, far]).requires_grad_()
    for layer in (SmoothCutoff(4.0), SmoothFiniteBasis(4, 4.0), ChebyshevBasis(9, 4.0)):
        y = layer(x)
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            assert y.dtype == dtype
            assert bool(torch.isfinite(y).all())


@pytest.mark.parametrize("kind", [GaussianBasis, SmoothFiniteBasis, FourierBasis, ChebyshevBasis, BesselBasis])
def test_networks_and_tables_take_any_basis(kind: type) -> None:
    network = RadialNetwork(2, hidden=(8,), basis=kind(6, CUTOFF)).double()
    assert sorted(network.state_dict()) == sorted(RadialNetwork(2, 6, hidden=(8,)).state_dict())
    r = torch.tensor([0.3, 1.7, 3.5, 4.0, 6.0], dtype=torch.float64)
    wanted = network(r)
    assert bool((wanted[:3].abs() > 1e-4).any())
    assert float(wanted[3:].detach().abs().max()) == 0
    table = RadialTable(network, knots=2048)
    assert (table.knots.cutoff, table.knots.end) == (CUTOFF, "flat")
    assert table.error().values < 1e-6
    torch.testing.assert_close(table(r).weights(), wanted, rtol=0, atol=1e-6)
    tabled = RadialNetwork(2, hidden=(8,), basis=TabledBasis(kind(6, CUTOFF), 2048)).double()
    tabled.load_state_dict(network.state_dict())
    torch.testing.assert_close(tabled(r).weights(), wanted, rtol=0, atol=1e-6)


def test_a_network_with_bessel_functions_keeps_its_numbers() -> None:
    """With `basis=` of what the other arguments make."""
    torch.manual_seed(0)
    one = RadialNetwork(3, 5, 4.0, (6,), 4)
    torch.manual_seed(0)
    other = RadialNetwork(3, hidden=(6,), basis=BesselBasis(5, 4.0, 4))
    r = torch.rand(7) * 5
    assert torch.equal(one(r), other(r))


def test_transformed_lengths_have_the_envelope_of_the_lengths() -> None:
    r = torch.tensor([0.7, 2.0, 3.9, 4.2], dtype=torch.float64)
    for kind in BASES:
        basis, bare = kind(3, CUTOFF, 6, start=START), kind(3, CUTOFF, None, start=START)
        wanted = bare(1 / (1 + r)) * PolynomialCutoff(CUTOFF)(r)[:, None]
        torch.testing.assert_close(basis(r, 1 / (1 + r)), wanted, rtol=0, atol=EPS * 64)


@pytest.mark.kernels
def test_text_and_scripting() -> None:
    assert repr(GaussianBasis(4, 5.0)).startswith(
        "GaussianBasis(\n  4 functions\n  (envelope): PolynomialCutoff(5.0 A, p=6)"
    )
    assert repr(CosineBasis(4, 5.0, None, inside=False)) == "CosineBasis(4 functions from 0 to 5 A, on the ends)"
    assert repr(SmoothCutoff(5.0, 1.0)) == "SmoothCutoff(from 1.0 to 5.0 A)"
    assert GaussianBasis(4, 5.0, None).continuous == -1
    assert SmoothFiniteBasis(4, 5.0).continuous == math.inf
    assert SmoothFiniteBasis(4, 5.0, inside=False).continuous == -1
    r = torch.rand(5) * 6
    for layer in (SmoothCutoff(), CosineCutoff(), *(kind(4) for kind in BASES)):
        torch.testing.assert_close(torch.jit.script(layer)(r), layer(r), rtol=0, atol=2.0**-20)


@each(
    "call, message",
    [
        (lambda: GaussianBasis(1, inside=False), "num_basis must be an integer, at least 2, got 1. 8 is usual."),
        (lambda: SmoothCutoff(3.0, start=-1.0), "start must be a finite number of at least 0 of Angstrom, got -1.0"),
        (lambda: RadialNetwork(3, basis=torch.nn.ReLU()), "basis.num_basis must be a number, at least 1, got None."),
    ],
)
def test_wrong_arguments(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        call()
