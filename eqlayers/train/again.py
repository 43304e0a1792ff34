"""A fit in a folder with an earlier run refuses, goes on, or sets it aside; and the command that goes on."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from ..core.errors import ConfigError, DataError
from ..core.files.lock import LOCK
from ..models.committee import read_mark
from .base import is_dry_run
from .checkpoints import read_checkpoint
from .run import checkpoint_path, has_checkpoint, members_of, results_of

_NAME = "{}.earlier{}"


def _place(folder: Path, number: int) -> Path:
    return folder.with_name(_NAME.format(folder.name, "" if number == 1 else f"-{number}"))


def left_aside(folder: str | Path) -> list[Path]:
    """Folders beside a run's folder with results that a killed fit had set aside."""
    places: list[Path] = []
    while os.path.lexists(place := _place(Path(folder), len(places) + 1)):
        places.append(place)
    return places


class Aside(Callback):
    """The results of an earlier run in a folder beside it, until the new run has a checkpoint.

    They are taken when the first training starts, after all checks of data and checkpoint, and looked at again after
    every epoch. ``begun`` says that the new run has a checkpoint, so that nothing of the earlier run is there any more.
    ``then`` is called when the folder is ready.
    """

    def __init__(self, folder: str | Path, replaces: bool = False, then: Callable[[], None] | None = None) -> None:
        self.folder, self.replaces, self.then = Path(folder), replaces, then
        self.begun = self._ready = self._taken = False
        self._place: Path | None = None
        self._logs: list[Path] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make room, once for all members of a committee."""
        if not trainer.is_global_zero or is_dry_run(trainer) or self._ready:
            return
        self._ready = True
        if self.replaces:
            self.take([logger.log_dir for logger in trainer.loggers])
        if self.then is not None:
            self.then()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look whether the epoch before has left a checkpoint."""
        if trainer.is_global_zero and not is_dry_run(trainer):
            self.look()

    def take(self, logs: Iterable[str | Path | None] = ()) -> None:
        """Set the results aside."""
        configs = [place / "config.yaml" for place in (self.folder, *members_of(self.folder))]
        files = [*results_of(self.folder), *(path for path in configs if path.exists())]
        self._logs = [Path(path) for path in logs if path is not None and Path(path).is_relative_to(self.folder)]
        if files:
            self._place = _place(self.folder, len(left_aside(self.folder)) + 1)
            print(f"overwrite: the earlier results are in {self._place} until the first epoch is done", flush=True)
            _move(files, self.folder, self._place)
        self._taken = True

    def look(self) -> None:
        """Remove the earlier results if the new run has a checkpoint."""
        if not self._taken or self.begun or not has_checkpoint(self.folder):
            return
        self.begun = True
        place, self._place = self._place, None
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
            if place.exists():
                print(f"overwrite: the earlier results are still in {place}, as they cannot be removed", flush=True)

    def settle(self) -> bool:
        """Look, and put the earlier results back if the new run ended without a checkpoint."""
        self.look()
        place, self._place = self._place, None
        if place is None:
            return False
        try:
            for path in results_of(self.folder) if self._taken else []:  # of the new run
                path.unlink()
            for path in self._logs if self._taken else []:
                shutil.rmtree(path, ignore_errors=True)
            _move([path for path in sorted(place.rglob("*")) if not path.is_dir()], place, self.folder)
            shutil.rmtree(place, ignore_errors=True)  # folders without files
        except OSError as error:
            print(f"overwrite: the earlier results are in {place}, as they cannot be put back: {error}", flush=True)
        else:
            print(f"overwrite: the earlier results are back in {self.folder}", flush=True)
        return True


def _move(files: Iterable[Path], start: Path, end: Path) -> None:
    """Move files with their folders' names, each whole: a killed process leaves it in one place or the other."""
    for path in files:
        target = end / path.relative_to(start)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


#: Options of `eqlayers fit` that say what becomes of an earlier run; no configuration holds them.
FLAGS = ("resume", "overwrite")

#: Attribute of an exception that ended a fit with --overwrite whose folder has the results of an earlier run.
NOT_BEGUN = "eqlayers_not_begun"


def first_process() -> bool:
    """Whether this process is the first of a run on several devices; the others find what the first has begun."""
    return not getattr(rank_zero_only, "rank", 0)


