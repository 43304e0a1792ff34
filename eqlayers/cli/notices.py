"""Warnings of a command as lines, each once, and one line and a bar while kernels are compiled."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eqlayers_kernels import waiting

OWN = ("eqlayers", "eqlayers_kernels")
KEPT = "kernels that were compiled are kept"
IDLE = 0.5  # seconds that the bar stays after the last kernel, as the next may follow


def package_of(filename: str, category: type = UserWarning) -> str:
    """The package that warns, '' for this one, by the class of the warning; of Python's own classes by the file.

    The file alone does not tell, as it can be a caller's.

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
        return "" if module in OWN else module
    parts = Path(filename).parts
    if "site-packages" in parts[:-1]:
        name = parts[len(parts) - parts[::-1].index("site-packages")].removesuffix(".py")
        return "" if name in OWN else name
    return ""


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """A block in which warnings that are not filtered out are lines on standard error."""
    said: set[str] = set()

    def show(
        message: Warning | str, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        text = " ".join(str(message).split())
        package = package_of(filename, category)
        if text not in said:
            said.add(text)
            print(f"warning: {f'{package}: ' if package else ''}{text}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def shown() -> Iterator[None]:
    """A block in which compiling that takes more than two seconds is shown on standard error.

    Raises:
        KeyboardInterrupt: After Ctrl-C, with what became of the kernels if some were compiled.
    """
    bar = _Bar()
    try:
        with waiting.listening(bar.update) as count:
            try:
                yield
            except KeyboardInterrupt:
                raise KeyboardInterrupt(*([KEPT] if count.done else [])) from None
    finally:
        bar.stop()


class _Bar:
    """One line for a command, and a bar for every time that it waits for the compiler."""

    def __init__(self) -> None:
        self.said = False
        self.batch = False  # whether several kernels are known to be wanted, so that their number says something
        self.bar: Any = None
        self.task: Any = None
        self.timer: threading.Timer | None = None
        self.lock = threading.RLock()

    def update(self, done: int, wanted: int, place: waiting.Place) -> None:
        """Show how many of the wanted kernels are compiled."""
        with self.lock:
            if self.timer is not None:
                self.timer.cancel()
            self.batch = self.batch or wanted > done + 1
            if not self.said:
                self.said = True
                print(waiting.sentence(place, wanted if self.batch else None), file=sys.stderr, flush=True)
            if self.bar is None and done < wanted and _has_place():
                redirect = {"redirect_stdout": sys.stdout.isatty(), "refresh_per_second": 4}
                self.bar, self.task = started_bar("kernels", None, **redirect)
            if self.bar is not None:
                words = f"{done} of {wanted}" if self.batch else f"{done}"
                self.bar.update(self.task, completed=done, total=wanted if self.batch else None, words=words)
            if done == wanted:
                self.timer = threading.Timer(IDLE, self.stop)
                self.timer.daemon = True
                self.timer.start()

    def stop(self) -> None:
        """Take the bar away."""
        with self.lock:
            if self.timer is not None:
                self.timer.cancel()
            if self.bar is not None:
                self.bar.stop()
                self.bar = None


def _has_place() -> bool:
    """Whether standard error is a terminal that no other bar has taken over."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        return False
    from rich.file_proxy import FileProxy

    return not isinstance(sys.stderr, FileProxy)


def started_bar(title: str, total: int | None, *columns: Any, **options: Any) -> tuple[Any, Any]:
    """A bar of rich on standard error, with columns and words behind it, and its task."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    shown = (TextColumn(title), BarColumn(20), *columns, TextColumn("{task.fields[words]}"), TimeElapsedColumn())
    bar = Progress(*shown, console=Console(stderr=True), transient=True, **options)
    bar.start()
    return bar, bar.add_task(title, total=total, words="")
