"""What a command shows while it works and when it is done: a progress bar, then tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .run import Say
from .tables import Table

FILE_WIDTH = 180  # of output that is not a terminal


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Say]:
    """A progress bar on standard error; where that is no terminal, one line for each step.

    Args:
        title: Of the command.
        total: Steps, if their number is known.

    Yields:
        A function to be called with a few words before every step.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"{title}: {text}", highlight=False, soft_wrap=True, markup=False)
        return
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
    """Print tables, and a sentence after them."""
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=FILE_WIDTH)
    for table in tables:
        console.print(table.rich())
        console.print()
    console.print(last, highlight=False, markup=False)
