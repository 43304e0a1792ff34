"""Corners that tests of single layers did not look into: roundings at the cutoff, no copies, other devices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import nn as theirs
from e3nn import o3

from eqlayers.errors import ConfigError, DTypeError, IndexRangeError
from eqlayers.functional import edge_softmax
from eqlayers.nn import (
    AttentionAggregate,
    BatchNorm,
    BatchRMSNorm,
    DropPath,
    FormulaLayer,
    FullyConnectedTensorProduct,
    LayerNorm,
    Linear,
    Norm,
    NormActivation,
    PolynomialCutoff,
    RMSNorm,
    SmoothCutoff,
    SO2Convolution,
    SpeciesLinear,
)
from tests.cases import default_dtype

EDGE = torch.tensor([[0], [1]])


@pytest.mark.parametrize("p", [2, 6, 10, 50, 4.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_envelopes_have_the_digits_of_their_dtype_at_the_cutoff(p: float, dtype: torch.dtype) -> None:
    """A difference of large numbers, of which nothing would be left: it went below 0."""
    r = torch.linspace(4.0, 5.0, 4001, dtype=torch.float64).to(dtype)
    cutoff = PolynomialCutoff(5.0, p)
    found, wanted = cutoff(r), cutoff(r.double())
    assert found.dtype == dtype
    assert float(found.min()) >= 0
    assert bool(((found.double() - wanted).abs() <= torch.finfo(dtype).eps * wanted.abs() + 1e-13 * p**2).all())


@pytest.mark.parametrize("cutoff", [PolynomialCutoff(5.0), SmoothCutoff(5.0)], ids=["polynomial", "smooth"])
@pytest.mark.parametrize("logit", [1.5, 13.0, 15.0, 60.0])
def test_weights_stay_shares_up_to_the_cutoff(cutoff: torch.nn.Module, logit: float) -> None:
    layer, wide = AttentionAggregate("1x0e").requires_grad_(False), AttentionAggregate("1x0e").double()
    for r in torch.linspace(4.9, 5.0, 101):
        at, given = r.clone().requires_grad_(), torch.full((1, 1), logit)
        z = layer(torch.ones(1, 1), given, EDGE, 2, cutoff(at).reshape(1))[1, 0]
        exact = wide(torch.ones(1, 1).double(), given.double(), EDGE, 2, cutoff(r.double()).reshape(1))[1, 0]
        assert abs(float(z.detach()) - float(exact.detach())) < 1e-3
        (slope,) = torch.autograd.grad(z, at, create_graph=True)
        assert bool(torch.isfinite(slope))
        if slope.requires_grad:
            assert bool(torch.isfinite(torch.autograd.grad(slope, at)[0]))


@pytest.mark.parametrize("irreps", ["3x0o", "4x0e", "2x1e + 2x1o"])
@pytest.mark.parametrize("options", [{"instance": True}, {"reduce": "max"}])
def test_batch_norms_of_irreps_of_one_kind(irreps: str, options: dict[str, Any]) -> None:
    with default_dtype(torch.float64):
        other = theirs.BatchNorm(o3.Irreps(irreps), **options)
    layer = BatchNorm(irreps, **options).double()
    x = torch.randn(6, o3.Irreps(irreps).dim, dtype=torch.float64)
    torch.testing.assert_close(layer(x), other(x))
    torch.testing.assert_close(layer.eval()(x), other.eval()(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_an_epsilon_whose_square_is_zero(dtype: torch.dtype) -> None:
    for options in ({}, {"epsilon": 1e-30}, {"normalize": False}):
        layer = NormActivation("2x1o", torch.tanh, **options).to(dtype)
        x = torch.zeros(2, 6, dtype=dtype, requires_grad=True)
        z = layer(x)
        z.sum().backward()
        assert bool(torch.isfinite(z).all())
        assert bool(torch.isfinite(x.grad).all())


NORMS: dict[str, Callable[[], torch.nn.Module]] = {
    "Norm": lambda: Norm("2x1o + 2x0e"),
    "LayerNorm": lambda: LayerNorm("2x1o + 2x0e"),
    "RMSNorm": lambda: RMSNorm("2x1o + 2x0e"),
    "RMSNorm, all": lambda: RMSNorm("2x1o + 2x0e", over="all"),
    "BatchNorm": lambda: BatchNorm("2x1o + 2x0e"),
    "BatchNorm, instance": lambda: BatchNorm("2x1o + 2x0e", instance=True),
    "BatchRMSNorm": lambda: BatchRMSNorm("2x1o + 2x0e"),
    "NormActivation": lambda: NormActivation("2x1o + 2x0e", torch.tanh),
}


@pytest.mark.thinned(12)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 300.0])
@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_norms_of_half_precision_are_computed_in_float32(
    make: Callable[[], torch.nn.Module], size: float, dtype: torch.dtype
) -> None:
    """In float16 the square of 300 is infinite, that of 1e-4 zero, and the slope at zero 1e-5 ** -1.5."""
    layer, wide = make().to(dtype), make().double()
    x = (size * torch.randn(3, 8)).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    for mode in (True, False):
        found, wanted = layer.train(mode)(x), wide.train(mode)(exact)
        assert found.dtype == dtype
        factors = torch.randn(found.shape).to(dtype)
        (slope,), (steep,) = (torch.autograd.grad(z, at, factors.to(z)) for z, at in ((found, x), (wanted, exact)))
        for a, b in ((found, wanted), (slope, steep)):
            # roundings of the result and of statistics that float32 sums, relative to the largest
            bound = 3 * torch.finfo(dtype).eps * float(b.detach().abs().max()) + torch.finfo(dtype).tiny
            torch.testing.assert_close(a.double(), b, rtol=0, atol=bound)
    for rows in (x[:1].expand(4, 8), x[:1]):  # equal ones, and one alone
        found = layer.train()(rows)
        (slope,) = torch.autograd.grad(found.float().square().sum(), x)
        assert bool(torch.isfinite(found).all())
        assert bool(torch.isfinite(slope).all())


def test_running_statistics_of_half_precision_are_float32() -> None:
    layer = BatchNorm("4x1o + 2x0e").half().train()
    layer(300 * torch.ones(5, 14).half())
    assert layer.weight is not None
    assert (layer.weight.dtype, layer.running_var.dtype, layer.running_mean.dtype) == (
        torch.float16,
        torch.float32,
        torch.float32,
    )
    assert float(layer.running_var.max()) == pytest.approx(0.9 + 0.1 * 300.0**2)
    assert layer.double().running_var.dtype == torch.float64
    assert BatchRMSNorm("4x1o").to("meta", torch.bfloat16).running_squared_norm.dtype == torch.float32
    with pytest.raises(DTypeError, match=r"running_var must have the dtype of input, torch.float32, got torch.float64"):
        BatchNorm("4x1o", affine=False).double()(torch.ones(2, 12))


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_shares_of_half_precision_are_computed_in_float32(dtype: torch.dtype) -> None:
    logits, envelope = torch.randn(40, 2).mul(9).to(dtype), torch.rand(40).to(dtype)
    index = torch.zeros(2, 40, dtype=torch.int64)
    found = edge_softmax(logits, index, 1, envelope)
    wanted = edge_softmax(logits.double(), index, 1, envelope.double())
    assert found.dtype == dtype
    assert bool(((found.double() - wanted).abs() <= torch.finfo(dtype).eps * wanted + torch.finfo(dtype).tiny).all())
    with torch.autocast("cpu", torch.bfloat16):
        assert edge_softmax(logits, index, 1, envelope).dtype == torch.float32


@pytest.mark.kernels
def test_autocast_gives_one_dtype_with_a_group_of_zeros() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        for options in ({}, {"biases": True}):
            layer = Linear("2x0e", "1x1o + 2x0e", **options)
            assert layer(torch.ones(3, 2)).dtype == torch.bfloat16
            with torch.no_grad():  # in parts, where there are many rows
                assert layer(torch.ones(300_000, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "function",
    [
        lambda s: [s[0] if s[0] else -s[0]],
        lambda s: [s[0] if s[0] != 0 else 0 * s[0]],
        lambda s: [s[0] if s[0] > 0 else 2 * s[0]],
        lambda s: [abs(s[0])],
        lambda s: [1 / s[0]],
    ],
)
def test_formulas_do_not_choose(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"a formula must do the same for all values.*Use \+"):
        FormulaLayer(function, {"s": "1x0e"}, "1x0e")


def test_a_default_device_changes_no_conversion() -> None:
    product = FullyConnectedTensorProduct("2x0e + 1x1o", "0e + 1o", "2x0e + 1x1o")
    wanted = SO2Convolution.from_tensor_product(product).weight
    with torch.device("meta"):
        found = SO2Convolution.from_tensor_product(product).weight
    assert torch.equal(found, wanted)


def test_numbers_that_are_out_of_range() -> None:
    with pytest.raises(IndexRangeError, match=r"batch must lie in \[0, 2\)"):
        DropPath(0.5).train()(torch.ones(3, 2), torch.tensor([0, 1, 2]), 2)
    with pytest.raises(IndexRangeError, match=r"batch must lie in \[0, 1\)"):
        DropPath(0.5).train()(torch.ones(2, 2), torch.tensor([0, -1]))
    with pytest.raises(IndexRangeError, match=r"kind must lie in \[0, 1\)"):
        SpeciesLinear("2x0e", "2x0e", 1)(torch.ones(2, 2), torch.tensor([0, 1]))
