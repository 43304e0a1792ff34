"""Spherical harmonics: e3nn's numbers and derivatives, the zero vector, very short and very long ones, bad input."""

import inspect
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

import eqlayers as eq
from eqlayers.nn import SphericalHarmonics
from eqlayers.testing import check_derivatives

KINDS = ("integral", "component", "norm")
LISTS: list[Any] = [0, 1, 5, [0, 1, 2, 3], [3, 1, 1, 0], "1o", "0e + 1o + 2e", "2x2e + 1o + 0e", "1e + 2e", [0, 11], 11]


def depth(layer: SphericalHarmonics) -> int:
    """Roundings of the largest degree: see tests/layers/harmonics/test_lower.py; each of three derivatives brings l."""
    l = layer._lmax
    return 2 * l * (l + 1) + 9 * l + 4


@pytest.mark.parametrize("normalization", KINDS)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("irreps", LISTS, ids=str)
def test_values_and_derivatives_are_e3nns(twins: Any, irreps: Any, normalize: bool, normalization: str) -> None:
    theirs = twins.e3nn(o3.SphericalHarmonics, irreps, normalize, normalization)
    ours = SphericalHarmonics(irreps, normalize, normalization, backend="torch")  # compiles nothing
    assert (ours.irreps_in, ours.irreps_out) == (theirs.irreps_in, theirs.irreps_out)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    reference = twins.two_orders(theirs, {"x": x}, ("x",))
    found = twins.two_orders(ours, {"x": x}, ("x",))
    twins.assert_close({name: found[name] for name in reference}, reference, depth(ours))  # none for l = 0 alone
    own = eq.functional.spherical_harmonics(irreps, x, normalize, normalization, backend="torch")
    assert torch.equal(own, ours(x))
    assert torch.equal(own, eq.o3.spherical_harmonics(irreps, x, normalize, normalization, backend="torch"))


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("normalize", [True, False])
def test_every_backend(twins: Any, normalize: bool, backend: str | None) -> None:
    theirs = twins.e3nn(o3.SphericalHarmonics, "0e + 1o + 2e + 3o", normalize, "component")
    ours = SphericalHarmonics("0e + 1o + 2e + 3o", normalize, "component", backend=backend)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    reference = twins.two_orders(theirs, {"x": x}, ("x",))
    twins.assert_close(twins.two_orders(ours, {"x": x}, ("x",)), reference, depth(ours))


@pytest.mark.parametrize("irreps_in", ["1o", "1e"])
def test_parities(irreps_in: str) -> None:
    odd = "o" if irreps_in == "1o" else "e"
    layer = SphericalHarmonics(f"1{odd} + 2e", True, irreps_in=irreps_in)
    assert layer.irreps_in == o3.Irreps(irreps_in)
    assert SphericalHarmonics([1, 2], True, irreps_in=irreps_in).irreps_out == layer.irreps_out


@pytest.mark.parametrize("normalize", [True, False])
def test_derivatives_to_third_order(normalize: bool) -> None:
    layer, x = SphericalHarmonics([0, 1, 3], normalize, "norm", backend="torch"), torch.randn(2, 3).double()
    x = x / x.norm(dim=-1, keepdim=True)  # no shorter: finite differences would see the fifth derivative
    check_derivatives(layer, [x.requires_grad_()], order=3)
    assert torch.autograd.gradcheck(layer, [x])
    assert torch.autograd.gradgradcheck(layer, [x], fast_mode=True)


def derivatives(layer: SphericalHarmonics, x: Tensor) -> list[Tensor]:
    """The value, and the first three derivatives of a sum of it."""
    x = x.detach().clone().requires_grad_()
    value = layer(x)
    weight = torch.linspace(1.0, 2.0, value.shape[-1], dtype=torch.float64).to(x.dtype)
    found, total = [value], (value * weight).sum()
    for _ in range(3):
        if not total.requires_grad:
            found.append(torch.zeros_like(x))
            continue
        (slope,) = torch.autograd.grad(total, x, create_graph=True, materialize_grads=True)
        found.append(slope)
        total = (slope * torch.arange(1.0, 4.0, dtype=x.dtype)).sum()
    return [t.detach() for t in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_zero_vector(normalize: bool, dtype: torch.dtype) -> None:
    """Has the values of e3nn, and finite derivatives; with ``normalize`` they are 0."""
    x = torch.randn(3, 3, dtype=dtype)
    x[1] = 0.0
    layer = SphericalHarmonics([0, 1, 2, 3, 4], normalize, "component")
    value, *slopes = derivatives(layer, x)
    assert torch.equal(value[1], o3.spherical_harmonics([0, 1, 2, 3, 4], x[1], normalize, "component"))
    assert all(slope.isfinite().all() for slope in slopes)
    assert slopes[0][0].abs().min() > 0
    if normalize:
        assert all(torch.equal(slope[1], torch.zeros(3, dtype=dtype)) for slope in slopes)


@pytest.mark.parametrize("size", [1e-8, 1e-7, 1e-5, 1e-3, 1.0, 1e3, 1e10])
def test_short_and_long_vectors_in_float32(size: float) -> None:
    x = torch.nn.functional.normalize(torch.randn(200, 3), dim=-1) * size
    x[0, :2] = 0.0
    layer = SphericalHarmonics([0, 1, 2, 3], True, "component")
    (value, slope, *rest), (value64, slope64, *_) = derivatives(layer, x), derivatives(layer, x.double())
    # largest component sqrt(7); a slope is at most l + 1 times the value, summed over components with weights to 2
    eps, largest = torch.finfo(torch.float32).eps, 7**0.5
    assert (value - value64).abs().max() <= eps * depth(layer) * largest
    assert (slope - slope64).abs().max() * size <= eps * depth(layer) * largest * 4 * 2 * 16**0.5
    assert all(derivative.isfinite().all() for derivative in rest)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e-9), (torch.float64, 1e-50)])
