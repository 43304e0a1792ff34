"""Output of commands: warnings as lines, tables, progress bars of runs and of compilation, and Ctrl-C as a request."""

from __future__ import annotations

import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eqlayers_kernels import waiting

PACKAGES = ("eqlayers", "eqlayers_kernels")
INTERRUPTED = "kernels that were compiled are kept"
_PATIENCE = 2.0  # seconds of a run before its bar is shown
IDLE = 0.5  # seconds without compilation after which the bar is removed


def package_of(filename: str, category: type = UserWarning) -> str:
    """The package that raises a warning, '' for this one: by the warning's class, or by the file for builtin classes.

    Example:
        >>> package_of("/usr/lib/python3/site-packages/torch/nn/modules/module.py")
        'torch'
        >>> package_of("checkout/eqlayers/data/cache.py")
        ''
        >>> from eqlayers.errors import EqlayersWarning
        >>> package_of("/usr/lib/python3/site-packages/lightning/pytorch/trainer.py", EqlayersWarning)
        ''
    """
    if (module := category.__module__.partition(".")[0]) != "builtins":
        return "" if module in PACKAGES else module
    parts = Path(filename).parts
    if "site-packages" in parts[:-1]:
        name = parts[len(parts) - parts[::-1].index("site-packages")].removesuffix(".py")
        return "" if name in PACKAGES else name
    return ""


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Context manager: print each distinct warning as one line on standard error."""
    shown_texts: set[str] = set()

    def show(
        message: Warning | str, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        text = " ".join(str(message).split())
        package = package_of(filename, category)
        if text not in shown_texts:
            shown_texts.add(text)
            print(f"warning: {f'{package}: ' if package else ''}{text}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def shown() -> Iterator[None]:
    """Context manager: show compilation that takes more than two seconds; after Ctrl-C, say that kernels are kept."""
    bar = _Bar()
    try:
        with waiting.listening(bar.update) as count:
            try:
                yield
            except KeyboardInterrupt:
                raise KeyboardInterrupt(*([INTERRUPTED] if count.done else [])) from None
    finally:
        bar.stop()


class _Bar:
    """Progress of kernel compilation: a line for the first compilation of a command, and a bar for each."""

    def __init__(self) -> None:
        self.announced = False
        self.batch = False  # whether a total number of kernels is known
        self.bar: Any = None
        self.timer: threading.Timer | None = None
        self.lock = threading.RLock()

    def update(self, done: int, total: int, location: waiting.Location) -> None:
        """Show the number of compiled kernels."""
        with self.lock:
            if self.timer is not None:
                self.timer.cancel()
            self.batch = self.batch or total > done + 1
            if not self.announced:
                self.announced = True
                print(waiting.sentence(location, total if self.batch else None), file=sys.stderr, flush=True)
            if self.bar is None and done < total and _terminal_is_free():
                redirect = {"redirect_stdout": sys.stdout.isatty(), "refresh_per_second": 4}
                self.bar = started_bar("kernels", None, **redirect)
            if self.bar is not None:
                words = f"{done} of {total}" if self.batch else f"{done}"
                self.bar.update(self.bar.task_ids[0], completed=done, total=total if self.batch else None, words=words)
            if done == total:
                self.timer = threading.Timer(IDLE, self.stop)
                self.timer.daemon = True
                self.timer.start()

    def stop(self) -> None:
        """Remove the bar."""
        with self.lock:
            if self.timer is not None:
                self.timer.cancel()
            if self.bar is not None:
                self.bar.stop()
                self.bar = None


def _terminal_is_free() -> bool:
    """Whether standard error is a terminal without another progress bar."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        return False
    from rich.file_proxy import FileProxy

    return not isinstance(sys.stderr, FileProxy)


def started_bar(title: str, total: int | None, *columns: Any, **options: Any) -> Any:
    """Start a progress bar of rich on standard error, with one task that has a field ``words``."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    shown = (TextColumn(title), BarColumn(20), *columns, TextColumn("{task.fields[words]}"), TimeElapsedColumn())
    bar = Progress(*shown, console=Console(stderr=True), transient=True, **options)
    bar.add_task(title, total=total, words="")
    bar.start()
    return bar


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[int, str], None]]:
    """Context manager: a function ``say(done, words)`` that shows a bar on a terminal once a run takes two seconds."""
    bar: Any = None
    began = time.monotonic()

    def say(done: int, words: str) -> None:
        nonlocal bar
        if bar is None and sys.stderr.isatty() and time.monotonic() - began > _PATIENCE:
            from rich.progress import MofNCompleteColumn, TimeRemainingColumn

            bar = started_bar(title, total, MofNCompleteColumn(), TimeRemainingColumn())
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, words=words)

    try:
        yield say
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Context manager: the first Ctrl-C only sets a flag, a second one raises KeyboardInterrupt.

    Yields:
        A function that returns whether Ctrl-C was pressed.
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


def lines(rows: list[tuple[str, str]]) -> str:
    """Text of (name, value) rows, with the values in one column."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  " + value.replace("\n", "\n" + " " * (width + 2)) for name, value in rows)
