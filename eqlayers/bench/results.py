"""Results: goals with measured values, text tables, and JSON and CSV files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING, Any

from ..core.errors import ConfigError
from ..core.files.read_write import atomic_write, read_json
from .measure import RESOLUTION

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Record = dict[str, Any]
#: Function that is called with a text before each step of a measurement.
Say = Callable[[str], None]
#: Name of this package, the prefix of names of its variants.
OURS = "eqlayers"
FORMAT = 1  # version of the JSON format
KINDS = ("run", "step", "overhead", "accelerate", "layers", "networks", "first-gpu")
# quantity -> whether the goal is a lower limit
GOALS = {"ratio": True, "median_ratio": True, "share": True, "memory": False, "time_ms": False, "times_bound": False}
WORDS = {
    "ratio": "times faster than the fastest peer",
    "median_ratio": "times faster than the fastest peer, median of the problems",
    "share": "of the copy bandwidth",
    "memory": "of the peer's peak memory",
    "time_ms": "ms",
    "times_bound": "times the bound of the kernels on this card",
    "host_us": "us",
}


def quiet(text: str) -> None:
    """A :data:`Say` that ignores the text."""


def nothing(result: Record) -> None:
    """Ignore a partial result."""


# -- goals ------------------------------------------------------------------------------------------------------------


def goal(quantity: str, limit: float, measured: float | None, **where: Any) -> Record:
    """Record of a goal; ``met`` is None without a measured value.

    Example:
        >>> goal("ratio", 30, 41.5, direction="fwd")["met"]
        True
    """
    at_least = GOALS.get(quantity, False)
    met = None if measured is None else bool(measured >= limit if at_least else measured <= limit)
    return {**where, "quantity": quantity, "at_least": at_least, "goal": limit, "measured": measured, "met": met}


def of_others(row: Record) -> bool:
    """Whether a row is of a peer, not of this package."""
    return not row["implementation"].startswith(OURS)


def fastest(results: Iterable[Record], direction: str) -> Record | None:
    """The fastest timed row of a peer in a direction, or None."""
    timed = [r for r in results if of_others(r) and r["direction"] == direction and r["seconds"]]
    return min(timed, key=lambda r: float(r["seconds"]["median"]), default=None)


def device_seconds(row: Record) -> Any:
    """Times with an emptied cache and hidden launches if measured, else normal times."""
    return row.get("seconds_flushed") or row["seconds"]


def measured_value(quantity: str, row: Record, results: Sequence[Record], ratios: Sequence[Record]) -> float | None:
    """Value of a goal's quantity for a row of this package; None if it or the peer was not measured."""
    direction = row["direction"]
    if quantity == "share":
        return row["share"]
    if quantity == "time_ms":
        return None if row["seconds"] is None else device_seconds(row)["median"] * 1000
    if quantity == "times_bound":
        bound = row.get("bound_seconds")
        return None if row["seconds"] is None or not bound else device_seconds(row)["median"] / bound
    if quantity == "memory":
        others = [r["memory_bytes"] for r in results if of_others(r) and r["direction"] == direction]
        others = [value for value in others if value and value >= RESOLUTION]
        return row["memory_bytes"] / min(others) if others and row["memory_bytes"] is not None else None
    peer = fastest(results, direction)
    of_layout = [r for r in ratios if r["layout"] == row["layout"] and r["direction"] == direction]
    medians = [r["ratio"]["median"] for r in of_layout if peer is not None and r["peer"] == peer["implementation"]]
    return medians[0] if medians else None


def judge(goals: dict[str, dict[str, float]], results: Sequence[Record], ratios: Sequence[Record]) -> list[Record]:
    """Goals of a case for each layout, without medians over cases; see :func:`judge_groups`."""
    return [
        goal(quantity, limit, measured_value(quantity, row, results, ratios), direction=direction, layout=row["layout"])
        for quantity, limits in goals.items()
        if quantity != "median_ratio"
        for direction, limit in limits.items()
        for row in results
        if row["implementation"] == OURS and row["direction"] == direction
    ]


