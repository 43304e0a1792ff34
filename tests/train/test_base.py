"""Shared code of every training: the parameters that are optimised."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eqlayers.models import MoleculeNetwork
from eqlayers.optim import SOAP
from eqlayers.train import PropertyModule


@pytest.mark.parametrize(("name", "cls"), [("adamw", torch.optim.AdamW), ("soap", SOAP)])
def test_every_parameter_of_the_network_is_optimised_once(name: str, cls: type) -> None:
    module = PropertyModule(MoleculeNetwork(hidden="4x0e+4x1o", layers=2), weight_decay=0.1, optimizer=name)
    trainer: Any = SimpleNamespace(max_epochs=3, estimated_stepping_batches=30, max_steps=-1)
    module._trainer = trainer
    optimizer: Any = module.configure_optimizers()["optimizer"]  # type: ignore[index, call-overload]
    assert type(optimizer) is cls
    listed = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(listed) == sorted(id(parameter) for parameter in module.model.parameters())
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}  # all parameters are matrices
