"""Radial functions: values at both ends, smoothness at the cutoff, and the network of weights."""

import math

import mpmath
import pytest
import torch

from eqlayers import Graph
from eqlayers.errors import ConfigError
from eqlayers.layers.radial import functions as radial
from eqlayers.layers.radial.functions import sin_over
from eqlayers.layers.radial.module import ScalarNetwork
from eqlayers.nn import AgnesiTransform, BesselBasis, CosineCutoff, PolynomialCutoff, RadialNetwork, SmoothCutoff
from eqlayers.testing import check_derivatives
from tests.each import each


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


@pytest.mark.parametrize("many", [0, 256], ids=["in one call", "by torch"])
def test_network_has_three_derivatives(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqlayers.layers.radial.module.MANY", many)
    network = RadialNetwork(2, num_basis=2, cutoff=2.0, hidden=(3,)).double()
    r = torch.tensor([0.4, 1.3], dtype=torch.float64, requires_grad=True)
    assert check_derivatives(network, [r], order=3, tolerance=1e-5).ok


def test_network_of_no_edges() -> None:
    assert RadialNetwork(7)(torch.zeros(0)).shape == (0, 7)


def sinc_derivative(t: float, order: int) -> mpmath.mpf:
    """A derivative of sin(t) / t by its power series, in 40 digits."""
    with mpmath.workdps(40):
        x = mpmath.mpf(t)
        terms = [(n, 2 * n - order) for n in range((order + 1) // 2, 40)]
        return mpmath.fsum((-1) ** n * mpmath.ff(2 * n, order) * x**p / mpmath.factorial(2 * n + 1) for n, p in terms)


@each("t", [0.0, 1e-8, 0.05, 0.12, 0.199, 0.2, 0.201, 0.25, 0.5, 1.5, 3.0, 9.0])
def test_sine_over_its_argument_and_its_derivatives(t: float) -> None:
    """Below 0.2 the series leaves its first missing term; above, every order divides the rounding error by t."""
    eps = 2.0**-53
    x = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    y = sin_over(x, 0.2)
    for order in range(4):
        missing = math.perm(12, order) * t ** (12 - order) / math.factorial(13)
        bound = 1.1 * missing + 4 * eps if t < 0.2 else 16 * eps * max(1.0, 1 / t) ** order
        assert abs(float(mpmath.mpf(y.item()) - sinc_derivative(t, order))) <= bound, order
        if order < 3:
            (y,) = torch.autograd.grad(y, x, create_graph=True)


def all_orders(layer: torch.nn.Module, r: torch.Tensor) -> list[torch.Tensor]:
    """Values, and the first to third derivatives of their sum."""
    found = [layer(r)]
    for _ in range(3):
        found.append(torch.autograd.grad(found[-1].sum(), r, create_graph=True)[0])
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_short_length_changes_no_number_of_others(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    look = radial.all_between
    monkeypatch.setattr(radial, "all_between", lambda *given: (looks.append(look(*given)), looks[-1])[1])
    basis = BesselBasis(8, 5.0, envelope=CosineCutoff(5.0))  # with which no formula computes them
    r = torch.linspace(0.4, 6.0, 40, dtype=dtype)
    long, mixed = r.clone().requires_grad_(), torch.cat([torch.tensor([0.0, 0.3], dtype=dtype), r]).requires_grad_()
    for alone, among in zip(all_orders(basis, long), all_orders(basis, mixed), strict=True):
        assert bool((alone == among[2:]).all())
        assert bool(among.isfinite().all())
    assert looks == [True, False]
    with torch.inference_mode():
        assert bool((basis(r) == basis(mixed)[2:]).all())


def test_a_length_at_the_bound_has_one_number() -> None:
    """A length of which the quotient and the bound of the series round to different sides."""
    r = torch.tensor([0.23554931581020355], requires_grad=True)
    mixed = torch.tensor([0.23554931581020355, 0.0], requires_grad=True)
    basis = BesselBasis(4, 3.7, envelope=CosineCutoff(3.7))
    for alone, among in zip(all_orders(basis, r), all_orders(basis, mixed), strict=True):
        assert bool((alone == among[:1]).all())


def test_gradients_in_half_precision_do_not_depend_on_a_short_length() -> None:
    r = torch.linspace(0.5, 6, 50, dtype=torch.float16)
    mixed = torch.cat([r.new_zeros(1), r]).requires_grad_()
    (grad,) = torch.autograd.grad(radial.bessel(mixed, 32, 5.0).sum(), mixed)
    assert bool(grad.isfinite().all())


@pytest.mark.kernels
def test_lengths_are_not_looked_at_where_values_do_not_count() -> None:
    basis = BesselBasis(3, 5.0, envelope=CosineCutoff(5.0)).double()
    r = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    mapped = torch.func.vmap(basis)(r[:, None])[:, 0]
    torch.testing.assert_close(mapped, basis(r), rtol=1e-15, atol=0)
    traced = torch.jit.trace(basis, (r,))
    at_zero = torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(traced(at_zero), basis(at_zero), rtol=0, atol=0)
    compiled = torch.compile(basis, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(at_zero), basis(at_zero), rtol=0, atol=0)


@pytest.mark.parametrize("p", [2, 2.5, 6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_envelope_is_nothing_beyond_the_cutoff(dtype: torch.dtype, p: float) -> None:
    r = torch.tensor([5.0, 5.5, 1e4, math.inf], dtype=dtype, requires_grad=True)
    for cut in (PolynomialCutoff(5.0, p), SmoothCutoff(5.0)):
        assert all(float(v.detach().abs().max()) == 0 for v in all_orders(cut, r))
        (grad,) = torch.autograd.grad(cut(nan := (r * torch.nan)).sum(), nan)
        assert bool(cut(nan).isnan().all())
        assert bool(grad.isnan().all())
        assert bool((cut(torch.linspace(4.9, 5.0, 1000, dtype=dtype)) >= 0).all())


@pytest.mark.parametrize("p", [2, 2.5, 6])
def test_derivatives_of_an_envelope_next_to_the_cutoff(p: float) -> None:
    """Where its value is below the rounding of 1, no derivative is cut off with the value."""
    away = torch.tensor([1e-9, 1e-7, 1e-6, 1e-5], dtype=torch.float64)
    r = (5.0 - away).requires_grad_()
    value, first, second, third = (v.detach() for v in all_orders(PolynomialCutoff(5.0, p), r))
    top = p * (p + 1) * (p + 2) / 125
    assert bool((value >= 0).all())
    torch.testing.assert_close(third, torch.full_like(third, -top), rtol=1e-3, atol=0)
    torch.testing.assert_close(second, top * away, rtol=1e-3, atol=1e3 * torch.finfo(torch.float64).eps)
    torch.testing.assert_close(first, -top / 2 * away**2, rtol=1e-3, atol=1e3 * torch.finfo(torch.float64).eps)


def test_lengths_of_any_shape() -> None:
    lengths = torch.rand(4, 8) * 6
    for module, tail in ((BesselBasis(3), (3,)), (RadialNetwork(5), (5,)), (PolynomialCutoff(), ())):
        flat = module(lengths.reshape(-1))
        rounding = {"rtol": 0, "atol": 72 * 2.0**-24}  # of sums of 64 and of 8 numbers below 1
        torch.testing.assert_close(module(lengths), flat.reshape(4, 8, *tail), **rounding)
        torch.testing.assert_close(module(lengths[0, 0]), flat[0], **rounding)


def test_a_length_that_is_no_number_stays_one() -> None:
    lengths = torch.tensor([1.0, float("nan"), 7.0])
    for module in (PolynomialCutoff(), BesselBasis(), RadialNetwork(2)):
        found = module(lengths).reshape(3, -1)
        assert found[1].isnan().all()
        assert found[[0, 2]].isfinite().all()


def test_a_power_between_integers() -> None:
    u = torch.linspace(0, 1, 50, dtype=torch.float64)
    low, middle, high = (PolynomialCutoff(1.0, p)(u) for p in (5, 5.5, 6))
    assert ((low <= middle) & (middle <= high)).all()
    assert repr(PolynomialCutoff(1.0, 6.0)) == "PolynomialCutoff(1.0 A, p=6)"


@pytest.mark.kernels
def test_radial_functions_can_be_scripted() -> None:
    lengths = torch.rand(5) * 6
    for module in (PolynomialCutoff(), BesselBasis(3)):
        torch.testing.assert_close(torch.jit.script(module)(lengths), module(lengths), rtol=0, atol=2.0**-22)


def test_the_agnesi_transform_is_its_formula() -> None:
    species, q, p, a = [1, 8, 26], 0.9, 4.5, 1.1
    layer = AgnesiTransform(species, q, p, a)
    graph = Graph(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3)
    kind, r = torch.tensor([2, 0, 1]), torch.tensor([0.3, 1.0, 2.5, 6.0], dtype=torch.float64)
    radii = torch.tensor([1.32, 0.31, 0.66], dtype=torch.float64)  # of iron, hydrogen, oxygen
    u = 2 * r / (radii[graph.edge_index[0]] + radii[graph.edge_index[1]])
    torch.testing.assert_close(layer(r, kind, graph), 1 / (1 + a * u**q / (1 + u ** (q - p))), rtol=1e-14, atol=0)
    falling = layer(torch.linspace(0, 9, 50, dtype=torch.float64), kind[:2] * 0, Graph(torch.tensor([[0] * 50] * 2), 2))
    assert falling[0] == 1
    assert (falling.diff() < 0).all()


def test_functions_of_transformed_lengths_have_the_envelope_of_the_lengths() -> None:
    basis, r = BesselBasis(5, 4.0, p=3), torch.tensor([0.5, 2.0, 3.9], dtype=torch.float64)
    moved = r.square() / 4
    expected = basis.functions(moved) * basis.envelope(r)[:, None]
    torch.testing.assert_close(basis(r, moved), expected, rtol=1e-12, atol=0)


def test_the_power_of_a_radial_network() -> None:
    torch.manual_seed(1)
    first = RadialNetwork(3, hidden=(), p=3)
    assert (first.basis.envelope.p, RadialNetwork(3).basis.envelope.p) == (3, 6)
    r = torch.tensor([2.0])
    second = RadialNetwork(3, hidden=())
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(first(r) / first.basis.envelope(r), second(r) / second.basis.envelope(r))


def test_layers_are_products_scaled_by_the_root_of_their_width() -> None:
    network = ScalarNetwork([4, 6, 2], "tanh").double()
    x = torch.randn(5, 4, dtype=torch.float64)
    first, second = network.weights
    expected = network.activation(x @ first / 2) @ second / math.sqrt(6)
    torch.testing.assert_close(network(x), expected, rtol=1e-13, atol=1e-14)


def test_an_element_without_a_radius_is_told() -> None:
    with pytest.raises(ConfigError, match="z must be an element with a covalent radius, 1 to 96, got 100"):
        AgnesiTransform([1, 100])