def said_of(folder: Path) -> str:
    """The results of an earlier run in a folder, in a few words."""
    results = results_of(folder)
    last = checkpoint_path(folder, "last")
    if not results:
        return "nothing"
    if (mark := read_mark(folder)) is not None:
        trained = len(mark.get("trained", ()))
        return f"a committee of {mark['members']} members, of which {trained} are trained"
    try:
        epochs = f"{int(read_checkpoint(last).get('epoch', -1)) + 1} epochs and " if last in results else ""
    except DataError:  # a broken one is not lost either
        epochs = ""
    return f"{epochs}{len(results)} files of results"


def say_left(folder: Path) -> None:
    """Say where results are that a killed fit had set aside."""
    for place in left_aside(folder):
        print(
            f"overwrite: {place} has results of {folder} from before a fit that was killed; move them back, or remove "
            "the folder",
            flush=True,
        )


def beginning(folder: Path, resume: bool, overwrite: bool, checkpoint: str | None) -> str | None:
    """The checkpoint that a fit begins with, or None."""
    if checkpoint is not None and not resume:
        read_checkpoint(checkpoint)
    if first_process():
        say_left(folder)
    inside = is_inside(checkpoint, folder)
    other_one = checkpoint is not None and not inside  # the configuration of a resumed run names its own
    if resume and (overwrite or other_one):
        other = "--overwrite" if overwrite else "--ckpt_path"
        raise ConfigError(f"--resume must be alone, as it finds the checkpoint itself, got {other} as well. Drop one.")
    last = checkpoint_path(folder, "last")
    if resume and (mark := read_mark(folder)) is not None:
        raise ConfigError(
            f"--resume must go on with what was begun, got {folder} with {said_of(folder)}. Pass --committee "
            f"{mark['members']} as well."
        )
    if resume:
        return str(last) if last.exists() else None
    if first_process() and not (overwrite or inside):
        refuse_results("a run", folder)
    return checkpoint


def refuse_results(what: str, folder: Path) -> None:
    """Raise if there are results in a folder that a run or a committee would write over."""
    if results_of(folder):
        raise ConfigError(
            f"{what} must have a folder without results, got {folder} with {said_of(folder)}. Go on with --resume, "
            "remove the results with --overwrite, or give this run another name with --name."
        )


def is_inside(checkpoint: str | None, folder: Path) -> bool:
    """Whether a checkpoint is one of a run's own."""
    return checkpoint is not None and Path(checkpoint).resolve().is_relative_to(folder.resolve())


def command_to_go_on(args: Sequence[str], begun: bool = True) -> str:
    """The command that goes on with one that was stopped, as it can be typed.

    A fit with --overwrite that has not ``begun`` is typed again: the results in the folder are of another run.

    Example:
        >>> command_to_go_on(["fit", "-c", "my run.yaml", "--overwrite"])
        "eqlayers fit -c 'my run.yaml' --resume"
        >>> command_to_go_on(["test", "-c", "a.yaml"])
        'eqlayers test -c a.yaml'
    """
    if args[0] != "fit" or not begun:
        return f"eqlayers {shlex.join(args)}"
    words = []
    following = iter(args)
    for word in following:
        if word == "--ckpt_path":
            next(following, None)
        elif word not in ("--resume", "--overwrite") and not word.startswith("--ckpt_path="):
            words.append(word)
    return f"eqlayers {shlex.join([*words, '--resume'])}"


def stopped(by: str, status: int, args: Sequence[str], error: BaseException | None = None) -> SystemExit:
    """Say what ended a command, and the command that goes on, as it can be typed."""
    way = command_to_go_on(args, begun=not getattr(error, NOT_BEGUN, False))
    print(f"eqlayers: interrupted by {by}; files are whole; to go on: {way}", file=sys.stderr)
    return SystemExit(status)


def remove_if_empty(folder: Path) -> None:
    """Empty the folder of a run that ended before its first checkpoint; its lock goes last, with the folder."""
    for path in folder.iterdir() if folder.is_dir() and not has_checkpoint(folder) else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink(missing_ok=True)


def waited(checkpoint: Mapping[str, Any]) -> int:
    """Number of epochs without a better value that early stopping had counted in a checkpoint.

    Example:
        >>> waited({"callbacks": {"Stopping{'monitor': 'val/mae', 'mode': 'min'}": {"wait_count": 3}}})
        3
    """
    states = checkpoint.get("callbacks", {})
    return max(
        (int(one.get("wait_count", 0)) for name, one in states.items() if name.startswith("Stopping")), default=0
    )
