"""Pictures: ratios of a suite with its goals, shares of the copy bandwidth, growth, errors by knots, whole networks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..files import plain_name
from .measure import RESOLUTION
from .report import RENAME
from .results import OURS, Record, fastest, whole_file

COLOURS = {"fwd": "#1f5fa8", "bwd": "#d9730d", "double_bwd": "#3a8f4d"}
COLOURS |= {"fwd+bwd": COLOURS["bwd"], "fwd+double": COLOURS["double_bwd"]}  # of whole calls
GREY, DASHES = "#666666", ("-", "--", ":", "-.")
OF_COPIES = "bytes moved once / time, as a share of the copy bandwidth"
OF_LIMIT = "least time by bytes or operations / time"
Points = dict[tuple[str, Any], list[tuple[float, float]]]


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _logarithmic(axis: Axes, *which: str) -> None:
    """Numbers 1, 2, 5, 10, ... without exponents."""
    for name in which:
        getattr(axis, f"set_{name}scale")("log")
        one = getattr(axis, f"{name}axis")
        one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        one.set_minor_formatter(NullFormatter())


def _best(case: Record, direction: str) -> Record | None:
    """This package's result in the layout that is fastest."""
    own = [r for r in case["results"] if r["implementation"] == OURS and r["direction"] == direction and r["seconds"]]
    return min(own, key=lambda r: float(r["seconds"]["median"]), default=None)


def _ratio(case: Record, direction: str) -> dict[str, float] | None:
    own, peer = _best(case, direction), fastest(case["results"], direction)
    if own is None or peer is None:
        return None
    key = (own["layout"], direction, peer["implementation"])
    return next((r["ratio"] for r in case["ratios"] if (r["layout"], r["direction"], r["peer"]) == key), None)


def _share(case: Record, direction: str) -> dict[str, float] | None:
    best = _best(case, direction)
    if best is None:
        return None
    share, seconds = best["share"], best["seconds"]
    return {"median": share} | {q: share * seconds["median"] / seconds[o] for q, o in (("q20", "q80"), ("q80", "q20"))}


def bars(cases: list[Record], title: str, label: str | None = None) -> Figure:
    """Bars by problem and direction with quantiles and goals: shares as the label says, or ratios to the fastest peer.

    Args:
        cases: Records of one group.
        title: Above the picture.
        label: Below the axis of shares; None for ratios, on a logarithmic axis.
    """
    value, start = (_ratio, 1.0) if label is None else (_share, 0.0)
    found = {d: [value(case, d) for case in cases] for d in COLOURS}
    found = {d: row for d, row in found.items() if any(row)}
    figure = _figure(7.2, 1.6 + 0.42 * len(cases))
    axis, height = figure.subplots(), 0.8 / max(1, len(found))
    for number, (direction, row) in enumerate(found.items()):
        at = np.arange(len(cases)) + (number - (len(found) - 1) / 2) * height
        nothing = dict.fromkeys(("median", "q20", "q80"), np.nan)
        middle, low, high = (np.array([(v or nothing)[q] for v in row]) for q in nothing)
        error = np.nan_to_num(np.clip([middle - low, high - middle], 0, None))
        axis.barh(at, middle - start, height, start, xerr=error, color=COLOURS[direction], ecolor=GREY, label=direction)
    of_one_group = len({case["group"] for case in cases}) == 1
    names = [case["name"].partition("/")[2] if of_one_group else case["name"] for case in cases]
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


def _grouped(points: Iterable[tuple[tuple[str, Any], tuple[float, float]]]) -> Points:
    lines: Points = {}
    for key, point in points:
        lines.setdefault(key, []).append(point)
    return lines


def _lines(axis: Axes, lines: Points, colours: dict[Any, str], dashes: dict[Any, str], word: str) -> None:
    """A line for each key (name, variant); the colour is by one of the two, the dashes by the other."""
    for (name, variant), points in lines.items():
        style = {"color": colours.get(variant, colours.get(name)), "linestyle": dashes.get(variant, dashes.get(name))}
        x, y = zip(*sorted(points), strict=True)
        axis.plot(x, y, label=word.format(name, variant), marker="o", markersize=3, **style)  # type: ignore[arg-type]


