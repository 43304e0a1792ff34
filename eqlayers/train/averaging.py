"""Exponential moving average of the weights, which is validated, tested and saved."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..core.checks import check_number
from ..core.errors import ConfigError
from ..core.torch_internals import foreach_copy_
from .base import to_precision


def ema_decay(step: int, decay: float) -> float:
    """Decay with a warm-up after ``step`` averaged steps: ``min(decay, (1 + step) / (10 + step))``."""
    return min(decay, (1 + step) / (10 + step))


class EMA(WeightAveraging):
    """Exponential moving average of the parameters after each optimizer step.

    Validation, testing and the ``state_dict`` of checkpoints use the averaged weights; the raw weights are in
    the checkpoint as ``current_model_state`` and restored on resume. It differs from
    :class:`lightning.pytorch.callbacks.EMAWeightAveraging` in three points: the decay has a warm-up; buffers are copied
    instead of averaged, as averages of integer tables would be wrong; and a checkpoint loaded after ``fit`` in the same
    process gives the averaged weights (Lightning 2.6 loads the raw ones).

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
        self._count = 0  # of averaged steps, known without reading it from the device
        self._weights: tuple[list[Tensor], list[Tensor]] = ([], [])  # averaged and current, listed once
        self._buffers: list[list[tuple[Tensor, ...]]] = []  # likewise, by dtype
        super().__init__(use_buffers=False, multi_avg_fn=self._average)

    def _average(self, average: Any, current: Any, step: Tensor | int) -> None:
        """Update the average of lists of tensors."""
        get_ema_multi_avg_fn(ema_decay(int(step), self.decay))(average, current, step)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the averaged copy, in the precision of the training."""
        to_precision(trainer, pl_module)
        super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the copy to the device, and on a fresh start copy data statistics set after its creation."""
        model = self._average_model
        assert model is not None  # created in setup("fit")
        model.to(pl_module.device)
        self._count = int(model.n_averaged)
        if self._count == 0:
            model.module.load_state_dict(pl_module.state_dict())
        self._weights = [*map(Tensor.detach, model.module.parameters())], [*map(Tensor.detach, pl_module.parameters())]
        pairs = [*zip(model.module.buffers(), pl_module.buffers(), strict=True)]
        dtypes = {current.dtype for _, current in pairs}  # of one dtype, a GPU copies all by one kernel
        self._buffers = [[*zip(*(p for p in pairs if p[1].dtype == dtype), strict=True)] for dtype in dtypes]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the average after an optimizer step."""
        model = self._average_model
        assert model is not None
        if trainer.global_step <= self._latest_update_step:  # gradients are being accumulated
            return
        self._latest_update_step = trainer.global_step
        if self._count == 0:
            model.update_parameters(pl_module)
        else:
            self._average(*self._weights, self._count)
            model.n_averaged += 1
            for averaged, current in self._buffers:
                foreach_copy_(averaged, current)
        self._count += 1

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore averaged and raw weights when a fit resumes; otherwise only the averaged ones in the state_dict."""
        if trainer.state.fn == TrainerFn.FITTING:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Delete the average after a fit, as a later validation would use it instead of the given weights."""
        if stage == "fit":
            self._average_model, self._weights, self._buffers = None, ([], []), []
