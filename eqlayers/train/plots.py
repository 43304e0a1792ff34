"""Figures of runs: predictions against labels, learning curves, histograms; without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from ..core.checks import check_items, got
from ..core.errors import ConfigError, ShapeError
from ..pages.page import COLOURS, GREY, new_figure, number

BLUE, ORANGE = COLOURS[0], COLOURS[3]
MOST_GROUPS = 7  # with a colour of their own
MARKERS = "os^Dv<>P"
MANY = 500  # points from which on a page holds a picture of them, and not each one


def _values(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Finite numbers `[N]`."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ShapeError(f"{name} must be finite numbers [N], got {got(values)}. Pass a list or an array of them.")
    return array


def parity_plot(
    true: ArrayLike, predicted: ArrayLike, name: str, unit: str, caption: str, groups: Sequence[str] | None = None
) -> Figure:
    """Predicted against true values with the diagonal, and below them the errors on a scale of their own.

    The errors of a good model are too small to be seen beside the values: total energies span 100 eV, errors 0.1.

    Args:
        true: True values `[N]`.
        predicted: Predicted values `[N]`.
        name: Name of the property.
        unit: Its unit.
        caption: Title, e.g. the errors in numbers.
        groups: What each point belongs to `[N]`, such as an element. The largest groups have a colour each.

    Returns:
        The figure.

    Raises:
        ShapeError: Values are not finite, or the lengths differ.

    Example:
        >>> figure = parity_plot([1.0, 2.0], [1.1, 1.9], "mu", "D", "MAE 0.1 D")
        >>> [axis.get_ylabel() for axis in figure.axes]
        ['predicted mu (D)', 'error (D)']
    """
    x, y = _values("true", true), _values("predicted", predicted)
    if x.shape != y.shape or not len(x):
        raise ShapeError(
            f"true and predicted must have one length, at least 1, got {len(x)} and {len(y)}. Pass the same molecules."
        )
    names = np.full(len(x), "") if groups is None else np.asarray(check_items("groups", groups, "names", "Pass [N]."))
    if names.shape != x.shape:
        raise ShapeError(f"groups must have a name for each of the {len(x)} points, got {len(names)}. Pass [N] names.")
    figure = new_figure(4.6, 5.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    margin = 0.04 * (high - low) or 1.0
    span = (low - margin, high + margin)
    top.plot(span, span, color=GREY, linewidth=0.8, zorder=1)
    bottom.axhline(0.0, color=GREY, linewidth=0.8)
    points_of = _grouped(names)
    for (label, points), colour, marker in zip(points_of.items(), COLOURS, MARKERS, strict=False):
        look = {"color": colour, "marker": marker, "s": 9, "alpha": 0.6, "linewidths": 0, "zorder": 2}
        look["rasterized"] = len(x) > MANY
        top.scatter(x[points], y[points], label=label, **look)
        bottom.scatter(x[points], (y - x)[points], **look)
    top.set(ylabel=f"predicted {name} ({unit})", ylim=span, xlim=span)
    top.set_title(caption, fontsize=9)
    if len(points_of) > 1:
        handles = dict(sorted(zip(*top.get_legend_handles_labels()[::-1], strict=True)))
        top.legend(handles.values(), handles, fontsize=8, markerscale=2, loc="upper left")
    bottom.set(xlabel=f"true {name} ({unit})", ylabel=f"error ({unit})")
    for axis in (top, bottom):
        axis.grid(alpha=0.25)
        axis.locator_params(nbins=6)
        axis.ticklabel_format(useOffset=False)
    return figure


def _grouped(names: NDArray[np.str_]) -> dict[str, NDArray[np.bool_]]:
    """Points of each group, the largest group first; small groups beyond the colours are one."""
    groups, counts = np.unique(names, return_counts=True)
    order = groups[np.argsort(-counts, kind="stable")].tolist()
    shown = order if len(order) <= MOST_GROUPS + 1 else order[:MOST_GROUPS]
    points_of = {str(name): names == name for name in shown}
    if len(shown) < len(order):
        points_of[f"{len(order) - len(shown)} others"] = ~np.isin(names, shown)
    return points_of


def histogram(values: Mapping[str, ArrayLike], name: str, count: str, logarithmic: bool = True) -> Figure:
    """How often each value occurs, as a line for each series."""
    series = {label: _values(label, numbers) for label, numbers in values.items()}
    series = {label: numbers for label, numbers in series.items() if len(numbers)}
    whole = np.concatenate(list(series.values()))
    bins = int(np.clip(2 * len(whole) ** (1 / 3), 12, 60)) if logarithmic else 80
    edges = np.histogram_bin_edges(whole, bins)
    figure = new_figure()
    axis = figure.subplots()
    for (label, numbers), colour in zip(series.items(), COLOURS, strict=False):
        axis.stairs(np.histogram(numbers, edges)[0], edges, label=label, color=colour, linewidth=1.4)
    if logarithmic:
        _logarithmic(axis)
        axis.set_ylim(bottom=0.7)
    axis.set(xlabel=name, ylabel=count)
    axis.locator_params("x", nbins=6)
    axis.grid(alpha=0.25)
    if len(series) > 1:
        axis.legend(fontsize=8)
    return figure


def learning_curve(
    rows: Sequence[dict[str, float]], name: str, unit: str, baselines: dict[str, float], test: float | None = None
) -> Figure:
    """Errors of the training and validation parts against steps, with the baselines as lines.

    Args:
        rows: The epochs, see :func:`eqlayers.train.history.read_history`.
        name: Name of the property.
        unit: Unit of the errors.
        baselines: Error of each baseline by label, in ``unit``; those far above the curves are left out.
        test: Error on the test part with the best weights, drawn as a point at the end.

    Returns:
        The figure.

    Example:
        >>> rows = [{"step": 10, "train_mae": 2.0, "val_mae": 3.0}, {"step": 20, "train_mae": 1.0, "val_mae": 1.5}]
        >>> learning_curve(rows, "U0", "meV", {"composition": 5.0}).axes[0].get_yscale()
        'log'
    """
    rows = check_items("rows", rows, "a list of epochs", "Take what read_history returns.")
    if not all(isinstance(row, dict) and {"step", "train_mae", "val_mae"} <= row.keys() for row in rows):
        raise ConfigError(
            f"rows must have step, train_mae and val_mae, got {got(rows)}. Take what read_history returns."
        )
    steps = np.array([row["step"] for row in rows], dtype=float)
    figure = new_figure()
    axis = figure.subplots()
    series = (("train_mae", "training (current weights)", ORANGE), ("val_mae", "validation (averaged weights)", BLUE))
    marker = "o" if len(rows) < 40 else ""
    for key, label, colour in series:
        values = np.array([row[key] for row in rows], dtype=float)
        shown = np.isfinite(values)
        axis.plot(steps[shown], values[shown], label=label, color=colour, linewidth=1.5, marker=marker, markersize=2.5)
    top = max([value for line in axis.lines for value in np.asarray(line.get_ydata(), dtype=float)], default=np.inf)
    near = {label: value for label, value in baselines.items() if value <= 5 * top}
    for (label, value), style in zip(near.items(), ("--", ":", "-."), strict=False):
        axis.axhline(value, color=GREY, linestyle=style, linewidth=1.0, label=f"{label}: {number(value)} {unit}")
    if test is not None and len(steps):
        axis.plot(steps[-1:], [test], "*", color="black", markersize=9, label=f"test: {number(test)} {unit}", zorder=5)
    _logarithmic(axis)
    axis.set(xlabel="optimizer step", ylabel=f"MAE of {name} ({unit})")
    axis.legend(fontsize=8)
    return figure


def _logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.25, which="both")
