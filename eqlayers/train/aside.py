"""Results that `eqlayers fit --overwrite` sets aside, and removes when the new run has a checkpoint, not before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from .base import is_dry_run
from .run import has_checkpoint, members_of, results_of

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
