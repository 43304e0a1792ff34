"""The folder of a run: its refusal or resumption, its callbacks, logs and checkpoints, and the printed lines."""

from __future__ import annotations

import copy
import logging
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.seed import isolate_rng

from ..core.backends.ahead import compile_ahead
from ..core.checks import check_flag, check_path
from ..core.errors import ConfigError
from ..core.files.lock import LOCK
from ..core.files.read_write import few, plain_name, stays_inside
from ..models.committee import MARK, read_mark
from .checkpoints import AtomicCheckpointIO, best_and_last
from .history import Bar, History
from .report import PredictionTable, TestReport
from .summary import LayerSummary

#: Results of a run or a committee, as patterns.
RESULTS = (
    *("checkpoints/*.ckpt", "summary.json", "history.json", "metrics.json", "predictions.csv", "report.html"),
    *("learning_curve.png", "parity*.png", "potential.pt", MARK),
)
#: Results of a run that was killed before its first `last.ckpt`, which --resume writes over.
_BEGUN = ("best.ckpt", "summary.json", "history.json")


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
    for inner in (folder, *(folder / part for part in ("checkpoints", "csv", "tensorboard"))):
        stays_inside(inner, folder.parent, "Remove the link, or change --name.")
    return folder


def remove_halves(folder: str | Path) -> None:
    """Remove temporary files that a killed process left half written in the folder of a run."""
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
    bars, saved = [Bar(history.marks)] if bar else [], best_and_last(checkpoint_path(folder).parent, monitor)
    return [LayerSummary(), history, *bars, *saved, tested, PredictionTable(folder), CompileAhead()]


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
    """Compiles kernels of a training and a validation step before the fit, on a copy of the module."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compile, unless torch compiles the network."""
        if not any(hasattr(one, "_orig_mod") for one in pl_module.modules()):
            with isolate_rng(include_cuda=pl_module.device.type == "cuda"):
                compile_ahead(lambda: _step(trainer, copy.deepcopy(pl_module)))


def _step(trainer: Trainer, twin: LightningModule) -> None:
    """Run a training and a validation step of the copy ``twin`` on two structures; kernels are the same for more."""
    data: Any = getattr(trainer, "datamodule", None)
    batch = data.train_dataloader().collate_fn([data.train_set[0], data.train_set[len(data.train_set) - 1]])
    if twin.device.type != "cpu":
        batch = trainer.strategy.batch_to_device(batch, twin.device)
    with trainer.precision_plugin.train_step_context():
        values = twin.outputs(batch).values()  # type: ignore[operator]
        loss = torch.stack([value.double().square().sum() for value in values if value.requires_grad]).sum()
        loss.backward()  # to positions as well, as in the fit
    twin.eval()
    with torch.no_grad(), trainer.precision_plugin.val_step_context():
        twin(batch)


def first_process() -> bool:
    """Whether this process is the first of a run on several devices."""
    return not getattr(rank_zero_only, "rank", 0)


def first_checkpoint(folder: Path, resume: bool, checkpoint: str | None) -> str | None:
    """The checkpoint that a fit starts from, or None; all processes of a run on several devices restore it.

    The first process alone refuses a folder with results: the others see the files that the first has begun to write.
    """
    if not resume:
        if first_process():
            refuse_results("a run", folder)
        return checkpoint
    if checkpoint is not None:
        raise ConfigError(
            f"--resume must find the checkpoint itself, got --ckpt_path {checkpoint} as well. Drop one of them."
        )
    if (mark := read_mark(folder)) is not None:
        raise ConfigError(
            f"--resume must go on with what the folder holds, got {folder} with a committee of {mark['members']} "
            f"members. Pass --committee {mark['members']} as well."
        )
    if (last := checkpoint_path(folder, "last")).exists():
        return str(last)
    if first_process() and (results := [path for path in results_of(folder) if path.name not in _BEGUN]):
        raise ConfigError(
            f"--resume must find {last} beside the results of a run, got {few([path.name for path in results])} alone. "
            "Give this run another name with --name, or move or remove the folder."
        )
    return None