def judge_groups(cases: Sequence[Record]) -> list[Record]:
    """Goals on medians over the cases of each group."""
    rows = []
    for group in dict.fromkeys(case["group"] for case in cases):
        members = [case for case in cases if case["group"] == group]
        for direction, limit in members[0]["goals_asked"].get("median_ratio", {}).items():
            for layout in members[0]["layouts"]:
                values = [
                    measured_value("ratio", result, case["results"], case["ratios"])
                    for case in members
                    for result in case["results"]
                    if (result["implementation"], result["layout"], result["direction"]) == (OURS, layout, direction)
                ]
                known = [value for value in values if value is not None]
                value = median(known) if known and len(known) == len(values) else None
                rows.append(goal("median_ratio", limit, value, group=group, direction=direction, layout=layout))
    return rows


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A text table with notes, for the terminal or Markdown; columns with headings '>...' are right-aligned."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def rich(self) -> RichTable:
        """The table as an object of the package rich."""
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, title_justify="left", caption="\n".join(self.notes) or None)
        table.caption_justify = "left"
        for name in self.columns:
            table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
        for row in self.rows:
            style = {"met": "green", "missed": "red"}.get(row[-1]) if row else None
            table.add_row(*(cell.replace("[", r"\[") for cell in row), style=style)
        return table

    def markdown(self, level: int = 1) -> str:
        """The table as Markdown under a heading of ``level``.

        Example:
            >>> print(Table("Times", ["layer", ">ms"], [["Linear", "1.5"]], ["On one core."]).markdown())
            # Times
            <BLANKLINE>
            | layer | ms |
            | :-- | --: |
            | Linear | 1.5 |
            <BLANKLINE>
            On one core.
        """
        rules = ["--:" if name.startswith(">") else ":--" for name in self.columns]
        lines = [[name.lstrip(">") for name in self.columns], rules, *self.rows]
        table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        return "\n\n".join([f"{'#' * level} {self.title}", table, *self.notes])


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits; '-' for None.

    Example:
        >>> number(0.012345), number(1234.5), number(None)
        ('0.0123', '1234', '-')
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    if abs(value) < 1e-6:
        return f"{value:.1e}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:.{digits + 6}f}".rstrip("0")


def spread(values: dict[str, Any] | None, factor: float = 1.0) -> str:
    """Format a median with 20 % and 80 % quantiles in brackets; '-' for None.

    Example:
        >>> spread({"median": 0.002, "q20": 0.0019, "q80": 0.0025}, 1000)
        '2 [1.9, 2.5]'
    """
    if values is None:
        return "-"
    middle, low, high = (number(values[key] * factor) for key in ("median", "q20", "q80"))
    return f"{middle} [{low}, {high}]"


def mebibytes(value: float | None) -> str:
    """Format bytes as MiB; '-' for None."""
    return "-" if value is None else number(value / 2**20)


def verdict(met: bool | None) -> str:
    """Text of ``met`` of a goal."""
    return {True: "met", False: "missed", None: "not measured"}[met]


# -- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Context manager: a file written atomically, with a ConfigError if it cannot be written."""
    try:
        with atomic_write(path) as file:
            yield file
    except OSError as error:
        raise ConfigError(
            f"a result must go to a file that can be written, got {path}: {error.strerror or error}. Name another."
        ) from error


def save(result: Record, path: str | Path) -> None:
    """Write a result as JSON."""
    with whole_file(Path(path)) as file:
        file.write((json.dumps({"format": FORMAT, **result}, indent=1) + "\n").encode())


def load(path: str | Path, kinds: Sequence[str] = KINDS) -> Record:
    """Read a result written by :func:`save`, of one of ``kinds``."""
    fix = "Give a file that `eqlayers bench run SUITE --json FILE` wrote."
    result = read_json(Path(path), "a result", fix)
    if not isinstance(result, dict) or result.get("kind") not in kinds or result.get("format") != FORMAT:
        raise ConfigError(f"a result must be one of format {FORMAT}, got another content in {str(path)!r}. {fix}")
    return result


def flat_rows(result: Record) -> list[Record]:
    """Rows for CSV: one for each implementation, layout and direction of a case, or the rows of other results.

    Example:
        >>> flat_rows({"kind": "step", "commit": "c", "date": "d", "rows": [{"seconds": {"median": 1, "q20": 0}}]})
        [{'commit': 'c', 'date': 'd', 'seconds_median': 1, 'seconds_q20': 0}]
    """
    head = {key: result.get(key) for key in ("commit", "date")}
    about = ("name", "group", "problem", "operation", "graph", "dtype", "nodes", "edges", "runs")
    if "cases" in result:
        rows = [{key: case[key] for key in about} | row for case in result["cases"] for row in case["results"]]
    else:
        rows = result["rows"]
    return [
        head
        | {
            name: part
            for key, value in row.items()
            for name, part in (
                {f"{key}_{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
            ).items()
        }
        for row in rows
    ]


def save_csv(result: Record, path: str | Path) -> None:
    """Write :func:`flat_rows` as CSV."""
    rows, text = flat_rows(result), StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with whole_file(Path(path)) as file:
        file.write(text.getvalue().encode())
