"""The output of a command: a progress bar while it works, then tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from .run import Say
from .tables import Table

FILE_WIDTH = 180  # of output that is not a terminal


def _has_rich() -> bool:
    return find_spec("rich") is not None


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Say]:
    """A progress bar on standard error; where that is no terminal, one line for each step.

    Args:
        title: Of the command.
        total: Steps, if their number is known.

    Yields:
        A function to be called with a few words before every step.
    """
    if not (_has_rich() and sys.stderr.isatty()):
        yield lambda text: print(f"{title}: {text}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        started = False

        def say(text: str) -> None:
            nonlocal started
            bar.update(task, advance=1 if started else 0, description=f"{title}: {text}".replace("[", r"\["))
            started = True

        yield say


def show(tables: list[Table], last: str) -> None:
    """Print tables, and a sentence after them unless it is empty; as Markdown without the package rich."""
    if not _has_rich():
        print("\n".join([*(table.markdown() + "\n" for table in tables), *([last] if last else [])]))
        return
    from rich.console import Console

    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=FILE_WIDTH)
    for table in tables:
        console.print(table.rich())
        console.print()
    if last:
        console.print(last, highlight=False, markup=False)
