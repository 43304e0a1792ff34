"""Shared code of every training: groups of parameters."""

from __future__ import annotations

import torch
from e3nn import o3

from eqlayers.models import MoleculeNetwork
from eqlayers.train.base import parameter_groups


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
