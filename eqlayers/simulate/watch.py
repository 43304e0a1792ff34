"""Long runs: a progress bar in a terminal, and Ctrl-C at the end of a step."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..cli.notices import started_bar

_PATIENCE = 2.0  # seconds without a bar


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on a terminal, once a run takes longer than two seconds."""
    bar: Any = None
    task: Any = None
    began = time.monotonic()

    def say(done: int, words: str) -> None:
        nonlocal bar, task
        if bar is None and sys.stderr.isatty() and time.monotonic() - began > _PATIENCE:
            from rich.progress import MofNCompleteColumn, TimeRemainingColumn

            bar, task = started_bar(title, total, MofNCompleteColumn(), TimeRemainingColumn())
        if bar is not None:
            bar.update(task, completed=done, words=words)

    try:
        yield say
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks to stop and breaks nothing off; a second one breaks off.

    Yields:
        A function that says whether a stop was asked for.
    """
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
