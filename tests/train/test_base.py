"""Shared code of every training: groups of parameters, values in float64, shares of processes, refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from e3nn import o3

from eqlayers.models import MoleculeNetwork
from eqlayers.train.base import TrainedModule, Values, error_metrics, parameter_groups
from tests.each import each


def test_weight_decay_spares_biases_and_vectors_but_not_flat_matrices() -> None:
    model = torch.nn.ModuleDict(
        {
            "linear": torch.nn.Linear(3, 3),
            "norm": torch.nn.LayerNorm(3),
            "equivariant": o3.Linear("2x0e+1o", "2x0e+1o", biases=True),
        }
    )
    groups = {group["weight_decay"]: {id(p) for p in group["params"]} for group in parameter_groups(model, 0.1)}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[i] for i in groups[0.1]} == {"linear.weight", "equivariant.weight"}
    assert {names[i] for i in groups[0.0]} == {"linear.bias", "norm.weight", "norm.bias", "equivariant.bias"}


def test_every_parameter_of_the_network_is_optimised_once() -> None:
    model = MoleculeNetwork(hidden="4x0e+4x1o", layers=2)
    grouped = [id(parameter) for group in parameter_groups(model, 0.1) for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())


def test_values_and_errors_keep_the_digits_of_total_energies() -> None:
    """Errors of a thousandth of energies of a million, which float32 rounds to sixteenths."""
    true = torch.full((4,), -1e6, dtype=torch.float64)
    values, errors = Values(), error_metrics()
    values.update(true[:3] + 1e-3)
    values.update(true[3:].float())
    assert values.compute().dtype == torch.float64
    assert values.compute().tolist() == pytest.approx([-1e6 + 1e-3] * 3 + [-1e6], abs=1e-9)
    errors.update(true + 1e-3, true)
    assert {name: float(value) for name, value in errors.compute().items()} == pytest.approx(
        {"mae": 1e-3, "rmse": 1e-3}, rel=1e-6
    )


@each("rows, share", [([6, 2], [1.5, 0.5]), ([3, 3], [1.0, 1.0]), ([4, 0], [2.0, 0.0]), ([0, 0], [0.0, 0.0])])
def test_shares_make_a_mean_over_batches_the_mean_over_rows(rows: list[int], share: list[float]) -> None:
    batch = SimpleNamespace(step_rows={"forces": sum(rows) / len(rows)})
    of: Any = TrainedModule.share_of_step
    assert [of(SimpleNamespace(training=True), batch, "forces", count) for count in rows] == share
    assert of(SimpleNamespace(training=False), batch, "forces", 2) == 1, "validation sums errors, and takes no means"
    assert of(SimpleNamespace(training=True), SimpleNamespace(), "forces", 2) == 1
