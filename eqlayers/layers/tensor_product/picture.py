"""A picture of the paths of a tensor product: a hexagon with in1, in2 and out on three of its sides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from e3nn.o3 import Irreps

from ...core.checks import check_number, check_type
from ...core.errors import needs_packages
from ...irreps.instructions import Instruction

Point = tuple[float, float]
_LABELS = (("right", "baseline", 0, (-3, 0)), ("left", "baseline", 0, (3, 0)), ("center", "top", 90, (0, -3)))


def draw_paths(
    irreps: tuple[Irreps, Irreps, Irreps],
    instructions: Sequence[Instruction],
    shades: Mapping[int, float] | None,
    aspect_ratio: float | str,
    ax: Any,
) -> tuple[Any, Any]:
    """Draw the paths; see :meth:`TensorProduct.visualize`. ``shades`` are mean squares of weights by instruction.

    Raises:
        ConfigError: An aspect ratio that is none. MissingPackageError: matplotlib is not installed.
    """
    with needs_packages("visualize", "bench"):
        import matplotlib as mpl
        from matplotlib import pyplot

    width, height = _size(irreps, aspect_ratio)
    axes = (
        pyplot.gca() if ax is None else check_type("ax", ax, mpl.axes.Axes, "axes of matplotlib", "Use pyplot.gca().")
    )
    corner = [(width * math.cos(n * math.pi / 3), height * math.sin(n * math.pi / 3)) for n in range(6)]
    sides = (
        (corner[3], corner[2]),
        (corner[0], corner[1]),
        (corner[4], corner[5]),
    )  # of in1, in2 and out, from the left
    places = [_along(*side, len(part)) for side, part in zip(sides, irreps, strict=True)]
    for start, end in sides:
        axes.plot(*zip(start, end, strict=True), color="black", linewidth=1, zorder=2)
    largest = max(shades.values(), default=0.0) if shades else 0.0
    for number, ins in enumerate(instructions):
        color: Any = "black"
        if ins.has_weight:
            blues = mpl.colormaps["Blues"]
            color = "green" if shades is None else blues(0.5 + 0.5 * (shades[number] / largest if largest else 0.0))
        ends = [places[side][index] for side, index in enumerate(ins[:3])]
        meet = (sum(x for x, _ in ends) / 3, sum(y for _, y in ends) / 3)
        for end in ends:
            axes.plot(*zip(end, meet, strict=True), color=color, alpha=0.5, linewidth=1.5)
    for part, points, (across, along, turn, shift) in zip(irreps, places, _LABELS, strict=True):
        for (mul, ir), point in zip(part, points, strict=True):
            axes.annotate(
                f"${ir}$" if mul == 1 else f"${mul} \\times {ir}$",
                point,
                xytext=shift,
                textcoords="offset points",
                horizontalalignment=across,
                verticalalignment=along,
                rotation=turn,
            )
    axes.axis("equal")
    axes.axis("off")
    return axes.get_figure(), axes


def _size(irreps: tuple[Irreps, Irreps, Irreps], aspect_ratio: float | str) -> Point:
    """Half the width and height of the hexagon: it grows with the groups on its sides."""
    rows, columns = max(len(irreps[0]), len(irreps[1])), len(irreps[2])
    if isinstance(aspect_ratio, str) and aspect_ratio == "auto":
        return 0.1 * columns, 0.1 * max(rows, columns / 2)
    fix = "Use 1 for a regular hexagon, or 'auto'."
    return 0.1 * check_number("aspect_ratio", aspect_ratio, above=0, fix=fix) * max(rows, columns), 0.1 * max(
        rows, columns
    )


def _along(start: Point, end: Point, count: int) -> list[Point]:
    """``count`` points between two corners, evenly spread."""
    steps = [(n + 1) / (count + 1) for n in range(count)]
    return [(start[0] + t * (end[0] - start[0]), start[1] + t * (end[1] - start[1])) for t in steps]
