"""A picture of the paths of a tensor product: a hexagon with in1, in2 and out on three of its sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from e3nn.o3 import Irreps

from ...core.checks import check_number, check_type
from ...core.errors import needs_packages
from ...irreps.instructions import Instruction

#: Arguments of the labels on each side, for `Axes.annotate`.
_LABELS: tuple[dict[str, Any], ...] = (
    {"ha": "right", "va": "baseline", "rotation": 0, "xytext": (-3, 0)},
    {"ha": "left", "va": "baseline", "rotation": 0, "xytext": (3, 0)},
    {"ha": "center", "va": "top", "rotation": 90, "xytext": (0, -3)},
)


def draw_paths(
    irreps: tuple[Irreps, Irreps, Irreps],
    instructions: Sequence[Instruction],
    shades: Mapping[int, float] | None,
    aspect_ratio: float | str,
    ax: Any,
) -> tuple[Any, Any]:
    """Draw the paths; see :meth:`TensorProduct.visualize`. ``shades`` are mean squares of weights by instruction."""
    with needs_packages("visualize", "bench"):
        import matplotlib as mpl
        from matplotlib import pyplot

    ax = pyplot.gca() if ax is None else check_type("ax", ax, mpl.axes.Axes, "axes of matplotlib", "Use pyplot.gca().")
    angles = np.arange(6) * np.pi / 3
    corners = np.stack([np.cos(angles), np.sin(angles)], 1) * _size(irreps, aspect_ratio)
    sides = [corners[pair] for pair in ([3, 2], [0, 1], [4, 5])]  # of in1, in2 and out, from the left
    positions = [np.linspace(side[0], side[1], len(part) + 2)[1:-1] for side, part in zip(sides, irreps, strict=True)]
    for side in sides:
        ax.plot(*side.T, color="black", linewidth=1, zorder=2)
    largest = max(shades.values(), default=0.0) if shades else 0.0
    for number, ins in enumerate(instructions):
        color: Any = "black"
        if ins.has_weight:
            blues = mpl.colormaps["Blues"]
            color = "green" if shades is None else blues(0.5 + 0.5 * (shades[number] / largest if largest else 0.0))
        vertices = np.stack([positions[side][index] for side, index in enumerate(ins[:3])])
        for end in vertices:
            ax.plot(*np.stack([end, vertices.mean(0)]).T, color=color, alpha=0.5, linewidth=1.5)
    for part, points, words in zip(irreps, positions, _LABELS, strict=True):
        for (mul, ir), point in zip(part, points, strict=True):
            text = f"${ir}$" if mul == 1 else f"${mul} \\times {ir}$"
            ax.annotate(text, point, textcoords="offset points", **words)
    ax.axis("equal")
    ax.axis("off")
    return ax.get_figure(), ax


def _size(irreps: tuple[Irreps, Irreps, Irreps], aspect_ratio: float | str) -> tuple[float, float]:
    """Half the width and height of the hexagon: it grows with the groups on its sides."""
    rows, columns = max(len(irreps[0]), len(irreps[1])), len(irreps[2])
    if isinstance(aspect_ratio, str) and aspect_ratio == "auto":
        return 0.1 * columns, 0.1 * max(rows, columns / 2)
    ratio = check_number("aspect_ratio", aspect_ratio, above=0, fix="Use 1 for a regular hexagon, or 'auto'.")
    return 0.1 * ratio * max(rows, columns), 0.1 * max(rows, columns)
