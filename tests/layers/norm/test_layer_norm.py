"""Layer norm and root mean squares against their definitions, term by term; zeros; options."""

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers import to_ir_mul
from eqlayers.nn import LayerNorm, RMSNorm
from eqlayers.testing import check_derivatives

IRREPS = o3.Irreps("3x1o + 4x0e + 0x1e + 2x0o + 5x2e + 2x0e")
EPS = torch.finfo(torch.float64).eps


def by_hand(layer: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    """Group by group and row by row, in 'mul_ir'."""
    out, squares, copy, scalar = [], [], 0, 0
    groups = [
        (mul, ir, x[:, s].reshape(-1, mul, ir.dim)) for s, (mul, ir) in zip(IRREPS.slices(), IRREPS, strict=True) if mul
    ]
    centred = []
    for _, ir, block in groups:
        if isinstance(layer, LayerNorm) and ir == o3.Irrep("0e"):
            block = block - block.mean(1, keepdim=True)
        centred.append(block)
        size = ir.dim if layer.normalization == "component" else 1
        squares.append((block.square().sum(2) / size).mean(1))
    if isinstance(layer, RMSNorm) and layer.over == "all":
        squares = [torch.stack(squares).mean(0)] * len(squares)
    for (mul, ir, _), block, mean in zip(groups, centred, squares, strict=True):
        y = block / (mean + layer.eps).sqrt()[:, None, None]
        if layer.weight is not None:
            y = y * layer.weight[copy : copy + mul, None]
        if isinstance(layer, LayerNorm) and layer.bias is not None and ir == o3.Irrep("0e"):
            y = y + layer.bias[scalar : scalar + mul, None]
            scalar += mul
        copy += mul
        out.append(y.flatten(1))
    return torch.cat(out, 1)


LAYERS = {
    "layer norm": lambda irreps=IRREPS, **kw: LayerNorm(irreps, eps=1e-2, **kw),
    "layer norm, norm": lambda irreps=IRREPS, **kw: LayerNorm(irreps, normalization="norm", **kw),
    "layer norm without weights": lambda irreps=IRREPS, **kw: LayerNorm(irreps, affine=False, **kw),
    "rms": lambda irreps=IRREPS, **kw: RMSNorm(irreps, **kw),
    "rms over all": lambda irreps=IRREPS, **kw: RMSNorm(irreps, "all", eps=1e-2, **kw),
    "rms over all, norm": lambda irreps=IRREPS, **kw: RMSNorm(irreps, "all", affine=False, normalization="norm", **kw),
}


@pytest.mark.parametrize("name", LAYERS)
def test_definition(name: str) -> None:
    layer = LAYERS[name]().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    x = 1 + 2 * torch.randn(7, IRREPS.dim, dtype=torch.float64)
    wanted = by_hand(layer, x)
    assert torch.allclose(layer(x), wanted, rtol=256 * EPS, atol=256 * EPS)
    assert torch.equal(layer(x.reshape(7, 1, -1))[:, 0], layer(x))
    flipped = LAYERS[name](layout="ir_mul").double()
    flipped.load_state_dict(layer.state_dict())
    assert torch.allclose(flipped(to_ir_mul(x, IRREPS)), to_ir_mul(wanted, IRREPS), rtol=256 * EPS, atol=256 * EPS)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", LAYERS)
def test_three_derivatives_at_zero_are_finite(name: str) -> None:
    layer = LAYERS[name]("2x0e + 1x1o")
    x = torch.zeros(2, 5, requires_grad=True)
    value = layer(x)
    if not isinstance(layer, LayerNorm) or layer.bias is None:
        assert torch.equal(value, torch.zeros_like(value))
    total = value.sum() + value.square().sum()
    for _ in range(3):
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        assert bool(torch.isfinite(slope).all())
        total = slope.sum() + slope.square().sum()


@pytest.mark.parametrize("irreps", ["4x0e", "3x0e + 2x1o + 2x0e"])
def test_derivatives_to_the_fourth_order(irreps: str) -> None:
    """All elements take part: torch's own layer norm has wrong third derivatives, by autograd and in forward mode."""
    layer = LayerNorm(irreps, eps=0.1).double()
    names = [name for name, _ in layer.named_parameters()]
    operands = [torch.randn(3, o3.Irreps(irreps).dim, dtype=torch.float64), torch.randn(layer.weight.shape).double()]
    operands += [torch.randn(layer.bias.shape).double()]

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    check_derivatives(run, [t.requires_grad_() for t in operands], order=4, max_elements=1)
    x, direction = operands[0].detach(), torch.randn(operands[0].shape, dtype=torch.float64)
    weights = [t.detach() for t in operands[1:]]
    length = torch.zeros((), dtype=torch.float64)

    def along(t: Tensor) -> Tensor:
        return run(x + t * direction, *weights).pow(3).sum()

    once, reverse = torch.func.grad(along), torch.func.grad(torch.func.grad(torch.func.grad(along)))
    thrice = torch.func.jacfwd(torch.func.jacfwd(once))
    torch.testing.assert_close(thrice(length), reverse(length))
    t = length.clone().requires_grad_()
    derivative = along(t)
    for _ in range(3):
        (derivative,) = torch.autograd.grad(derivative, t, create_graph=True)
    torch.testing.assert_close(derivative.detach(), reverse(length))


def test_sizes_of_degrees() -> None:
    """Per irrep all degrees get the same size; over all their ratio stays."""
    x = torch.randn(4000, 20) * torch.tensor([1.0] * 8 + [5.0] * 12)
    layer = RMSNorm("8x0e + 4x1o")
    assert torch.allclose(layer(x)[:, 8:].square().mean(1), torch.ones(4000), atol=1e-3)
    y = RMSNorm("8x0e + 4x1o", "all")(x)
    assert torch.allclose(y / x, (y / x)[:, :1].expand_as(x), rtol=1e-5)
    balanced = y[:, :8].square().mean(1) + y[:, 8:].square().mean(1)  # as many vectors or few, they count alike
    assert torch.allclose(balanced, torch.full((4000,), 2.0), atol=1e-3)


@pytest.mark.kernels
def test_text() -> None:
    text = "LayerNorm(2x0e+1x1o, eps=1e-05, without weights, norm | ir_mul, backend auto)"
    assert repr(LayerNorm("2x0e + 1o", affine=False, normalization="norm", layout="ir_mul")) == text
    assert repr(RMSNorm("1o", "all")) == "RMSNorm(1x1o, over=all, eps=1e-05 | mul_ir, backend auto)"