def refuse_results(what: str, folder: Path) -> None:
    """Raise if a folder has results that a run or a committee would write over."""
    if results := results_of(folder):
        raise ConfigError(
            f"{what} must have a folder without results, got {folder} with "
            f"{few([str(path.relative_to(folder)) for path in results])}. Go on with --resume, give this run another "
            "name with --name, or move or remove the folder."
        )


def command_to_resume(args: Sequence[str]) -> str:
    """The command that goes on with one that was stopped, as it can be typed."""
    if args[0] != "fit":
        return f"eqlayers {shlex.join(args)}"
    words = []
    following = iter(args)
    for word in following:
        if word == "--ckpt_path":
            next(following, None)
        elif word != "--resume" and not word.startswith("--ckpt_path="):
            words.append(word)
    return f"eqlayers {shlex.join([*words, '--resume'])}"


def stopped(by: str, status: int, args: Sequence[str]) -> SystemExit:
    """Print what ended a command, and the command that goes on; return the exit."""
    print(f"eqlayers: interrupted by {by}; files are whole; to go on: {command_to_resume(args)}", file=sys.stderr)
    return SystemExit(status)


def remove_if_empty(folder: Path) -> None:
    """Empty a new folder whose run ended before its first checkpoint; the owner of the lock removes both."""
    if any(path.suffix == ".ckpt" for path in results_of(folder)):
        return
    for path in folder.glob("*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink(missing_ok=True)


MESSAGES = re.compile(
    r"litlogger|litmodels|TPU available|to estimate number of stepping batches|Seed set to"
    r"|^Restor(ing|ed all) states from|^Loaded model weights from"  # the command names the file that it reads
    r"|^Found current_model_state in the checkpoint"
    r"|^GPU available|^LOCAL_RANK: |that has Tensor Cores"  # the line of the network names the device
    r"|`max_epochs=\d+` reached"  # the lines of the epochs show it
    r"|^\s*Detected KeyboardInterrupt|Received SIGTERM"  # the command says how to go on
)
#: Lines of Lightning, and the lines that are printed in their place.
PLAIN = (
    (re.compile(r"^`Trainer.fit` stopped: `max_steps=(\d+)` reached"), r"training ends: trainer.max_steps is \1"),
    (re.compile(r"^`Trainer.fit` stopped: No training batches"), "training ends: there are no batches to train on"),
    (re.compile(r"^Time limit reached. Elapsed time is (\S+)\. "), r"training ends: trainer.max_time ended at \1"),
)
LOGGERS = (
    *("pytorch.utilities.rank_zero", "pytorch.accelerators.cuda", "pytorch.trainer.connectors.signal_connector"),
    *("fabric.utilities.rank_zero", "fabric.utilities.seed"),
)
WARNINGS = (
    r".*isinstance\(treespec",  # a deprecation inside Lightning
    r"[\s\S]*(was deprecated in v|JsonargparseDeprec)",  # calls that Lightning makes
    r"The number of training batches .* is smaller than the logging interval",  # epochs are shown, not steps
    r".*does not have many workers",  # graphs are small: batches are built faster than sent
    r"The dirpath has changed",  # a run that begins with the checkpoint of another one has a best of its own
    r"Checkpoint directory .* exists and is not empty",  # the command line says it in its own words
)


def _wanted(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    for pattern, plain in PLAIN:
        if match := pattern.search(text):
            record.msg, record.args = match.expand(plain), ()
            return True
    return not MESSAGES.search(text)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide messages that a user of this package cannot act on, and say how a training ended in plain words.

    Every other message and warning is shown.

    Example:
        >>> with quiet_lightning():
        ...     warnings.warn("The Trainer does not have many workers")
    """
    loggers = [logging.getLogger(f"lightning.{name}") for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(_wanted)
    try:
        with warnings.catch_warnings():
            for pattern in WARNINGS:
                warnings.filterwarnings("ignore", pattern)
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_wanted)
