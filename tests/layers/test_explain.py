"""Explanations: one line for each call and backend, by the paths of layers in a model."""

import pytest
import torch

import eqlayers as eq
from eqlayers.errors import ConfigError


def test_layers_of_a_model_are_named_by_their_paths() -> None:
    product = eq.FullyConnectedTensorProduct("2x0e", "1o", "3x1o", backend="torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), product)
    lines = eq.explain(model, dtype=torch.float64).splitlines()
    assert lines[0] == "1: FullyConnectedTensorProduct on cpu, torch.float64, backend=torch"
    assert lines[1] == "  all 1 paths: torch runs"
    assert lines[2:] == product.explain(dtype=torch.float64).splitlines()[2:]


def test_models_without_products_and_other_objects() -> None:
    assert eq.explain(torch.nn.Linear(2, 2)) == "Linear holds no product layers"
    assert eq.explain().startswith("TensorProduct on cpu, torch.float32, backend=")
    with pytest.raises(ConfigError, match=r"module must .*got 3"):
        eq.explain(3)
