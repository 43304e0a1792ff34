"""The time that a fit has to go, from the epochs that it has done; in the progress bar and in the lines of epochs."""

from __future__ import annotations

import math
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.callbacks.timer import Timer

#: Values that would leave no room for the others.
_LEFT_OUT = ("v_num", "train/loss_epoch")


def in_words(seconds: float) -> str:
    """A time with no more digits than an estimate has.

    Example:
        >>> in_words(0.2), in_words(59.0), in_words(700.0), in_words(9000.0), in_words(200_000.0)
        ('1 s', '59 s', '12 min', '2 h 30 min', '56 h')
    """
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{round(minutes / 60)} h"


class Pace:
    """Measures seconds per optimizer step, over the epochs of this start of the run.

    The first epoch compiles kernels, so it counts only as long as it is the only one. Early stopping can end a fit
    sooner.
    """

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []  # steps and seconds at the start, and at the end of each epoch
        self.total = math.inf

    def start(self, trainer: Trainer) -> None:
        """Start the clock."""
        self.marks, self.total = [(trainer.global_step, time.perf_counter())], float(trainer.estimated_stepping_batches)

    def mark(self, trainer: Trainer) -> None:
        """Note the end of an epoch."""
        self.marks.append((trainer.global_step, time.perf_counter()))

    def left(self, trainer: Trainer) -> float | None:
        """Seconds to the end of the last epoch, or to ``trainer.max_time``; None before the end of the first epoch."""
        if len(self.marks) < 2:
            return None
        (first, start), (last, end) = self.marks[1 if len(self.marks) > 2 else 0], self.marks[-1]
        if last <= first:
            return None
        seconds = (self.total - last) * (end - start) / (last - first) - (time.perf_counter() - end)
        timers = [one.time_remaining() for one in trainer.callbacks if isinstance(one, Timer)]  # type: ignore[attr-defined]
        seconds_left = min([seconds, *(one for one in timers if one is not None)])
        return max(0.0, seconds_left) if math.isfinite(seconds_left) else None


class Bar(RichProgressBar):
    """The progress bar of an epoch, with the time that the whole fit has to go."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The values behind the bar, the time first."""
        shown = {
            name: value for name, value in super().get_metrics(trainer, pl_module).items() if name not in _LEFT_OUT
        }
        left = self.pace.left(trainer)
        return {"to go": f"about {in_words(left)}", **shown} if left else shown
