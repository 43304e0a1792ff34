"""Checkpoints that are written whole or not at all, and read with an error that says what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from ..errors import ConfigError, DataError
from ..files import atomic_write

__all__ = ["AtomicCheckpointIO", "best_and_last", "read_checkpoint"]


def read_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain Python values are unpickled.

    Args:
        path: The file.
        map_location: As in :func:`torch.load`.

    Returns:
        The checkpoint's dictionary.

    Raises:
        ConfigError: There is no such file.
        DataError: The file is cut, damaged, or not a checkpoint.

    Example:
        >>> read_checkpoint("no/such.ckpt")
        Traceback (most recent call last):
        ...
        eqlayers.errors.ConfigError: a checkpoint file was expected at no/such.ckpt, found nothing. ...
    """
    path = Path(path)
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        fix = (
            f"{path.parent} has {', '.join(near)}."
            if near
            else "Run `eqlayers fit` first, or pass another --ckpt_path."
        )
        raise ConfigError(f"a checkpoint file was expected at {path}, found nothing. {fix}")
    wrong = f"a checkpoint written by `eqlayers fit` was expected at {path} ({path.stat().st_size} bytes), got"
    fix = "The file may be cut or damaged: use another checkpoint of the run (best.ckpt, last.ckpt) or train again."
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        first_line = (str(error).splitlines() or ["no data"])[0]
        raise DataError(f"{wrong} {type(error).__name__}: {first_line} {fix}") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        found = f"the keys {list(checkpoint)[:5]}" if isinstance(checkpoint, dict) else type(checkpoint).__name__
        raise DataError(f"{wrong} {found} without 'state_dict'. Pass a file that `eqlayers fit` wrote.")
    return checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint next to its final place and renames it, so that a reader never meets half a file.

    Lightning's own writer makes the temporary file in the system's folder for them, where the final move is a copy
    when that folder is another file system.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``; on any failure an older file there stays as it was."""
        with atomic_write(Path(path)) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any | None = "cpu",
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint, see :func:`read_checkpoint`."""
        return read_checkpoint(path, map_location)


def best_and_last(folder: str | Path, monitor: str = "val/mae") -> list[ModelCheckpoint]:
    """``best.ckpt`` by the monitored value, and ``last.ckpt`` after every epoch.

    Two callbacks, because ``ModelCheckpoint(save_last=True)`` updates its last file only when the best one changes.

    Example:
        >>> [callback.filename for callback in best_and_last("checkpoints")]
        ['best', 'last']
    """
    shared: dict[str, Any] = {"dirpath": folder, "enable_version_counter": False, "auto_insert_metric_name": False}
    return [
        ModelCheckpoint(filename="best", monitor=monitor, mode="min", save_top_k=1, **shared),
        ModelCheckpoint(filename="last", monitor=None, save_top_k=1, save_on_train_epoch_end=True, **shared),
    ]