def _named(values: Iterable[Any], styles: Iterable[str]) -> dict[Any, str]:
    styles = list(styles)
    return {value: styles[n % len(styles)] for n, value in enumerate(dict.fromkeys(values))}


def growth(cases: list[Record], title: str) -> Figure:
    """Time and peak memory of every implementation against the number of edges, of one problem in one group."""
    panels = [("seconds", 1000.0, "ms", 0.0), ("memory_bytes", 2**-20, "peak memory, MiB", float(RESOLUTION))]
    found = []
    for key, factor, label, least in panels:
        lines = _grouped(
            ((f"{row['implementation']} {row['layout']}".strip(), row["direction"]), (case["edges"], factor * value))
            for case in cases
            for row in case["results"]
            if (value := row[key]["median"] if isinstance(row[key], dict) else row[key]) and value >= least
        )
        found += [(label, lines)] if lines else []
    everyone = sorted({who for _, lines in found for who, _ in lines}, key=lambda who: (not who.startswith(OURS), who))
    figure = _figure(4.4 * len(found) + 1.2, 3.8)
    for axis, (label, lines) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        _lines(axis, lines, COLOURS, _named(everyone, DASHES), "{}, {}")
        _logarithmic(axis, "x", "y")
        axis.set(xlabel="edges", ylabel=label)
        axis.grid(alpha=0.25, which="both")
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(title, fontsize=10)
    return figure


def errors_by_knots(rows: list[Record]) -> Figure:
    """Errors of slopes of radial networks, and of forces, against the number of knots."""
    figure = _figure(8.6, 3.8)
    panels = {"slopes": "error of slopes / largest slope", "forces64": "error of forces, eV/A"}
    colours = _named((row["network"] for row in rows), list(COLOURS.values())[:3])
    for axis, (part, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        shown = [row for row in rows if row[part] is not None]
        lines = _grouped(((row["network"], row["interpolation"]), (row["knots"], row[part])) for row in shown)
        _lines(axis, lines, colours, _named((way for _, way in lines), DASHES), "{}, {}")
        axis.set(yscale="log", xlabel="knots", ylabel=label)
        _logarithmic(axis, "x")
        axis.grid(alpha=0.25, which="both")
        axis.legend(fontsize=6)
    return figure


def times_by_atoms(rows: list[Record]) -> Figure:
    """Microseconds per atom against atoms: a panel for each network and mode, a line for each implementation."""
    timed = [row for row in rows if row["seconds"]]
    panels = list(dict.fromkeys((row["network"], row["what"]) for row in timed))
    colours = _named((row["implementation"] for row in timed), [f"C{n}" for n in range(10)])
    dashes = _named((row["threads"] for row in timed), DASHES)
    height = max(1, -(-len(panels) // 2))
    figure = _figure(9.2, 0.6 + 3.2 * height)
    axes = figure.subplots(height, 2, squeeze=False).flatten()
    for axis, panel in zip(axes, panels, strict=False):
        lines = _grouped(
            ((row["implementation"], row["threads"]), (row["atoms"], row["seconds"]["median"] / row["atoms"] * 1e6))
            for row in timed
            if (row["network"], row["what"]) == panel
        )
        _lines(axis, lines, colours, dashes, "{}, threads: {}")
        _logarithmic(axis, "x", "y")
        axis.set(xlabel="atoms", ylabel="microseconds per atom", title=", ".join(panel))
        axis.grid(alpha=0.25, which="both")
        axis.legend(fontsize=5)
    for axis in axes[len(panels) :]:
        axis.remove()
    return figure


def save_plots(result: Record, folder: Path) -> list[Path]:
    """Write the pictures that a result has the numbers for: ratios and shares by group or layer, growth by problem.

    Raises:
        ConfigError: A group or a problem has a name that would make a file elsewhere.
    """
    figures: dict[str, Figure] = {}
    if result["kind"] == "networks":
        figures[f"{result['suite']}_networks"] = times_by_atoms(result["rows"])
    elif "errors" in result:
        figures[f"{result['kind']}_errors"] = errors_by_knots(result["errors"])
    elif "cases" in result:
        figures = _of_cases(result)
    paths = [folder / plain_name(f"{name}.png", "name of a picture", RENAME, "file") for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        with whole_file(path) as file:
            figure.savefig(file, format="png")
    return paths


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
