"""The kernels of a fit, compiled before its first step and side by side."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.seed import isolate_rng

from ..core.backends.ahead import compile_ahead


class CompileAhead(Callback):
    """Compiles what a step of training and one of validation need; the fit itself is as it would be without."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compile, unless torch compiles the network."""
        if not any(hasattr(one, "_orig_mod") for one in pl_module.modules()):
            with isolate_rng(include_cuda=pl_module.device.type == "cuda"):
                compile_ahead(lambda: _step(trainer, copy.deepcopy(pl_module)))


def _step(trainer: Trainer, twin: LightningModule) -> None:
    """A step of training and one of validation, of a copy, with two structures; their number is in no kernel."""
    data: Any = getattr(trainer, "datamodule", None)
    batch = data.train_dataloader().collate_fn([data.train_set[0], data.train_set[len(data.train_set) - 1]])
    if twin.device.type != "cpu":
        batch = trainer.strategy.batch_to_device(batch, twin.device)
    with trainer.precision_plugin.train_step_context():
        result = twin(batch)
        values = [*result.values()] if isinstance(result, Mapping) else [result]
        loss = torch.stack([value.double().square().sum() for value in values if value.requires_grad]).sum()
        loss.backward()  # to positions as well, as in the fit
    twin.eval()
    with torch.no_grad(), trainer.precision_plugin.val_step_context():
        twin(batch)
