"""Corners that tests of single layers did not look into: roundings at the cutoff, no copies, other devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from e3nn import nn as theirs
from e3nn import o3

from eqlayers.bench.implementation import default_dtype
from eqlayers.errors import ConfigError, IndexRangeError
from eqlayers.nn import (
    AttentionAggregate,
    BatchNorm,
    DropPath,
    FormulaLayer,
    FullyConnectedTensorProduct,
    NormActivation,
    PolynomialCutoff,
    SmoothCutoff,
    SO2Convolution,
    SpeciesLinear,
)

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