def test_vectors_that_count_as_zero(dtype: torch.dtype, size: float) -> None:
    layer = SphericalHarmonics([0, 1, 2], True, "norm")
    below, above = (torch.tensor([0.0, factor * size, 0.0], dtype=dtype) for factor in (0.9, 1.1))
    zero, axis = layer(torch.zeros(3, dtype=dtype)), layer(torch.tensor([0.0, 1.0, 0.0], dtype=dtype))
    assert torch.equal(layer(below), zero)
    assert zero.tolist() == [1.0] + [0.0] * 8
    torch.testing.assert_close(layer(above), axis, rtol=8 * torch.finfo(dtype).eps, atol=0)


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(("normalize", "bad"), [(True, NAN), (False, NAN), (True, INFINITE), (False, INFINITE)])
def test_nan_and_infinity_spread(normalize: bool, bad: float) -> None:
    """Components that are NaN in e3nn are not finite here; an infinite vector has no direction, so some are 0."""
    x = torch.randn(4, 3)
    x[range(3), range(3)] = bad
    ours, theirs = (f([0, 1, 2, 3], x, normalize) for f in (eq.o3.spherical_harmonics, o3.spherical_harmonics))
    assert ours[3].isfinite().all()
    assert ours[:, 0].isfinite().all()
    if normalize and bad == bad:
        assert (~ours[:3, 1:4].isfinite()).equal(~theirs[:3, 1:4].isfinite())
    else:
        assert (~ours.isfinite())[~theirs.isfinite()].all()


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 0, 3), (4, 3), (2, 3, 4, 3)])
@pytest.mark.parametrize("normalize", [True, False])
def test_leading_axes(shape: tuple[int, ...], normalize: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = SphericalHarmonics("0e + 1o + 2e", normalize)(x)
    assert y.shape == (*shape[:-1], 9)
    rows = SphericalHarmonics("0e + 1o + 2e", normalize)(x.reshape(-1, 3))
    assert torch.equal(y.reshape(-1, 9), rows)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.shape == x.shape


def test_strided_vectors() -> None:
    layer, wide = SphericalHarmonics([1, 2, 3], True), torch.randn(4, 6, 10, dtype=torch.float64)
    views = [
        wide[..., 1:4],
        wide[..., ::4],
        wide.transpose(0, 2)[..., :3],
        wide[0, 0, :3].expand(5, 3),
        wide[1, ::2, 7:],
    ]
    for x in views:
        assert not x.is_contiguous()
        assert torch.equal(layer(x), layer(x.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", [None, "torch"])
def test_half_precision_is_computed_in_float32(backend: str | None, dtype: torch.dtype) -> None:
    x = (torch.randn(20, 3) * 3).to(dtype).requires_grad_()
    layer = SphericalHarmonics([0, 1, 2, 3], True, "component", backend=backend)
    y = layer(x)
    assert torch.equal(y, layer(x.float()).to(dtype))
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.dtype == dtype
    assert slope.isfinite().all()


@pytest.mark.kernels
def test_what_users_of_e3nn_see() -> None:
    ours, theirs = SphericalHarmonics([2, 0], False, "norm"), o3.SphericalHarmonics([2, 0], False, "norm")
    assert eq.o3.SphericalHarmonics is SphericalHarmonics
    for name in (
        "normalize",
        "normalization",
        "irreps_in",
        "irreps_out",
        "_ls_list",
        "_lmax",
        "_is_range_lmax",
        "_prof_str",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    for mine, other in (
        (SphericalHarmonics, o3.SphericalHarmonics),
        (eq.o3.spherical_harmonics, o3.spherical_harmonics),
    ):
        parameters = [[(p.name, p.default) for p in inspect.signature(f).parameters.values()] for f in (mine, other)]
        assert parameters[0] == [*parameters[1], ("backend", None)]
    assert list(ours.state_dict()) == list(theirs.state_dict()) == []
    assert repr(ours) == "SphericalHarmonics(1x1o -> 1x2e+1x0e | of vectors, norm, backend auto)"
    assert repr(SphericalHarmonics(1, True, backend="torch")).endswith("| of directions, integral, backend torch)")
