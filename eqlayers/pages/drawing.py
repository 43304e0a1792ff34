"""Figures of matplotlib without its global state: their colours, their numbers, and how files and pages hold them."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..core.files.read_write import atomic_write

#: Okabe and Ito's colours, which people with any kind of colour vision tell apart, on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6d1f", "#808080")
GREY = "#808080"
#: Colours of matplotlib's frames and texts -> colours of the page, which is light or dark.
_OF_PAGE = {"#000000": "currentColor", "#ffffff": "var(--paper)", "#cccccc": "var(--line)", "#b0b0b0": "var(--line)"}
_NO_DATE = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def new_figure(width: float = 4.6, height: float = 3.6) -> Figure:
    """An empty figure.

    Args:
        width, height: Inches.

    Returns:
        The figure.

    Example:
        >>> new_figure(4.0, 3.0).get_size_inches().tolist()
        [4.0, 3.0]
    """
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a PNG atomically.

    Args:
        figure: The figure.
        path: The file.
    """
    with atomic_write(Path(path)) as file:
        figure.savefig(file, format="png")


def as_svg(figure: Figure, name: str) -> str:
    """The figure as an element of an HTML page, whose colours of text and paper it takes.

    Example:
        >>> as_svg(new_figure(), "empty")[:4]
        '<svg'
    """
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=_NO_DATE)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")  # HTML knows what an svg is
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: _OF_PAGE.get(match[0], match[0]), svg)


def number(value: Any) -> str:
    """Four digits, never with an exponent where the number is large; a dash for None and NaN.

    Example:
        >>> number(0.0123456), number(58765.4), number(None)
        ('0.01235', '58,765', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
