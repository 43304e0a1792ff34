"""Figures of results: ratios with goals, shares of the copy bandwidth, growth with size, whole networks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .measure import RESOLUTION
from .results import OURS, Record, fastest, whole_file

COLOURS = {"fwd": "#1f5fa8", "bwd": "#d9730d", "double_bwd": "#3a8f4d"}
COLOURS |= {"fwd+bwd": COLOURS["bwd"], "fwd+double": COLOURS["double_bwd"]}  # directions of layers
GREY, DASHES = "#666666", ("-", "--", ":", "-.")
OF_COPIES = "bytes moved once / time, as a share of the copy bandwidth"
OF_LIMIT = "least time by bytes or operations / time"
#: Panels of growth: field, factor, label, and least shown value.
MEASURED = (("seconds", 1000.0, "ms", 0.0), ("memory_bytes", 2**-20, "peak memory, MiB", float(RESOLUTION)))
Points = dict[tuple[str, Any], list[tuple[float, float]]]


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _logarithmic(axis: Axes, *which: str) -> None:
    """Make axes logarithmic, with ticks 1, 2, 5, 10, ... without exponents."""
    for name in which:
        getattr(axis, f"set_{name}scale")("log")
        ticks = getattr(axis, f"{name}axis")
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ticks.set_minor_formatter(NullFormatter())


def _best(case: Record, direction: str) -> Record | None:
    """The fastest result of this package over layouts, or None."""
    ours = [r for r in case["results"] if r["implementation"] == OURS and r["direction"] == direction and r["seconds"]]
    return min(ours, key=lambda r: float(r["seconds"]["median"]), default=None)


def _ratio(case: Record, direction: str) -> dict[str, float] | None:
    best, peer = _best(case, direction), fastest(case["results"], direction)
    if best is None or peer is None:
        return None
    key = (best["layout"], direction, peer["implementation"])
    return next((r["ratio"] for r in case["ratios"] if (r["layout"], r["direction"], r["peer"]) == key), None)


def _share(case: Record, direction: str) -> dict[str, float] | None:
    best = _best(case, direction)
    if best is None:
        return None
    share, seconds = best["share"], best["seconds"]
    return {"median": share} | {q: share * seconds["median"] / seconds[o] for q, o in (("q20", "q80"), ("q80", "q20"))}


def bars(cases: list[Record], title: str, label: str | None = None) -> Figure:
    """Bars by case and direction: shares, described by ``label``, or ratios to the fastest peer without a label."""
    value, start = (_ratio, 1.0) if label is None else (_share, 0.0)
    shown = {d: row for d in COLOURS if any(row := [value(case, d) for case in cases])}
    figure = _figure(7.2, 1.6 + 0.42 * len(cases))
    axis, height = figure.subplots(), 0.8 / max(1, len(shown))
    for number, (direction, row) in enumerate(shown.items()):
        at = np.arange(len(cases)) + (number - (len(shown) - 1) / 2) * height
        nothing = dict.fromkeys(("median", "q20", "q80"), np.nan)
        middle, low, high = (np.array([(v or nothing)[q] for v in row]) for q in nothing)
        error = np.nan_to_num(np.clip([middle - low, high - middle], 0, None))
        axis.barh(at, middle - start, height, start, xerr=error, color=COLOURS[direction], ecolor=GREY, label=direction)
    single_group = len({case["group"] for case in cases}) == 1
    names = [case["name"].partition("/")[2] if single_group else case["name"] for case in cases]
    axis.set_yticks(np.arange(len(cases)), names)
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.25)
    for direction, limit in cases[0]["goals_asked"].get("ratio" if label is None else "share", {}).items():
        axis.axvline(limit, color=COLOURS[direction], linestyle="--", linewidth=1.2, label=f"goal {direction}")
    if label is None:
        _logarithmic(axis, "x")
        axis.axvline(1, color=GREY, linewidth=0.8)
    axis.set(xlabel=label or "time of the fastest peer / time of eqlayers", title=title)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def grouped(points: Iterable[tuple[tuple[str, Any], tuple[float, float]]]) -> Points:
    """Group points by line, given as (name, variant)."""
    lines: Points = {}
    for key, point in points:
        lines.setdefault(key, []).append(point)
    return lines


def draw_panels(panels: dict[tuple[str, str], Points], xlabel: str, word: str, colours: dict[Any, str]) -> Figure:
    """Draw a panel for each (title, axis label), with a line for each (name, variant).

    ``colours`` maps names or variants to colours; the other part sets the dashes.
    """
    height = max(1, -(-len(panels) // 2))
    figure = _figure(9.2, 0.6 + 3.2 * height)
    axes = figure.subplots(height, 2, squeeze=False).flatten()
    keys = dict.fromkeys(part for lines in panels.values() for key in lines for part in key if part not in colours)
    dashes = dict(zip(keys, cycle(DASHES), strict=False))
    for axis, ((title, label), lines) in zip(axes, panels.items(), strict=False):
        for key, points in lines.items():
            (colour,), (dash,) = ([of[part] for part in key if part in of] for of in (colours, dashes))
            x, y = zip(*sorted(points), strict=True)
            axis.plot(x, y, label=word.format(*key), marker="o", markersize=3, color=colour, linestyle=dash)
        _logarithmic(axis, "x", "y")
        axis.set(xlabel=xlabel, ylabel=label, title=title)
        axis.grid(alpha=0.25, which="both")
        axis.legend(fontsize=5)
    for axis in axes[len(panels) :]:
        axis.remove()
    return figure


def growth(cases: list[Record], title: str) -> Figure:
    """Time and peak memory of each implementation by number of edges, for cases of one problem."""
    panels: dict[tuple[str, str], Points] = {}
    for key, factor, label, least in MEASURED:
        lines = grouped(
            ((f"{row['implementation']} {row['layout']}".strip(), row["direction"]), (case["edges"], factor * value))
            for case in cases
            for row in case["results"]
            if (value := row[key]["median"] if isinstance(row[key], dict) else row[key]) and value >= least
        )
        panels |= {("", label): lines} if lines else {}
    figure = draw_panels(panels, "edges", "{}, {}", COLOURS)
    figure.suptitle(title, fontsize=10)
    return figure


def times_by_atoms(rows: list[Record]) -> Figure:
    """Microseconds per atom by number of atoms: a panel for each network and mode, a line for each implementation."""
    panels: dict[tuple[str, str], Points] = {}
    timed = [row for row in rows if row["seconds"]]
    for row in timed:
        lines = panels.setdefault((f"{row['network']}, {row['what']}", "microseconds per atom"), {})
        point = row["atoms"], row["seconds"]["median"] / row["atoms"] * 1e6
        lines.setdefault((row["implementation"], row["threads"]), []).append(point)
    names = dict.fromkeys(row["implementation"] for row in timed)
    return draw_panels(panels, "atoms", "{}, threads: {}", {name: f"C{n % 10}" for n, name in enumerate(names)})


def figures_of(result: Record) -> dict[str, Figure]:
    """All figures of a result by name: ratios and shares by group or layer, growth by problem."""
    if result["kind"] == "networks":
        return {f"{result['suite']}_networks": times_by_atoms(result["rows"])}
    return _of_cases(result) if "cases" in result else {}


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    with whole_file(path) as file:
        figure.savefig(file, format="png")


def _of_cases(result: Record) -> dict[str, Figure]:
    of_layers, suite = result["kind"] == "layers", result["suite"]
    timed = [case for case in result["cases"] if any(row["seconds"] for row in case["results"])]
    about, figures = f"{result['dtype']}, threads: {result['machine']['threads']}", {}
    for group in dict.fromkeys(case["operation" if of_layers else "group"] for case in timed):
        cases = [case for case in timed if case["operation" if of_layers else "group"] == group]
        title = f"{suite}: {group}, {about}"
        if any(case["ratios"] for case in cases):
            figures[f"{suite}_{group}_ratios"] = bars(cases, title)
        if any(_best(case, direction) for case in cases for direction in COLOURS):
            figures[f"{suite}_{group}_shares"] = bars(cases, title, OF_LIMIT if of_layers else OF_COPIES)
    for group, problem in dict.fromkeys((case["group"], case["problem"]) for case in timed):
        cases = [case for case in timed if (case["group"], case["problem"]) == (group, problem)]
        if len({case["edges"] for case in cases}) > 1:
            figures[f"{suite}_{group}_{problem}_growth"] = growth(cases, f"{suite}: {group}, {about}, {problem}")
    return figures
