"""Colours and helpers of the pictures: one SVG file serves light and dark pages.

Matplotlib writes plain colours. `save` turns each colour into a CSS variable, whose value depends on the theme that the
browser asks for. The card behind the drawing changes with it, so a picture is legible on any page. Okabe and Ito
chose these colours; people with colour blindness can tell them apart.
"""

import re
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

FOLDER = Path(__file__).resolve().parent
matplotlib.rcParams.update({"svg.hashsalt": "eqlayers", "svg.fonttype": "path", "font.size": 9.5})

#: name: light theme, dark theme
COLORS = {
    "card": ("#fbfbf8", "#1d1f22"),
    "ink": ("#24292f", "#e4e6e9"),
    "faint": ("#6a727b", "#9aa2ab"),
    "line": ("#c8cdd2", "#474d54"),
    "blue": ("#0072b2", "#5ab4ec"),
    "orange": ("#c65a00", "#f0a04b"),
    "green": ("#007f5f", "#3fc79c"),
    "purple": ("#a8508a", "#dd93bd"),
    "blue-fill": ("#d3e7f4", "#16394f"),
    "orange-fill": ("#fbe3cd", "#4f3216"),
    "green-fill": ("#d0ece3", "#12422f"),
    "purple-fill": ("#f2dcea", "#452238"),
    "grey-fill": ("#eceef0", "#2e3236"),
}
CARD, INK, FAINT, LINE, BLUE, ORANGE, GREEN, PURPLE = (light for light, _ in list(COLORS.values())[:8])
BLUE_FILL, ORANGE_FILL, GREEN_FILL, PURPLE_FILL, GREY_FILL = (light for light, _ in list(COLORS.values())[8:])


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many units of a tenth of an inch, whose axes have the same units, y upwards."""
    figure = Figure(figsize=(width / 10, height / 10))
    figure.patch.set_alpha(0)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axis.axis("off")
    return figure, axis


def text(axis: Axes, x: float, y: float, words: str, color: str = INK, size: float = 9.5, **options: object) -> None:
    """Words centred at a point."""
    options = {"ha": "center", "va": "center"} | options
    axis.text(x, y, words, color=color, fontsize=size, **options)


def box(
    axis: Axes, x: float, y: float, w: float, h: float, fill: str, edge: str, words: str = "", **font: object
) -> None:
    """A rounded box with its lower left corner at (x, y)."""
    shape = FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0,rounding_size=0.8", fc=fill, ec=edge, lw=1.1)
    axis.add_patch(shape)
    if words:
        text(axis, x + w / 2, y + h / 2, words, **font)


def arrow(
    axis: Axes, start: tuple[float, float], end: tuple[float, float], color: str = FAINT, **options: object
) -> None:
    """An arrow from point to point."""
    options = {"arrowstyle": "-|>", "mutation_scale": 9, "lw": 1.2, "shrinkA": 0, "shrinkB": 0} | options
    axis.add_patch(FancyArrowPatch(start, end, color=color, **options))


def save(figure: Figure, name: str) -> Path:
    """Write NAME.svg beside this file, with variables in place of colours."""
    path = FOLDER / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    drawn = path.read_text()
    for key, (light, _) in COLORS.items():
        drawn = re.sub(light, f"var(--{key})", drawn, flags=re.IGNORECASE)
    left = set(re.findall(r"(?<=[: ])#[0-9a-f]{6}\b", drawn))
    if left:
        raise SystemExit(f"colours of {name} must be colours of style.py, got {sorted(left)}")
    themes = ["".join(f"--{key}: {pair[theme]}; " for key, pair in COLORS.items()) for theme in (0, 1)]
    css = f"svg {{ {themes[0]}}}\n@media (prefers-color-scheme: dark) {{ svg {{ {themes[1]}}} }}"
    head = f'<style>\n{css}\n</style>\n<rect width="100%" height="100%" rx="7" style="fill: var(--card)"/>\n'
    before, found, after = drawn.partition("</defs>\n")
    path.write_text(before + found + head + after)
    return path
