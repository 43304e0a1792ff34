"""A fit in a folder with an earlier run refuses, goes on, or writes over; and the command that goes on."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from ..core.errors import ConfigError, DataError
from ..models.committee import read_mark
from .aside import left_aside
from .checkpoints import read_checkpoint
from .run import checkpoint_path, has_checkpoint, results_of

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
    """Remove the folder of a run that ended before its first checkpoint."""
    if folder.is_dir() and not has_checkpoint(folder):
        shutil.rmtree(folder, ignore_errors=True)


def waited(checkpoint: Mapping[str, Any]) -> int:
    """Number of epochs without a better value that early stopping had counted in a checkpoint.

    Example:
        >>> waited({"callbacks": {"EarlyStopping{'monitor': 'val/mae', 'mode': 'min'}": {"wait_count": 3}}})
        3
    """
    states = checkpoint.get("callbacks", {})
    return max((int(one.get("wait_count", 0)) for name, one in states.items() if "EarlyStopping" in name), default=0)
