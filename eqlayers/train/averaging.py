"""Exponential moving average of the weights: what is validated, tested and saved."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..core.checks import check_number
from ..core.errors import ConfigError
from .base import to_precision


def ema_decay(step: int, decay: float) -> float:
    """Decay with a warm-up after ``step`` averaged steps: ``min(decay, (1 + step) / (10 + step))``."""
    return min(decay, (1 + step) / (10 + step))


class EMA(WeightAveraging):
    """Exponential moving average of the parameters after each optimizer step.

    Validation, testing and the ``state_dict`` of checkpoints use the averaged weights; the raw ones are kept in the
    checkpoint as ``current_model_state`` and come back on resume. Different from
    :class:`lightning.pytorch.callbacks.EMAWeightAveraging` in three points: the decay warms up; buffers are copied and
    not averaged (averaging would round integer index tables to wrong integers); and weights loaded from a checkpoint
    after ``fit`` in the same process stay the averaged ones (Lightning 2.6 loads the raw ones there).

    Args:
        decay: Weight of the old average at each step, ``0 <= decay < 1``; 0 turns averaging off.

    Raises:
        ConfigError: ``decay`` is out of range.

    Example:
        >>> EMA(decay=0.99).decay
        0.99
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0.0 <= check_number("ema.decay", decay, fix="Set it to 0.999.") < 1.0:
            raise ConfigError(f"the decay of the average must be in [0, 1), got {decay}. Set ema.decay, e.g. to 0.999.")
        self.decay = float(decay)
        self._averaged: list[Tensor] = []
        self._current: list[Tensor] = []
        self._buffers: list[tuple[Tensor, Tensor]] = []
        super().__init__(use_buffers=False, multi_avg_fn=self._average)

    def _average(self, average: Any, current: Any, step: Tensor | int) -> None:
        get_ema_multi_avg_fn(ema_decay(int(step), self.decay))(average, current, step)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the copy, in the precision of the training."""
        to_precision(trainer, pl_module)
        super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over what was set after the copy was made: the device, and on a fresh start the data statistics."""
        model = self._average_model
        assert model is not None  # made in setup("fit")
        model.to(pl_module.device)
        if int(model.n_averaged) == 0:
            model.module.load_state_dict(pl_module.state_dict())

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """List the tensors once: to find them among hundreds of modules takes a tenth of a small network's step."""
        assert self._average_model is not None
        average = self._average_model.module
        self._averaged, self._current = ([p.detach() for p in m.parameters()] for m in (average, pl_module))
        self._buffers = list(zip(average.buffers(), pl_module.buffers(), strict=True))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Average after an optimizer step."""
        model = self._average_model
        assert model is not None
        if trainer.global_step <= self._latest_update_step:  # gradients are still added up
            return
        self._latest_update_step = trainer.global_step
        if int(model.n_averaged) == 0:
            model.update_parameters(pl_module)
            return
        self._average(self._averaged, self._current, model.n_averaged)
        model.n_averaged += 1
        for kept, current in self._buffers:
            kept.copy_(current)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore average and raw weights when a fit resumes; elsewhere keep the average, which is the state_dict."""
        if trainer.state.fn == TrainerFn.FITTING:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Drop the average after the fit: a later validation would swap it with the weights it was asked to judge."""
        if stage == "fit":
            self._average_model, self._averaged, self._current, self._buffers = None, [], [], []
