"""Second moments against integrals, parity of odd scalars, and the gate's equivariance."""

import math

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers.errors import DTypeError, ShapeError
from eqlayers.layers.gate.activation import ACTIVATIONS, second_moment
from eqlayers.nn import GatedNonlinearity, NormalizedActivation
from eqlayers.testing import check_derivatives
from tests.each import each


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


@pytest.mark.slow
def test_gate_has_three_derivatives() -> None:
    gate = GatedNonlinearity("1x0e + 1x0o + 2x1o")
    x = torch.randn(2, gate.irreps_in.dim).double().requires_grad_()
    assert check_derivatives(gate, [x], order=3, step=1e-3).ok
    inputs = [torch.randn(2, n).double().requires_grad_() for n in (10, 10, 8)]
    assert check_derivatives(gate, inputs, order=3, step=1e-3).ok


def by_groups(gate: GatedNonlinearity, x: Tensor) -> Tensor:
    """Group by group, with torch's activations, in float64."""
    count = gate.irreps_in.dim - gate.irreps_out.dim
    gates, x, out = gate.gate(x[:, :count]), x[:, count:], []
    for mul, ir in gate.irreps_out:
        block, x = x[:, : mul * ir.dim], x[:, mul * ir.dim :]
        if ir.l == 0:
            out.append((gate.even if ir.p == 1 else gate.odd)(block))
            continue
        factors, gates = gates[:, :mul], gates[:, mul:]
        ir_mul = gate.layout == "ir_mul"
        block = block.reshape(len(block), ir.dim, mul) if ir_mul else block.reshape(len(block), mul, ir.dim).mT
        block = block * factors[:, None, :]
        out.append((block if ir_mul else block.mT).reshape(len(block), -1))
    return torch.cat(out, 1)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("irreps", ["64x0e + 64x1o", "32x0e + 16x0o + 8x1o + 8x2e", "7x0e + 3x1o + 2x0o + 1x2e"])
def test_gate_is_that_of_its_groups_with_and_without_sums(irreps: str, layout: str, dtype: torch.dtype) -> None:
    gate = GatedNonlinearity(irreps, gate="silu", layout=layout)
    x, added, residual = (torch.randn(37, irreps.dim).to(dtype) for irreps in (*[gate.irreps_in] * 2, gate.irreps_out))
    eps, wide = torch.finfo(dtype).eps, [t.double() for t in (x, added, residual)]
    for found, want in (
        (gate(x), by_groups(gate, wide[0])),
        (gate(x, added), by_groups(gate, wide[0] + wide[1])),
        (gate(x, None, residual), by_groups(gate, wide[0]) + wide[2]),
        (gate(x, added, residual), by_groups(gate, wide[0] + wide[1]) + wide[2]),
    ):
        assert found.dtype == dtype
        # a rounding of the sum changes an activation by less than twice as much, and the product has two such factors
        assert float((found.double() - want).abs().max()) <= 16 * eps * (1 + float(want.abs().max()))


@pytest.mark.kernels
def test_gate_reads_views_and_mixtures_under_autocast() -> None:
    gate = GatedNonlinearity("8x0e + 8x1o", layout="ir_mul")
    wide = torch.randn(5, 2 * gate.irreps_in.dim)
    x = wide[:, : gate.irreps_in.dim]
    assert torch.equal(gate(x), gate(x.contiguous()))
    assert torch.equal(gate(wide.mT[: gate.irreps_in.dim].mT), gate(x))
    residual = torch.randn(5, gate.irreps_out.dim)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert gate(x.bfloat16(), x, residual).dtype == torch.float32
    with pytest.raises(DTypeError, match="residual must"):
        gate(x, None, residual.double())
    with pytest.raises(ShapeError, match="added must"):
        gate(x, residual)


@each("lead", [(), (0,), (2, 3)])
@each("irreps", ["", "3x0e", "2x1o", "2x0o + 0x1o"])
def test_gate_shapes(irreps: str, lead: tuple[int, ...]) -> None:
    gate = GatedNonlinearity(irreps)
    assert gate(torch.randn(*lead, gate.irreps_in.dim)).shape == (*lead, gate.irreps_out.dim)
