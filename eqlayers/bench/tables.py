"""Tables of results: made once as text, shown by Rich on a terminal or written as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        title: Above it.
        columns: Headings; those that begin with '>' are numbers, aligned to the right.
        rows: Cells.
        notes: Sentences below it.
    """

    title: str
    columns: Sequence[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def rich(self) -> RichTable:
        """The table for a terminal; needs the package rich."""
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, title_justify="left", caption="\n".join(self.notes) or None)
        table.caption_justify = "left"
        for name in self.columns:
            table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row), style=_style(row))
        return table

    def markdown(self, level: int = 1) -> str:
        """The table for a file, under a heading of a level.

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


def _style(row: Sequence[str]) -> str | None:
    return {"met": "green", "missed": "red"}.get(row[-1]) if row else None


def number(value: float | None, digits: int = 3) -> str:
    """A number with a few digits, never with an exponent; '-' for none.

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
    """Median, and the 20 % and 80 % quantiles in brackets; '-' for none.

    Example:
        >>> spread({"median": 0.002, "q20": 0.0019, "q80": 0.0025}, 1000)
        '2 [1.9, 2.5]'
    """
    if values is None:
        return "-"
    middle, low, high = (number(values[key] * factor) for key in ("median", "q20", "q80"))
    return f"{middle} [{low}, {high}]"


def mebibytes(value: float | None) -> str:
    """Bytes as MiB."""
    return "-" if value is None else number(value / 2**20)


def verdict(met: bool | None) -> str:
    """The verdict on a goal."""
    return {True: "met", False: "missed", None: "not measured"}[met]
