"""The history of epochs, in a file and in the checkpoint of a run, and the time that a fit has to go."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.callbacks.timer import Timer

from ..core.checks import check_flag, check_path, check_type
from ..core.errors import DataError
from ..core.files.read_write import atomic_write, read_json
from .base import is_dry_run, trained_module
from .summary import count_parameters

#: Values that the bar leaves out.
_LEFT_OUT = ("v_num", "train/loss_epoch")


def in_words(seconds: float) -> str:
    """Format seconds as a text, with the few digits of an estimate."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{round(minutes / 60)} h"


def seconds_left(trainer: Trainer, marks: Sequence[tuple[int, float]]) -> float | None:
    """Seconds to the end of the last epoch, or to ``trainer.max_time``; None before the end of the first epoch.

    ``marks`` are steps and seconds at this start of the run, and at the end of each epoch since. The first epoch
    compiles kernels, so it counts only as long as it is the only one. Early stopping can end a fit sooner.
    """
    (first, start), (last, end) = marks[1 if len(marks) > 2 else 0], marks[-1]
    if last <= first:
        return None
    plan = getattr(trainer.lightning_module, "plan", None)
    total = math.inf if plan is None else plan.steps
    seconds = (total - last) * (end - start) / (last - first) - (time.perf_counter() - end)
    limits = [timer.time_remaining() for timer in trainer.callbacks if isinstance(timer, Timer)]  # type: ignore[attr-defined]
    left = min([seconds, *(limit for limit in limits if limit is not None)])
    return max(0.0, left) if math.isfinite(left) else None


class Bar(RichProgressBar):
    """The progress bar of an epoch, with the time that the whole fit has to go."""

    def __init__(self, marks: Sequence[tuple[int, float]]) -> None:
        super().__init__()
        self.marks = marks

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The values behind the bar, the time first."""
        values = super().get_metrics(trainer, pl_module)
        shown = {name: value for name, value in values.items() if name not in _LEFT_OUT}
        left = seconds_left(trainer, self.marks) if self.marks else None
        return {"to go": f"about {in_words(left)}", **shown} if left else shown


FIELDS = ("epoch", "step", "train_mae", "val_mae", "learning_rate", "time_s")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, one key a line."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())


def read_history(folder: str | Path) -> list[dict[str, float]]:
    """The epochs of a run, oldest first; empty if it has not finished one.

    Args:
        folder: The run's folder.

    Returns:
        One dictionary an epoch with `epoch`, `step`, `train_mae`, `val_mae` (report unit), `learning_rate`, `time_s`.

    Raises:
        DataError: The file cannot be read.

    Example:
        >>> read_history("no/such/run")
        []
    """
    path = Path(check_path("folder", folder)) / "history.json"
    if not path.is_file():
        return []
    return check_rows(read_json(path, "the history of a run", "Delete the file.", DataError), str(path))


def check_rows(rows: Any, where: str) -> list[dict[str, float]]:
    """Check the rows of a history, one for each epoch; ``where`` names their file in messages."""
    good = isinstance(rows, list) and all(isinstance(row, dict) and row.keys() == set(FIELDS) for row in rows)
    if not good or not all(isinstance(value, (int, float)) for row in rows for value in row.values()):
        raise DataError(
            f"the history of a run must be a list of epochs with the numbers {', '.join(FIELDS)}, got another content "
            f"in {where}. Use another file, or train again."
        )
    return [dict(row) for row in rows]


class History(Callback):
    """Collects one row an epoch, in `history.json`; prints it where no progress bar is shown.

    At the start it writes `summary.json`: network, parameters, training structures, which error the rows hold, and
    the command and date of each start of the run.

    Args:
        folder: The run's folder.
        verbose: Whether to print a line an epoch, with the time that the fit has to go.
        command: The command that trains, as it was typed; None if no command does.
    """

    def __init__(self, folder: str | Path, verbose: bool = False, command: str | None = None) -> None:
        self.folder = Path(check_path("folder", folder))
        self.verbose = check_flag("verbose", verbose)
        if command is not None:
            check_type("command", command, str, "a text, or None", "Pass the command that trains.")
        self.command = command
        self.rows: list[dict[str, float]] = []
        self.starts: list[dict[str, str]] = []
        self.marks: list[tuple[int, float]] = []  # see `seconds_left`
        self._started, self._validated = 0.0, False

    def state_dict(self) -> dict[str, Any]:
        """The rows and starts so far, for the checkpoint."""
        return {"rows": [dict(row) for row in self.rows], "starts": [dict(start) for start in self.starts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the rows and starts of a checkpoint."""
        self.rows = check_rows(state_dict.get("rows"), "the checkpoint")
        self.starts = [dict(start) for start in state_dict["starts"]]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock where the last row stopped; say in `summary.json` what is trained."""
        self.marks[:] = [(trainer.global_step, time.perf_counter())]
        self.starts.append({"command": self.command or "", "date": f"{datetime.now():%Y-%m-%d %H:%M}"})
        self._started = time.perf_counter() - (self.rows[-1]["time_s"] if self.rows else 0.0)
        module = trained_module(pl_module)
        statistics = getattr(getattr(trainer, "datamodule", None), "statistics", None)
        name, unit = module.main_error()
        facts = {"network": type(module.model).__name__, "num_parameters": count_parameters(module)}
        facts |= {"num_train": getattr(statistics, "num_train", None), "error": name, "unit": unit}
        facts["starts"] = self.starts
        if trainer.is_global_zero and not is_dry_run(trainer):
            write_json(self.folder / "summary.json", facts)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that this epoch was validated, as the trainer returns the last error in later epochs, too."""
        self._validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the row of this epoch."""
        name, unit = trained_module(pl_module).main_error()
        values = trainer.callback_metrics
        validated, self._validated = self._validated, False
        row = {
            "epoch": trainer.current_epoch + 1,
            "step": trainer.global_step,
            "train_mae": float(values.get(f"train/{name}", math.nan)),
            "val_mae": float(values.get("val/mae", math.nan)) if validated else math.nan,
            "learning_rate": float(trainer.optimizers[0].param_groups[0]["lr"]),
            "time_s": time.perf_counter() - self._started,
        }
        self.rows.append(row)
        self.marks.append((trainer.global_step, time.perf_counter()))
        if not trainer.is_global_zero or is_dry_run(trainer):
            return
        write_json(self.folder / "history.json", self.rows)
        if self.verbose:
            print(line_of(row, unit, seconds_left(trainer, self.marks)), flush=True)


def line_of(row: dict[str, float], unit: str, left: float | None = None) -> str:
    """Format a row of the history as a printed line, without errors that its epoch did not measure.

    Example:
        >>> row = dict(zip(FIELDS, (3, 60, 41.25, math.nan, 1e-3, 12.3)))
        >>> line_of(row, "meV/A", 480.0)
        'epoch    3  step      60  train 41.25 meV/A  lr 1.00e-03  12 s, about 8 min left'
    """
    errors = {"train": row["train_mae"], "val": row["val_mae"]}
    shown = "".join(f"  {name} {value:.4g} {unit}" for name, value in errors.items() if not math.isnan(value))
    start = f"epoch {row['epoch']:>4}  step {row['step']:>7}{shown}  lr {row['learning_rate']:.2e}"
    return f"{start}  {row['time_s']:.0f} s" + (f", about {in_words(left)} left" if left else "")
