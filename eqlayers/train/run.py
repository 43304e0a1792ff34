"""Parts of every run besides its model and data: callbacks, logs, checkpoints and kernels, in one folder."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
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


def has_checkpoint(folder: str | Path) -> bool:
    """Whether a run, or a member of a committee, has a checkpoint."""
    places = [Path(folder), *members_of(Path(folder))]
    return any(checkpoint_path(place, name).exists() for place in places for name in ("best", "last"))


def remove_halves(folder: str | Path) -> None:
    """Remove halves of files that a killed process left."""
    folder = Path(folder)
    members = members_of(folder)
    for inner in [*members, *(place / part for place in (folder, *members) for part in FOLDERS)]:
        stays_inside(inner, folder, "Remove the link.")
    for path in [*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")]:
        path.unlink(missing_ok=True)


def results_of(folder: str | Path) -> list[Path]:
    """Files of an earlier run that a new one in the same folder would write over; a committee's with all members."""
    folder = Path(folder)
    names = ["summary.json", "history.json", "metrics.json", "predictions.csv", "learning_curve.png", "report.html"]
    names.append("potential.pt")
    paths = [
        *(checkpoint_path(folder, name) for name in ("best", "last", "first_stage")),
        *(folder / name for name in names),
    ]
    present = [path for path in [*paths, *sorted(folder.glob("parity*.png"))] if path.exists()]
    if not (folder / MARK).exists():
        return present
    return [*(path for member in members_of(folder) for path in results_of(member)), *present, folder / MARK]


def members_of(folder: Path) -> list[Path]:
    """Folders of the members of a committee; none of another folder."""
    return sorted(path for path in folder.glob("member-*") if path.is_dir()) if (folder / MARK).exists() else []


def run_callbacks(
    folder: str | Path,
    facts: dict[str, Any] | None = None,
    progress: bool | None = None,
    report: Callable[..., TestReport] = TestReport,
    monitor: str | None = None,
) -> list[Callback]:
    """Summary of the layers, progress, history, checkpoints, report, predictions, and kernels compiled ahead.

    Args:
        folder: The run's folder.
        facts: Recorded in `metrics.json`, e.g. ``{"seed": 2026}``.
        progress: Whether to show a progress bar; by default on a terminal, and a line an epoch elsewhere.
        report: What makes the report of a test.
        monitor: The value by which `best.ckpt` is chosen; see :func:`best_and_last`.

    Returns:
        Callbacks for :class:`lightning.pytorch.Trainer`.

    Example:
        >>> [type(callback).__name__ for callback in run_callbacks("runs/x", progress=False)][:3]
        ['LayerSummary', 'History', 'Best']
    """
    bar = sys.stdout.isatty() if progress is None else check_flag("progress", progress)
    tested = report(folder, facts)  # which checks the facts
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
    report: Callable[..., TestReport] = TestReport,
    monitor: str | None = None,
) -> dict[str, Any]:
    """Arguments of :class:`lightning.pytorch.Trainer` that make a run complete.

    Args:
        folder: The run's folder.
        facts: As in :func:`run_callbacks`.
        progress: As in :func:`run_callbacks`.
        training: False for a run that only validates, tests or predicts; it writes no training logs.
        report, monitor: As in :func:`run_callbacks`.

    Returns:
        Keyword arguments; add more callbacks to ``callbacks``.

    Example:
        >>> sorted(trainer_options("runs/x", progress=False, training=False))[:4]
        ['callbacks', 'default_root_dir', 'enable_model_summary', 'enable_progress_bar']
    """
    callbacks, training = run_callbacks(folder, facts, progress, report, monitor), check_flag("training", training)
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
