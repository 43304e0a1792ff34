"""Pictures: ratios of a suite with its goals, shares of the copy bandwidth, growth, errors by knots, whole networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..files import plain_name
from .goals import Record, fastest
from .implementation import OURS
from .memory import RESOLUTION
from .results import whole_file

COLOURS = {"fwd": "#1f5fa8", "bwd": "#d9730d", "double_bwd": "#3a8f4d"}
COLOURS |= {"fwd+bwd": COLOURS["bwd"], "fwd+double": COLOURS["double_bwd"]}  # of whole calls
GREY = "#666666"
OF_COPIES = "bytes moved once / time, as a share of the copy bandwidth"
OF_LIMIT = "least time by bytes or operations / time"
RENAME = "Rename the suite, its groups and problems."


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(axis: Axis) -> None:
    """Numbers 1, 2, 5, 10, ... without exponents on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


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


def _bars(axis: Axes, cases: list[Record], values: dict[str, list[dict[str, float] | None]], start: float) -> None:
    """Grouped horizontal bars from a start, one colour for each direction, with the quantiles as thin lines."""
    height = 0.8 / max(1, len(values))
    for number, (direction, row) in enumerate(values.items()):
        at = np.arange(len(cases)) + (number - (len(values) - 1) / 2) * height
        middle = np.array([np.nan if v is None else v["median"] for v in row])
        low = np.array([np.nan if v is None else v["median"] - v["q20"] for v in row])
        high = np.array([np.nan if v is None else v["q80"] - v["median"] for v in row])
        error = np.nan_to_num(np.clip([low, high], 0, None))
        axis.barh(at, middle - start, height, start, xerr=error, color=COLOURS[direction], ecolor=GREY, label=direction)
    of_one_group = len({case["group"] for case in cases}) == 1
    names = [case["name"].partition("/")[2] if of_one_group else case["name"] for case in cases]
    axis.set_yticks(np.arange(len(cases)), names)
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.25)


def _lines(axis: Axes, limits: dict[str, float]) -> None:
    for direction, limit in limits.items():
        axis.axvline(limit, color=COLOURS[direction], linestyle="--", linewidth=1.2, label=f"goal {direction}")


def ratios(cases: list[Record], title: str) -> Figure:
    """Times of the fastest peer over times of this package, by problem, on a logarithmic axis.

    Args:
        cases: Records of one group.
        title: Above the picture.

    Returns:
        The figure.
    """
    found = {d: [_ratio(case, d) for case in cases] for d in COLOURS}
    found = {d: row for d, row in found.items() if any(row)}
    figure = _figure(7.2, 1.6 + 0.42 * len(cases))
    axis = figure.subplots()
    _bars(axis, cases, found, 1.0)
    _lines(axis, cases[0]["goals_asked"].get("ratio", {}))
    axis.set_xscale("log")
    _plain(axis.xaxis)
    axis.axvline(1, color=GREY, linewidth=0.8)
    axis.set(xlabel="time of the fastest peer / time of eqlayers", title=title)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def shares(cases: list[Record], title: str, label: str = OF_COPIES) -> Figure:
    """Compulsory bytes over time as a fraction of the copy bandwidth, or the least time as a fraction of the time.

    Args:
        cases: Records of one group.
        title: Above the picture.
        label: Below the axis.

    Returns:
        The figure.
    """
    found: dict[str, list[dict[str, float] | None]] = {}
    for direction in COLOURS:
        best = [_best(case, direction) for case in cases]
        found[direction] = [None if b is None else {"median": b["share"], **_share_range(b)} for b in best]
    found = {d: row for d, row in found.items() if any(row)}
    figure = _figure(7.2, 1.6 + 0.42 * len(cases))
    axis = figure.subplots()
    _bars(axis, cases, found, 0.0)
    _lines(axis, cases[0]["goals_asked"].get("share", {}))
    axis.set(xlabel=label, title=title)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _share_range(row: Record) -> dict[str, float]:
    seconds = row["seconds"]
    return {
        "q20": row["share"] * seconds["median"] / seconds["q80"],
        "q80": row["share"] * seconds["median"] / seconds["q20"],
    }


