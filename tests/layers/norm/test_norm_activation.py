"""Functions of norms: e3nn's numbers, what e3nn's layer cannot do, and derivatives at and near zero."""

from typing import Any

import pytest
import torch
from e3nn import nn as theirs
from e3nn import o3

from eqlayers.errors import ConfigError, ShapeError
from eqlayers.nn import NormActivation
from eqlayers.testing import check_derivatives

IRREPS = "2x1o + 3x0e + 1x0o + 1x1o + 2x2e"


@pytest.mark.thinned(4)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("epsilon", [None, 0.7])
def test_numbers_and_state_of_e3nn(twins: Any, bias: bool, epsilon: float | None) -> None:
    reference = twins.e3nn(theirs.NormActivation, o3.Irreps(IRREPS), torch.sigmoid, epsilon=epsilon, bias=bias)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_()
    ours = NormActivation(IRREPS, torch.sigmoid, epsilon=epsilon, bias=bias).double()
    assert list(ours.state_dict()) == list(reference.state_dict())
    ours.load_state_dict(reference.state_dict())
    reference.load_state_dict(ours.state_dict())
    x = torch.randn(5, ours.irreps_in.dim, dtype=torch.float64)  # some norms are below 0.7
    twins.assert_close(twins.two_orders(ours, {"x": x}, ("x",)), twins.two_orders(reference, {"x": x}, ("x",)), 64)


def test_not_normalized_by_hand() -> None:
    layer = NormActivation("2x1o", torch.cos, normalize=False, bias=True).double()
    with torch.no_grad():
        layer.biases.copy_(torch.tensor([0.5, -2.0]))
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    wanted = x * torch.cos(x.norm(dim=-1) + layer.biases)[..., None]
    torch.testing.assert_close(layer(x.flatten(1)), wanted.flatten(1), rtol=1e-14, atol=1e-15)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("normalize", [True, False])
def test_three_derivatives_at_zero_are_finite(normalize: bool, dtype: torch.dtype) -> None:
    layer = NormActivation("1x0e + 1x1o", torch.sigmoid, normalize, bias=True).to(dtype)
    x = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    total = layer(x).sum()
    for order in range(3):
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        assert bool(torch.isfinite(slope).all())
        if order == 0:  # a factor that does not change: sigmoid(1e-8) / 1e-8, or sigmoid(0)
            torch.testing.assert_close(slope, torch.full_like(x, 0.5e8 if normalize else 0.5), rtol=1e-6, atol=0)
        else:
            assert not slope.any()
        total = (slope * torch.arange(4)).sum() + layer(x).square().sum() * 0


def test_derivatives_with_a_smallest_norm() -> None:
    x = torch.tensor(
        [[0.1, 0.2, 0.3, 1.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True
    )  # one below it, one above
    assert check_derivatives(NormActivation("2x1o", torch.tanh, epsilon=0.8), [x], order=3).ok


@pytest.mark.kernels
def test_text_and_bad_input() -> None:
    text = repr(NormActivation("2x1o", torch.sigmoid, bias=True)).splitlines()[1]
    assert text == "  2x1o, sigmoid, epsilon=1e-08, bias | mul_ir, backend auto"
    with pytest.raises(ConfigError, match=r"epsilon must .*got 0\.1"):
        NormActivation("1o", torch.sigmoid, False, 0.1)
    with pytest.raises(
        ShapeError, match=r"the result of scalar_nonlinearity must be \[2, 1\], as its argument, got \[2\]"
    ):
        NormActivation("1o", lambda n: n.sum(-1))(torch.ones(2, 3))
