"""Renews the tables of mistakes that are found: ``python -m tests.mistakes.page docs/howto/data_mistakes.md``.

The sentences of the page stay: its example, its tables and the counts in its sentences are replaced.
"""

import multiprocessing
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from textwrap import wrap

from rich.progress import Progress

from eqlayers.data.structures import StructureArrays

from .mistakes import MISTAKES, Mistake, in_units, said_of
from .sets import POOLS, SETS

NAMED, OTHER, MISSED = "●", "○", "–"
SIZES = (10, 30, 100)
DRAWS_OF_MISTAKES, DRAWS_OF_RIGHT = 1, 30


def found(mistake: Mistake, structures: StructureArrays) -> str:
    """Field of the table."""
    if not mistake.applies(structures):
        return ""
    said = said_of(mistake.made(structures))
    named = any(cause in text for cause in mistake.cause for text in said)
    return NAMED if named else OTHER if said else MISSED


def row_of(mistake: int) -> list[str]:
    """Fields of a mistake, one for each set."""
    return [found(MISTAKES[mistake], of()) for _, of in SETS.values()]


def draws_of(name: str, size: int, number: int) -> list[StructureArrays]:
    """Draws of a set; none if the set is smaller."""
    return [draw for seed in range(number) if len(draw := POOLS[name](size, seed)) == size]


def share(name: str, size: int) -> str:
    """Share of the mistakes that are found."""
    draws = draws_of(name, size, DRAWS_OF_MISTAKES)
    fields = [found(mistake, draw) for draw in draws for mistake in MISTAKES if mistake.applies(draw)]
    return f"{1 - fields.count(MISSED) / len(fields):.0%}" if fields else ""


def alarms(name: str, size: int) -> tuple[int, int]:
    """Draws of right structures that get a warning, and all draws."""
    said = [bool(said_of(draw)) for draw in draws_of(name, size, DRAWS_OF_RIGHT)]
    return sum(said), len(said)


def table(names: list[str], fields: list[str]) -> str:
    """A table of sets by number of structures."""
    lines = [f"| set | {' | '.join(f'{size} structures' for size in SIZES)} |", f"|---|{'--:|' * len(SIZES)}"]
    rows = (fields[start : start + len(SIZES)] for start in range(0, len(fields), len(SIZES)))
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in zip(names, rows, strict=True)]
    return "\n".join(lines) + "\n"


def renewed(text: str, example: str, tables: list[str], missed: str, warned: str) -> str:
    """The text of the page with another example, other tables in their order, and other counts."""
    left = iter(tables)
    text = re.sub(r"(?<=```text\n).*?(?=```)", lambda _: example, text, count=1, flags=re.DOTALL)
    text = re.sub(r"(?:^\|.*\n)+", lambda _: next(left), text, flags=re.MULTILINE)
    assert next(left, None) is None, "a table has no place in the page"
    return re.sub(r"\d+ of \d+(?= draws got)", warned, re.sub(r"\d+ of \d+(?= fields are)", missed, text))


def page(text: str, processes: int) -> str:
    """The text of the page with the numbers of now, by several processes."""
    (example,) = said_of(in_units(("energy", "kcal/mol")).made(SETS["molecules"][1]()))
    for _, of in SETS.values():
        of()  # once, for all processes
    labelled = [name for name in POOLS if name != "minima"]
    with Progress() as progress, ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as workers:
        tasks = [workers.submit(row_of, mistake) for mistake in range(len(MISTAKES))]
        shares = [workers.submit(share, name, size) for name in labelled for size in SIZES]
        counts = [workers.submit(alarms, name, size) for name in POOLS for size in SIZES]
        every = [*tasks, *shares, *counts]
        for _ in progress.track(as_completed(every), total=len(every), description="mistakes"):
            pass
    rows = [task.result() for task in tasks]
    counted = [task.result() for task in counts]
    fields = [field for row in rows for field in row if field]
    warned, drawn = (sum(column) for column in zip(*counted, strict=True))
    lines = [f"| mistake | {' | '.join(SETS)} |", f"|---|{':-:|' * len(SETS)}"]
    lines += [f"| {mistake.name} | {' | '.join(row)} |" for mistake, row in zip(MISTAKES, rows, strict=True)]
    sets = ["| set | structures |", "|---|---|", *(f"| {name} | {what} |" for name, (what, _) in SETS.items())]
    tables = [
        *("\n".join([*part, ""]) for part in (lines, sets)),
        table(labelled, [task.result() for task in shares]),
        table(list(POOLS), [f"{some} of {number}" if number else "" for some, number in counted]),
    ]
    wrapped = "\n".join(wrap(f"warning: {example}", 88)) + "\n"
    return renewed(text, wrapped, tables, f"{fields.count(MISSED)} of {len(fields)}", f"{warned} of {drawn}")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text(), os.cpu_count() or 1))
