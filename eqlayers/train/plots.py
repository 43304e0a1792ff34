"""Pictures of runs: parity plot, learning curve, curves of many runs. Drawn without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from ..checks import check_items, got
from ..errors import ConfigError, ShapeError
from ..files import atomic_write

__all__ = ["comparison_curves", "learning_curve", "number", "parity_plot", "save_figure"]

BLUE, ORANGE, GREY = "#1f5fa8", "#d9730d", "#666666"


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a PNG atomically.

    Args:
        figure: What :func:`parity_plot` or :func:`learning_curve` returned.
        path: The file.
    """
    with atomic_write(Path(path)) as file:
        figure.savefig(file, format="png")


def number(value: float) -> str:
    """Four digits, never with an exponent where the number is large.

    Example:
        >>> number(0.0123456), number(58765.4)
        ('0.01235', '58,765')
    """
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _values(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Finite numbers `[N]`."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ShapeError(f"{name} must be finite numbers [N], got {got(values)}. Pass a list or an array of them.")
    return array


def parity_plot(true: ArrayLike, predicted: ArrayLike, name: str, unit: str, caption: str) -> Figure:
    """Predicted against true values with the diagonal, and below them the errors on a scale of their own.

    The errors of a good model are too small to be seen beside the values: total energies span 100 eV, errors 0.1.

    Args:
        true: True values `[N]`.
        predicted: Predicted values `[N]`.
        name: Name of the property.
        unit: Its unit.
        caption: Title, e.g. the errors in numbers.

    Returns:
        The figure.

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
    figure = _figure(4.6, 5.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    margin = 0.04 * (high - low) or 1.0
    span = (low - margin, high + margin)
    top.plot(span, span, color=GREY, linewidth=0.8, zorder=1)
    top.scatter(x, y, s=9, alpha=0.6, color=BLUE, linewidths=0, zorder=2)
    top.set(ylabel=f"predicted {name} ({unit})", ylim=span, xlim=span)
    top.set_title(caption, fontsize=9)
    bottom.axhline(0.0, color=GREY, linewidth=0.8)
    bottom.scatter(x, y - x, s=9, alpha=0.6, color=BLUE, linewidths=0)
    bottom.set(xlabel=f"true {name} ({unit})", ylabel=f"error ({unit})")
    for axis in (top, bottom):
        axis.grid(alpha=0.25)
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
    figure = _figure(5.6, 4.0)
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
    axis.set(xlabel="optimizer step", ylabel=f"mean absolute error of {name} ({unit})")
    axis.legend(fontsize=8)
    return figure


def _logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.25, which="both")


def comparison_curves(panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]], against: str) -> Figure:
    """Errors of many runs, with a panel for each kind of error.

    Args:
        panels: By what the vertical axis is: the runs' values of the horizontal axis and their errors, both `[N]`.
        against: What the horizontal axis is.

    Returns:
        The figure.

    Example:
        >>> figure = comparison_curves({"forces (meV/A)": {"a": ([1, 2], [9.0, 5.0]), "b": ([1], [7.0])}}, "epochs")
        >>> [len(axis.lines) for axis in figure.axes]
        [2]
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure(7.2 * columns, 4.2 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (label, curves) in zip(axes, panels.items(), strict=False):
        few = len(curves) <= 10
        colours = colormaps["tab10"].colors if few else colormaps["turbo"](np.linspace(0.02, 0.95, len(curves)))  # type: ignore[attr-defined]
        for (name, (x, y)), colour in zip(curves.items(), colours, strict=False):
            x, y = _values("x", x), _values("y", y)
            marker = "o" if len(x) < 40 else ""
            axis.plot(x, y, label=name, color=colour, linewidth=1.3, marker=marker, markersize=2.5)
        _logarithmic(axis)
        axis.set(xlabel=against, ylabel=f"validation error, {label}")
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), ncols=1 + (len(curves) - 1) // 24)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    return figure
