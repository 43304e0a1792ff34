"""A page of sections: texts, facts, tables, figures and folded text, written to one HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import rich.table
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from matplotlib.figure import Figure

from ..core.files.read_write import atomic_write
from .drawing import as_svg


@dataclass(frozen=True)
class Text:
    """A paragraph; a warning has a bar beside it."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    rows: Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """Rows of texts; columns after the first ``left`` ones are numbers, which end at the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    left: int = 1

    def rich(self, title: str) -> Any:
        """The table for a terminal, with another title."""
        table = rich.table.Table(title=title, title_justify="left")
        for column, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if column < self.left else "right")
        for row in self.rows:
            table.add_row(*row)
        return table


@dataclass(frozen=True)
class Picture:
    """A figure, and what it shows."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Code:
    """A text as it is in a file, folded under a line."""

    title: str
    text: str


Block = Text | Facts | Table | Picture | Code


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        """The name that the table of contents leads to."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def groups(self) -> list[list[Block]]:
        """The blocks; pictures that follow each other are one group, which the page sets side by side."""
        groups: list[list[Block]] = []
        for block in self.blocks:
            if groups and isinstance(block, Picture) and isinstance(groups[-1][-1], Picture):
                groups[-1].append(block)
            else:
                groups.append([block])
        return groups


@cache
def _template() -> Template:
    options: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined}
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **options).get_template("page.html")


def write_page(path: str | Path, title: str, about: str, sections: Iterable[Section]) -> None:
    """Write a page atomically. Sections without content are left out.

    Args:
        path: The file.
        title: Its heading.
        about: A sentence below the heading.
        sections: In their order.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "page.html"
        >>> write_page(path, "run water", "A network.", [Section("Data", [Facts({"frames": "7"})]), Section("No", [])])
        >>> "#data" in path.read_text(), "#no" in path.read_text()
        (True, False)
    """
    shown = [section for section in sections if section.blocks]
    numbers = count()
    html = _template().render(
        title=title, about=about, sections=shown, svg=lambda block: as_svg(block.figure, f"f{next(numbers)}")
    )
    with atomic_write(Path(path)) as file:
        file.write(html.encode())
