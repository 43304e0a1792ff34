"""A page of sections in one HTML file: texts, facts, tables, folded text, and figures of matplotlib in its colours.

Figures do not use or change the global state of matplotlib.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from ..core.errors import needs_packages
from ..core.files.read_write import atomic_write

with needs_packages("eqlayers.pages", "train"):
    import matplotlib
    import rich.table
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which people with any kind of colour vision tell apart, on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6d1f", "#808080")
GREY = "#808080"
#: Colours of matplotlib's frames and texts -> colours of the page, which is light or dark.
_OF_PAGE = {"#000000": "currentColor", "#ffffff": "var(--paper)", "#cccccc": "var(--line)", "#b0b0b0": "var(--line)"}
_NO_DATE = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Text:
    """A paragraph; the page marks a warning by a bar beside it."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Facts:
    """A list of names with their values."""

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
    """Preformatted text that the page shows folded under a title."""

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
        """The HTML id of the section, to which the table of contents links."""
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
    """Write a page with a heading and a sentence below it atomically. Sections without content are left out."""
    shown = [section for section in sections if section.blocks]
    numbers = count()
    html = _template().render(
        title=title, about=about, sections=shown, svg=lambda block: as_svg(block.figure, f"f{next(numbers)}")
    )
    with atomic_write(Path(path)) as file:
        file.write(html.encode())


def new_figure(width: float = 4.6, height: float = 3.6) -> Figure:
    """An empty figure of this width and height in inches."""
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a PNG atomically."""
    with atomic_write(Path(path)) as file:
        figure.savefig(file, format="png")


def as_svg(figure: Figure, name: str) -> str:
    """The figure as an element of an HTML page, whose colours of text and paper it takes."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=_NO_DATE)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")  # HTML knows what an svg is
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: _OF_PAGE.get(match[0], match[0]), svg)


def number(value: Any) -> str:
    """Format a number with four significant digits, from 10,000 on without exponent; '-' for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
