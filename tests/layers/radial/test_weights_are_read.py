"""Weights by interpolation: read before arithmetic and functions of torch, in the dtype of the network."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eqlayers.errors import ConfigError
from eqlayers.functional import TabledWeights
from eqlayers.nn import BesselBasis, RadialNetwork, RadialTable, TabledBasis
from tests.each import each


@each("arithmetic", [lambda w: 1.1 * w, lambda w: w * 2, lambda w: 2 * w, lambda w: w + w, lambda w: torch.ones(2) * w])
def test_weights_by_interpolation_are_read_before_arithmetic(arithmetic: Callable[[TabledWeights], object]) -> None:
    """A tuple would be repeated, or added to another."""
    weights = RadialTable(RadialNetwork(3), knots=16)(torch.tensor([1.0, 2.0]))
    with pytest.raises(ConfigError, match=r"must be read before arithmetic, got 2 .* \[E, 3\] .*weights\.weights"):
        arithmetic(weights)


@each(
    "function",
    [
        lambda w: torch.mul(w, 2.0), lambda w: torch.cat([torch.ones(2, 3), w]), lambda w: torch.mul(input=w, other=w),
        torch.nn.Linear(3, 3), torch.nn.SiLU(), lambda w: torch.einsum("ij,ij->i", torch.ones(2, 3), w),
        lambda w: torch.cat(tensors=[w]), lambda w: torch.stack(tensors=[torch.ones(2, 3), w]), abs, lambda w: w // 2,
        lambda w: w > 0, lambda w: w / 2, lambda w: -w, lambda w: w - torch.ones(2, 3), lambda w: w @ torch.eye(3),
    ],
)  # fmt: skip
def test_python_and_torch_refuse_other_functions_of_weights_by_interpolation(function: Callable[[Any], object]) -> None:
    weights = RadialTable(RadialNetwork(3), knots=16)(torch.tensor([1.0, 2.0]))
    with pytest.raises(TypeError):
        function(weights)


def test_weights_times_a_factor_for_each_edge() -> None:
    """Such as an envelope: the coefficients take it, and nothing is stored."""
    weights = RadialTable(RadialNetwork(3), knots=16)(torch.tensor([1.0, 2.0]))
    factors = torch.tensor([[0.5], [3.0]])
    torch.testing.assert_close((weights * factors).weights(), weights.weights() * factors)


@each("knots, trained", [(256, True), (256, False), (400, True), (400, False)])
def test_lengths_of_another_dtype_give_weights_of_the_network(knots: int, trained: bool) -> None:
    """In training as in validation, with any number of knots."""
    made = RadialNetwork(8, hidden=(8,), basis=TabledBasis(BesselBasis(8, 5.0), knots)).requires_grad_(trained)
    assert made(torch.tensor([1.0, 2.0], dtype=torch.float64)).coefficients.dtype == torch.float32
