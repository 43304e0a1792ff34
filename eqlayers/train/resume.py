"""The rule for the folder of a run: a fit refuses a folder with results, or resumes; and the command that resumes."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from ..core.errors import ConfigError
from ..core.files.lock import LOCK
from ..core.files.read_write import few
from ..models.committee import read_mark
from .run import checkpoint_path, results_of


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
    last = checkpoint_path(folder, "last")
    return str(last) if last.exists() else None


def refuse_results(what: str, folder: Path) -> None:
    """Raise if a folder has results that a run or a committee would write over."""
    if results := results_of(folder):
        raise ConfigError(
            f"{what} must have a folder without results, got {folder} with "
            f"{few([str(path.relative_to(folder)) for path in results])}. Go on with --resume, give this run another "
            "name with --name, or move or remove the folder."
        )


def command_to_resume(args: Sequence[str]) -> str:
    """The command that goes on with one that was stopped, as it can be typed.

    Example:
        >>> command_to_resume(["fit", "-c", "my run.yaml"])
        "eqlayers fit -c 'my run.yaml' --resume"
        >>> command_to_resume(["test", "-c", "a.yaml"])
        'eqlayers test -c a.yaml'
    """
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


def validations_without_improvement(checkpoint: Mapping[str, Any]) -> int:
    """Number of validations without a better value that early stopping had counted in a checkpoint.

    Example:
        >>> state = {"callbacks": {"Stopping{'monitor': 'val/mae', 'mode': 'min'}": {"wait_count": 3}}}
        >>> validations_without_improvement(state)
        3
    """
    states = checkpoint.get("callbacks", {})
    return max(
        (int(state.get("wait_count", 0)) for name, state in states.items() if name.startswith("Stopping")), default=0
    )