def _against_edges(
    cases: list[Record], key: str, factor: float, least: float
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Points (edges, value) by implementation and direction; values that cannot be told from nothing are left out."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for case in cases:
        for row in case["results"]:
            value: Any = row[key]["median"] if isinstance(row[key], dict) else row[key]
            if value and value >= least:
                who = f"{row['implementation']} {row['layout']}".strip()
                lines.setdefault((who, row["direction"]), []).append((case["edges"], value * factor))
    return lines


def growth(cases: list[Record], title: str) -> Figure:
    """Time and peak memory of every implementation against the number of edges.

    Args:
        cases: Records of one problem in one group, with different numbers of edges.
        title: Above the picture.

    Returns:
        The figure.
    """
    cases = sorted(cases, key=lambda case: case["edges"])
    panels = [("seconds", 1000.0, "ms", 0.0), ("memory_bytes", 2**-20, "peak memory, MiB", float(RESOLUTION))]
    found = [(label, _against_edges(cases, key, factor, least)) for key, factor, label, least in panels]
    found = [(label, lines) for label, lines in found if lines]
    everyone = sorted({who for _, lines in found for who, _ in lines}, key=lambda who: (not who.startswith(OURS), who))
    styles = dict(zip(everyone, ("-", "--", ":", "-."), strict=False))  # the same in all panels: they share a legend
    figure = _figure(4.4 * len(found) + 1.2, 3.8)
    for axis, (label, lines) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        for (who, direction), points in lines.items():
            x, y = zip(*points, strict=True)
            style = {"color": COLOURS[direction], "linestyle": styles.get(who, "-"), "marker": "o", "markersize": 3}
            axis.plot(x, y, label=f"{who}, {direction}", **style)
        axis.set(xscale="log", yscale="log", xlabel="edges", ylabel=label)
        _plain(axis.xaxis)
        _plain(axis.yaxis)
        axis.grid(alpha=0.25, which="both")
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(title, fontsize=10)
    return figure


def save_plots(result: Record, folder: Path) -> list[Path]:
    """Write the pictures that a result has the numbers for: ratios and shares by group or layer, growth by problem.

    Args:
        result: Of any command; none are written for those without pictures.
        folder: Where to.

    Returns:
        The files.

    Raises:
        ConfigError: A group or a problem has a name that would make a file elsewhere.
    """
    if result["kind"] == "networks":
        return _write({f"{result['suite']}_networks.png": times_by_atoms(result["rows"])}, folder)
    if "cases" not in result and "errors" not in result:
        return []
    if "errors" in result:
        return _write({f"{result['kind']}_errors.png": errors_by_knots(result["errors"])}, folder)
    of_layers = result["kind"] == "layers"
    groups: dict[str, list[Record]] = {}
    lines: dict[str, list[Record]] = {}
    for case in result["cases"]:
        if any(row["seconds"] for row in case["results"]):
            groups.setdefault(case["operation" if of_layers else "group"], []).append(case)
            lines.setdefault(f"{case['group']}_{case['problem']}", []).append(case)
    about = f"{result['dtype']}, threads: {result['machine']['threads']}"
    figures = {}
    for group, cases in groups.items():
        title = f"{result['suite']}: {group}, {about}"
        if any(case["ratios"] for case in cases):
            figures[f"{group}_ratios"] = ratios(cases, title)
        if any(_best(case, direction) for case in cases for direction in COLOURS):
            figures[f"{group}_shares"] = shares(cases, title, OF_LIMIT if of_layers else OF_COPIES)
    for name, cases in lines.items():
        if len({case["edges"] for case in cases}) > 1:
            first = cases[0]
            figures[f"{name}_growth"] = growth(
                cases, f"{result['suite']}: {first['group']}, {about}, {first['problem']}"
            )
    names = [plain_name(f"{result['suite']}_{name}.png", "name of a picture", RENAME, "file") for name in figures]
    return _write(dict(zip(names, figures.values(), strict=True)), folder)


def errors_by_knots(rows: list[Record]) -> Figure:
    """Errors of slopes of radial networks, and of forces, against the number of knots.

    Args:
        rows: The rows ``errors`` of ``eqlayers bench tables``.

    Returns:
        The figure.
    """
    figure = _figure(8.6, 3.8)
    panels = {"slopes": "error of slopes / largest slope", "forces64": "error of forces, eV/A"}
    for axis, (part, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for row in rows:
            if row[part] is not None:
                lines.setdefault((row["network"], row["interpolation"]), []).append((row["knots"], row[part]))
        networks = list(dict.fromkeys(network for network, _ in lines))
        ways = list(dict.fromkeys(way for _, way in lines))
        for (network, way), points in lines.items():
            style = {"color": list(COLOURS.values())[networks.index(network) % 3], "marker": "o", "markersize": 3}
            line = ("-", "--", ":", "-.")[ways.index(way) % 4]
            axis.plot(*zip(*points, strict=True), label=f"{network}, {way}", linestyle=line, **style)
        axis.set(xscale="log", yscale="log", xlabel="knots", ylabel=label)
        _plain(axis.xaxis)
        axis.grid(alpha=0.25, which="both")
        axis.legend(fontsize=6)
    return figure


def times_by_atoms(rows: list[Record]) -> Figure:
    """Microseconds per atom against atoms, a panel for each network and what is timed, a line for each implementation.

    Args:
        rows: Of ``eqlayers bench networks``.

    Returns:
        The figure.
    """
    timed = [row for row in rows if row["seconds"]]
    panels = list(dict.fromkeys((row["network"], row["what"]) for row in timed))
    everyone = list(dict.fromkeys(row["implementation"] for row in timed))
    counts = list(dict.fromkeys(row["threads"] for row in timed))
    height = max(1, -(-len(panels) // 2))
    figure = _figure(9.2, 0.6 + 3.2 * height)
    axes = figure.subplots(height, 2, squeeze=False).flatten()
    for axis, (network, what) in zip(axes, panels, strict=False):
        lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for row in timed:
            if (row["network"], row["what"]) == (network, what):
                point = (row["atoms"], row["seconds"]["median"] / row["atoms"] * 1e6)
                lines.setdefault((row["implementation"], row["threads"]), []).append(point)
        for (who, count), points in lines.items():
            style = {"color": f"C{everyone.index(who) % 10}", "marker": "o", "markersize": 3}
            label = f"{who}, threads: {count}"
            dashes = ("-", "--", ":", "-.")[counts.index(count) % 4]
            axis.plot(*zip(*sorted(points), strict=True), label=label, linestyle=dashes, **style)
        axis.set(xscale="log", yscale="log", xlabel="atoms", ylabel="microseconds per atom", title=f"{network}, {what}")
        _plain(axis.xaxis)
        _plain(axis.yaxis)
        axis.grid(alpha=0.25, which="both")
        axis.legend(fontsize=5)
    for axis in axes[len(panels) :]:
        axis.remove()
    return figure


def _write(figures: dict[str, Figure], folder: Path) -> list[Path]:
    paths = [folder / name for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        with whole_file(path) as file:
            figure.savefig(file, format="png")
    return paths
