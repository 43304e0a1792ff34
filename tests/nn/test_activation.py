"""Second moments against integrals, parity of odd scalars, and the gate's equivariance."""

from __future__ import annotations

import math

import pytest
import torch
from e3nn import o3

from eqlayers.nn import GatedNonlinearity, NormalizedActivation
from eqlayers.nn.activation import ACTIVATIONS, second_moment
from eqlayers.testing import check_derivatives, equivariance_residual


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_second_moment_against_the_trapezoidal_rule(name: str) -> None:
    """The integrand vanishes at both ends with all derivatives, so the rule converges faster than any power."""
    z = torch.linspace(-14, 14, 20_001, dtype=torch.float64)
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    integral = float(torch.trapezoid(ACTIVATIONS[name][0](z) ** 2 * density, z))
    assert abs(second_moment(name) - integral) < 1e-9
    normed = float(torch.trapezoid(NormalizedActivation(name)(z) ** 2 * density, z))
    assert abs(normed - 1) < 1e-9


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_table_tells_which_activations_are_odd(name: str) -> None:
    z = torch.randn(50).double()
    function, odd = ACTIVATIONS[name]
    assert torch.allclose(function(-z), -function(z), rtol=0, atol=1e-15) == odd


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("determinant", [1, -1])
@pytest.mark.parametrize("irreps", ["4x0e + 3x0o + 2x1o + 2x2e", "2x1o + 3x0e + 1x1e + 1x0o + 2x1o", "3x1o", "3x0e"])
def test_gate_is_equivariant(irreps: str, determinant: int, layout: str) -> None:
    gate = GatedNonlinearity(irreps, layout=layout)
    residual = equivariance_residual(gate, [gate.irreps_in], gate.irreps_out, determinant=determinant, layout=layout)
    assert residual < 1e-13


def test_gate_value() -> None:
    """Scalars through their activation; each copy of the vector times its own activated gate."""
    gate = GatedNonlinearity("1x1o + 2x0e + 1x0o + 1x2e")
    assert gate.irreps_in == o3.Irreps("2x0e + 1x1o + 2x0e + 1x0o + 1x2e")
    x = torch.randn(3, gate.irreps_in.dim).double()
    silu, tanh, sigmoid = (NormalizedActivation(n) for n in ("silu", "tanh", "sigmoid"))
    expected = torch.cat(
        [x[:, 2:5] * sigmoid(x[:, :1]), silu(x[:, 5:7]), tanh(x[:, 7:8]), x[:, 8:] * sigmoid(x[:, 1:2])], -1
    )
    torch.testing.assert_close(gate(x), expected, rtol=0, atol=1e-14)


def test_gate_has_three_derivatives() -> None:
    gate = GatedNonlinearity("1x0e + 1x0o + 2x1o")
    x = torch.randn(2, gate.irreps_in.dim).double().requires_grad_()
    assert check_derivatives(gate, [x], order=3, step=1e-3).ok


@pytest.mark.parametrize("lead", [(), (0,), (2, 3)])
@pytest.mark.parametrize("irreps", ["", "3x0e", "2x1o", "2x0o + 0x1o"])
def test_gate_shapes(irreps: str, lead: tuple[int, ...]) -> None:
    gate = GatedNonlinearity(irreps)
    assert gate(torch.randn(*lead, gate.irreps_in.dim)).shape == (*lead, gate.irreps_out.dim)
