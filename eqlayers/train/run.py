"""Parts of every run besides its model and data: callbacks, logs, checkpoints and kernels, in one folder."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities.seed import isolate_rng

from ..core.backends.ahead import compile_ahead
from ..core.checks import check_flag, check_path
from ..core.errors import ConfigError
from ..core.files.read_write import plain_name, stays_inside
from ..models.committee import MARK
from .checkpoints import AtomicCheckpointIO, best_and_last
from .history import Bar, History
from .report import PredictionTable, TestReport
from .summary import LayerSummary

#: Folders in a run's folder.
FOLDERS = ("checkpoints", "csv", "tensorboard")
#: Results of a run or a committee, as patterns.
RESULTS = (
    *("checkpoints/*.ckpt", "summary.json", "history.json", "metrics.json", "predictions.csv", "report.html"),
    *("learning_curve.png", "parity*.png", "potential.pt", MARK),
)


def checkpoint_path(folder: str | Path, name: str = "best") -> Path:
    """The path of a run's checkpoint `best` or `last`.

    Example:
        >>> checkpoint_path("runs/qm9_mini").as_posix()
        'runs/qm9_mini/checkpoints/best.ckpt'
    """
    name = plain_name(name, "name of a checkpoint", "Use best or last.", "file")
    return Path(check_path("folder", folder)) / "checkpoints" / f"{name}.ckpt"


def run_folder(runs: str | Path, name: str) -> Path:
    """The folder of a run, which is directly below the folder of all runs, as are the folders in it."""
    folder = Path(check_path("runs", runs, "a folder")) / plain_name(name, "name", "Change --name.")
    try:
        present = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        usable = present.is_dir()
    except (OSError, ValueError):  # a name that no folder can have
        usable = False
    if not usable:
        raise ConfigError(f"runs and name must make a folder, got {str(folder)!r}. Change --runs or --name.")
    for inner in (folder, *(folder / part for part in FOLDERS)):
        stays_inside(inner, folder.parent, "Remove the link, or change --name.")
    return folder


def remove_halves(folder: str | Path) -> None:
    """Remove halves of files that a killed process left."""
    for pattern in (".*.tmp", "checkpoints/.*.tmp"):
        for path in Path(folder).glob(pattern):
            path.unlink(missing_ok=True)


def results_of(folder: str | Path) -> list[Path]:
    """Files in a folder that a new run or committee would write over, also in the folders of members."""
    patterns = [f"{member}{name}" for name in RESULTS for member in ("", "member-*/")]
    return sorted(path for pattern in patterns for path in Path(folder).glob(pattern))


def run_callbacks(
    folder: str | Path,
    facts: dict[str, Any] | None = None,
    progress: bool | None = None,
    page: bool = True,
    monitor: str | None = None,
) -> list[Callback]:
    """Summary of the layers, progress, history, checkpoints, report, predictions, and kernels compiled ahead.

    Args:
        folder: The run's folder.
        facts: Recorded in `metrics.json`, e.g. ``{"seed": 2026}``.
        progress: Whether to show a progress bar; by default on a terminal, and a line an epoch elsewhere.
        page: Whether a test writes `report.html`.
        monitor: The value by which `best.ckpt` is chosen; see :func:`best_and_last`.

    Returns:
        Callbacks for :class:`lightning.pytorch.Trainer`.

    Example:
        >>> [type(callback).__name__ for callback in run_callbacks("runs/x", progress=False)][:3]
        ['LayerSummary', 'History', 'Best']
    """
    bar = sys.stdout.isatty() if progress is None else check_flag("progress", progress)
    tested = TestReport(folder, facts, page)  # which checks the facts
    history = History(folder, verbose=not bar, command=tested.facts.get("command"))
    callbacks: list[Callback] = [LayerSummary(), history]
    if bar:
        callbacks.append(Bar(history.pace))
    return [
        *callbacks,
        *best_and_last(checkpoint_path(folder).parent, monitor),
        tested,
        PredictionTable(folder),
        CompileAhead(),
    ]


def run_loggers(folder: str | Path) -> list[Logger]:
    """CSV and TensorBoard logs under the run's folder, a new version for every start."""
    folder = check_path("folder", folder)
    return [CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="tensorboard", default_hp_metric=False)]


def trainer_options(
    folder: str | Path,
    facts: dict[str, Any] | None = None,
    progress: bool | None = None,
    training: bool = True,
    page: bool = True,
    monitor: str | None = None,
) -> dict[str, Any]:
    """Arguments of :class:`lightning.pytorch.Trainer` that make a run complete.

    Args:
        folder: The run's folder.
        facts: As in :func:`run_callbacks`.
        progress: As in :func:`run_callbacks`.
        training: False for a run that only validates, tests or predicts; it writes no training logs.
        page, monitor: As in :func:`run_callbacks`.

    Returns:
        Keyword arguments; add more callbacks to ``callbacks``.

    Example:
        >>> sorted(trainer_options("runs/x", progress=False, training=False))[:4]
        ['callbacks', 'default_root_dir', 'enable_model_summary', 'enable_progress_bar']
    """
    callbacks, training = run_callbacks(folder, facts, progress, page, monitor), check_flag("training", training)
    return {
        "default_root_dir": str(folder),
        "callbacks": [*callbacks, LearningRateMonitor("step")] if training else callbacks,
        "enable_model_summary": False,
        "enable_progress_bar": any(isinstance(callback, Bar) for callback in callbacks),
        "logger": run_loggers(folder) if training else False,
        "plugins": [AtomicCheckpointIO()],
        "use_distributed_sampler": False,  # the data modules share the structures, each once
    }


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
