"""Draw the pictures of the concepts: python docs/pictures/draw.py [NAME ...]

Each function below draws the picture of its name, as an SVG beside this file. Pages of the guide show the pictures.
"""

import sys
from collections.abc import Callable

import numpy as np
import torch
from e3nn import o3
from matplotlib.axes import Axes
from matplotlib.patches import Arc, Circle, Polygon, Rectangle
from style import (
    BLUE,
    BLUE_FILL,
    CARD,
    FAINT,
    GREEN,
    GREEN_FILL,
    GREY_FILL,
    INK,
    LINE,
    ORANGE,
    ORANGE_FILL,
    PURPLE,
    PURPLE_FILL,
    arrow,
    box,
    canvas,
    save,
    text,
)


def lobes(axis: Axes, x: float, y: float, size: float, l: int, values: torch.Tensor) -> None:
    """The function on the circle that has the given components: distance is size, colour is sign."""
    angles = torch.linspace(0, 2 * torch.pi, 361, dtype=torch.float64)
    directions = torch.stack([angles.cos(), angles.sin(), 0 * angles], dim=1)
    function = o3.spherical_harmonics(l, directions, True, "norm") @ values
    for sign, fill, edge in ((1, BLUE_FILL, BLUE), (-1, ORANGE_FILL, ORANGE)):
        radius = size * (sign * function).clamp(min=0)
        if radius.max() > 1e-3:
            points = torch.stack([x + radius * angles.cos(), y + radius * angles.sin()], dim=1)
            axis.add_patch(Polygon(points.numpy(), closed=True, fc=fill, ec=edge, lw=1.2))


def irreps_under_rotation() -> None:
    """A rotation about z of a scalar, a vector and an irrep of degree 2."""
    figure, axis = canvas(56, 46)
    turn = torch.tensor(0.85, dtype=torch.float64)
    matrix = o3.matrix_z(turn)
    start = torch.tensor([0.35], dtype=torch.float64)
    direction = torch.stack([start.cos(), start.sin(), 0 * start], dim=1)
    labels = {0: ["1"], 1: ["x", "y", "z"], 2: ["xz", "xy", "y²", "yz", "z²−x²"]}
    said = {
        0: ("0e", "scalar: 1 number", "stays"),
        1: ("1o", "vector: 3 numbers", "turn as the arrow"),
        2: ("2e", "degree 2: 5 numbers", "mix with each other"),
    }
    text(axis, 1.6, 34, "before", FAINT, rotation=90)
    text(axis, 1.6, 23, "after", FAINT, rotation=90)
    for l in (0, 1, 2):
        x = 11.5 + 17.5 * l
        name, what, does = said[l]
        text(axis, x, 43.6, name, size=12, weight="bold")
        text(axis, x, 41, what, FAINT, size=8.5)
        before = o3.spherical_harmonics(l, direction, True, "norm")[0]
        irrep = o3.Irrep(l, (-1) ** l)
        after = irrep.D_from_matrix(matrix) @ before
        for y, values, angle in ((34, before, start), (23, after, start + turn)):
            lobes(axis, x, y, (3.6, 4.4, 5.2)[l], l, values)
            if l == 1:
                end = (x + 5.6 * float(angle.cos()), y + 5.6 * float(angle.sin()))
                arrow(axis, (x, y), end, INK, lw=1.4)
        if l == 0:
            axis.add_patch(Arc((x + 7.6, 28.5), 5, 5, theta1=300, theta2=60, color=FAINT, lw=1.2))
            arrow(axis, (x + 8.95, 30.6), (x + 8.2, 31.1), FAINT)
            text(axis, x + 7.6, 28.5, "R", FAINT, size=10, style="italic")
        width = 2.9
        left = x - width * (len(before) - 1) / 2
        axis.plot([left - 1.6, left + width * (len(before) - 1) + 1.6], [10, 10], color=LINE, lw=1)
        for number, (old, new) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
            at = left + width * number
            axis.add_patch(Rectangle((at - 0.95, 10), 0.9, 4.2 * old, fc=CARD, ec=FAINT, lw=1))
            axis.add_patch(Rectangle((at + 0.05, 10), 0.9, 4.2 * new, fc=BLUE, ec=BLUE, lw=1))
            text(axis, at, 5.2, labels[l][number], FAINT, size=7.5 if l == 2 else 8.5)
        text(axis, x, 2.4, does, size=9)
    axis.add_patch(Rectangle((2.4, 15.6), 0.9, 1.3, fc=CARD, ec=FAINT, lw=1))
    text(axis, 3.8, 16.2, "before", FAINT, size=7, ha="left")
    axis.add_patch(Rectangle((2.4, 13.3), 0.9, 1.3, fc=BLUE, ec=BLUE, lw=1))
    text(axis, 3.8, 13.9, "after", FAINT, size=7, ha="left")
    save(figure, "irreps_under_rotation")


def tensor_product_path() -> None:
    """Inputs, paths and outputs of a tensor product; the coefficients of one path."""
    figure, axis = canvas(56, 45)
    inputs = {"8x0e": (36, BLUE), "8x1o": (29, BLUE), "0e": (20, GREEN), "1o": (13, GREEN)}
    outputs = {"8x0e": 33, "8x1o": 25, "8x1e": 17}
    fills = {BLUE: BLUE_FILL, GREEN: GREEN_FILL}
    text(axis, 6, 41.4, "in1: features", BLUE, size=9)
    text(axis, 6, 9.6, "in2: harmonics", GREEN, size=9)
    text(axis, 24.5, 41.4, "paths, with weights", FAINT, size=9)
    text(axis, 46, 38.4, "output", PURPLE, size=9)
    paths = [
        ("8x0e", "0e", "8x0e", 37),
        ("8x1o", "1o", "8x0e", 31.5),
        ("8x0e", "1o", "8x1o", 26),
        ("8x1o", "0e", "8x1o", 20.5),
        ("8x1o", "1o", "8x1e", 15),
    ]
    for first, second, out, y in paths:
        bold = out == "8x1e"
        for name in (first, second):
            axis.plot(
                [10.5, 22],
                [inputs[name][0], y],
                color=inputs[name][1] if bold else LINE,
                lw=1.8 if bold else 1,
                zorder=0,
            )
        axis.plot([27, 41], [y, outputs[out]], color=PURPLE if bold else LINE, lw=1.8 if bold else 1, zorder=0)
    for *_, out, y in paths:
        bold = out == "8x1e"
        axis.add_patch(
            Circle((24.5, y), 2.3, fc=PURPLE_FILL if bold else GREY_FILL, ec=PURPLE if bold else FAINT, lw=1.2)
        )
        text(axis, 24.5, y - 0.1, "C · w", size=7.5)
    for name, (y, color) in inputs.items():
        box(axis, 1.5, y - 2, 9, 4, fills[color], color, name)
    for name, y in outputs.items():
        box(axis, 41, y - 2, 10, 4, PURPLE_FILL, PURPLE, name)
    block = o3.wigner_3j(1, 1, 1, dtype=torch.float64)
    axes_names, cell = "xyz", 1.45
    text(axis, 17.5, 4.4, "C of the path\n1o × 1o → 1e:", PURPLE, size=8.5)
    for k in range(3):
        left, bottom = 28 + 9.2 * k, 2.2
        text(axis, left + 1.5 * cell, bottom + 3 * cell + 1, f"to {axes_names[k]}", FAINT, size=7.5)
        for i in range(3):
            for j in range(3):
                value = float(block[i, j, k])
                fill = GREY_FILL if abs(value) < 1e-6 else BLUE if value > 0 else ORANGE
                corner = (left + j * cell, bottom + (2 - i) * cell)
                axis.add_patch(Rectangle(corner, cell, cell, fc=fill, ec=CARD, lw=1))
                if abs(value) > 1e-6:
                    text(axis, corner[0] + cell / 2, corner[1] + cell / 2, "+" if value > 0 else "−", CARD, size=7)
    save(figure, "tensor_product_path")


SENDERS = {"a": (3.2, 9.4), "b": (3.4, 2.4), "c": (11.6, 10.4)}
RECEIVER = (9, 5)


def small_graph(axis: Axes, x: float, y: float, bold: bool) -> None:
    """Three senders and their receiver, with the lower left corner at (x, y)."""
    for place in SENDERS.values():
        start, end = np.add(place, (x, y)), np.add(RECEIVER, (x, y))
        along = (end - start) / np.linalg.norm(end - start)
        arrow(axis, tuple(start + 1.5 * along), tuple(end - 1.7 * along), BLUE if bold else FAINT, lw=1.4)
    for name, place in SENDERS.items():
        axis.add_patch(Circle(np.add(place, (x, y)), 1.3, fc=BLUE_FILL, ec=BLUE, lw=1.2))
        text(axis, *np.add(place, (x, y - 0.1)), name, size=8.5)
    axis.add_patch(Circle(np.add(RECEIVER, (x, y)), 1.5, fc=PURPLE_FILL, ec=PURPLE, lw=1.2))
    text(axis, *np.add(RECEIVER, (x, y - 0.1)), "i", size=9)


def strip(axis: Axes, x: float, y: float, color: str, fill: str, cells: int = 4) -> None:
    """A row of features."""
    for number in range(cells):
        axis.add_patch(Rectangle((x + 1.15 * number, y), 1.15, 1.5, fc=fill, ec=color, lw=0.9))


def gather_product_sum() -> None:
    """A graph convolution in three steps, and in one."""
    figure, axis = canvas(56, 43)
    small_graph(axis, 0.5, 27, bold=True)
    text(axis, 36.5, 39.6, r"$z_i = \sum_{j \to i} \; x_j \otimes_{w_{ji}} Y(\hat r_{ji})$", size=12)
    for number, (title, words) in enumerate(
        (
            ("1  gather", "each edge takes the\nfeatures of its sender"),
            ("2  product", "with harmonics Y,\nweights w of edges"),
            ("3  sum", "at the receiver,\nover its edges"),
        )
    ):
        x = 16.6 + 13.4 * number
        text(axis, x, 35.6, title, size=9.5, weight="bold", ha="left")
        text(axis, x, 32, words, FAINT, size=8, ha="left", linespacing=1.3)
    axis.plot([2, 54], [26.4, 26.4], color=LINE, lw=1)
    text(axis, 2, 24.3, "three calls: two arrays with a row for each edge", size=9, ha="left")
    for number, name in enumerate(SENDERS):
        y = 19.6 - 2.6 * number
        text(axis, 2.6, y + 0.7, name, FAINT, size=8)
        strip(axis, 4, y, BLUE, BLUE_FILL)
        arrow(axis, (9.4, y + 0.75), (15.2, y + 0.75))
        strip(axis, 16, y, BLUE, BLUE_FILL)
        text(axis, 22.2, y + 0.7, r"$\otimes$", size=10)
        strip(axis, 23.4, y, GREEN, GREEN_FILL, 3)
        arrow(axis, (27.6, y + 0.75), (31.2, y + 0.75))
        strip(axis, 32, y, ORANGE, ORANGE_FILL)
        axis.plot([37.2, 41], [y + 0.75, 17.75], color=FAINT, lw=1.2)
    arrow(axis, (40.9, 17.75), (44.6, 17.75))
    strip(axis, 45.4, 17, PURPLE, PURPLE_FILL)
    for x, words in ((18.3, "[E, in]"), (34.3, "[E, out]"), (47.7, "[N, out]"), (6.3, "[N, in]")):
        text(axis, x, 12.6, words, FAINT, size=8)
    axis.plot([2, 54], [10.9, 10.9], color=LINE, lw=1)
    text(axis, 2, 8.8, "TensorProductConv: one call, no array of edges' features", size=9, ha="left")
    strip(axis, 4, 4, BLUE, BLUE_FILL)
    arrow(axis, (9.4, 4.75), (14.4, 4.75))
    box(axis, 15.2, 2.4, 23, 4.6, GREY_FILL, FAINT, "for each receiver i:\nedge by edge, in the cache", size=8)
    arrow(axis, (39, 4.75), (44.6, 4.75))
    strip(axis, 45.4, 4, PURPLE, PURPLE_FILL)
    save(figure, "gather_product_sum")


def layouts() -> None:
    """The two flat orders of 3x1o."""
    figure, axis = canvas(56, 32)
    colors = [(BLUE, BLUE_FILL), (ORANGE, ORANGE_FILL), (GREEN, GREEN_FILL)]
    text(axis, 2, 29.4, "3x1o: three channels (colours), three components (letters)", size=9.5, ha="left")
    orders = {
        "mul_ir": [(channel, part) for channel in range(3) for part in "xyz"],
        "ir_mul": [(channel, part) for part in "xyz" for channel in range(3)],
    }
    for row, (name, cells) in enumerate(orders.items()):
        top = 26.4 - 13.6 * row
        text(axis, 2, top - 4.6, name, size=10.5, weight="bold", ha="left")
        text(axis, 2, top - 8.4, "e3nn's order" if row == 0 else "the fast order", FAINT, size=8, ha="left")
        text(axis, 22.3, top - 1, "flat", FAINT, size=8)
        text(axis, 45.6, top - 1, "as a view", FAINT, size=8)
        for number, (channel, part) in enumerate(cells):
            edge, fill = colors[channel]
            x = 12.4 + 2.2 * number
            axis.add_patch(Rectangle((x, top - 5.6), 2.2, 2.4, fc=fill, ec=edge, lw=1.1))
            text(axis, x + 1.1, top - 4.5, part, size=9)
            i, j = divmod(number, 3)
            x, y = 42.3 + 2.2 * j, top - 4.6 - 2.4 * i
            axis.add_patch(Rectangle((x, y), 2.2, 2.4, fc=fill, ec=edge, lw=1.1))
            text(axis, x + 1.1, y + 1.1, part, size=9)
        text(axis, 22.3, top - 8.4, ("channel by channel", "component by component")[row], size=8.5)
        arrow(axis, (33, top - 4.4), (37, top - 4.4))
        text(axis, 51.6, top - 5.8, ("channel", "component")[row], FAINT, size=8, rotation=270)
        text(axis, 45.6, top - 11, ("component", "channel")[row], FAINT, size=8)
    save(figure, "layouts")


def axes_cross(axis: Axes, x: float, y: float, size: float) -> None:
    """The axes x and y of a frame."""
    arrow(axis, (x, y), (x + size, y), FAINT, lw=1)
    arrow(axis, (x, y), (x, y + size), FAINT, lw=1)
    text(axis, x + size + 0.9, y, "x", FAINT, size=8)
    text(axis, x, y + size + 0.9, "y", FAINT, size=8)


def edge_frame() -> None:
    """A tensor product with harmonics, in the frame of the edge."""
    figure, axis = canvas(56, 47)
    turn = torch.tensor(0.9, dtype=torch.float64)
    angle = torch.pi / 2 - float(turn)
    feature = torch.tensor([0.2, 0.75, 0.0], dtype=torch.float64)
    shown = o3.spherical_harmonics(1, feature[None], True, "norm")[0]
    matrix = o3.matrix_z(turn)
    text(axis, 10.5, 44.4, "1  in the frame of the file", size=9, weight="bold")
    text(axis, 43.5, 44.4, "2  in the frame of the edge", size=9, weight="bold")
    axes_cross(axis, 2.4, 36, 3.4)
    start, length = (7.2, 29.4), 12.5
    end = (start[0] + length * np.cos(angle), start[1] + length * np.sin(angle))
    arrow(axis, start, end, INK, lw=1.4, shrinkA=16, shrinkB=9)
    lobes(axis, *start, 3.6, 1, shown)
    axis.add_patch(Circle(end, 1.4, fc=PURPLE_FILL, ec=PURPLE, lw=1.2))
    text(axis, end[0], end[1] - 0.1, "i", size=9)
    text(axis, start[0] + 4.4, start[1] - 1.6, "j", size=9)
    arrow(axis, (23, 36), (32, 36), FAINT, lw=1.4)
    text(axis, 27.5, 37.7, r"turn: $D_e\, x_j$", size=9.5)
    axes_cross(axis, 33, 27.4, 3.4)
    start, end = (43.5, 29.8), (43.5, 41)
    arrow(axis, start, end, INK, lw=1.4, shrinkA=16, shrinkB=9)
    lobes(axis, *start, 3.6, 1, o3.Irrep("1o").D_from_matrix(matrix) @ shown)
    axis.add_patch(Circle(end, 1.4, fc=PURPLE_FILL, ec=PURPLE, lw=1.2))
    text(axis, end[0], end[1] - 0.1, "i", size=9)
    text(axis, start[0] + 4.4, start[1] - 1.6, "j", size=9)
    axis.plot([2, 54], [24.3, 24.3], color=LINE, lw=1)

    text(axis, 14, 22.2, "harmonics of the edge", size=9, weight="bold")
    edge = torch.tensor([[np.cos(angle), np.sin(angle), 0.0]], dtype=torch.float64)
    for row, (vector, words) in enumerate(((edge, "1"), (torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64), "2"))):
        harmonics = torch.cat([o3.spherical_harmonics(l, vector, True, "norm")[0] for l in (1, 2)])
        bottom = 14.6 - 8.6 * row
        text(axis, 2.6, bottom + 1.4, words, size=9, weight="bold")
        axis.plot([4, 25], [bottom, bottom], color=LINE, lw=1)
        for number, value in enumerate(harmonics.tolist()):
            x = 5 + 2.4 * number + (1.2 if number > 2 else 0)
            axis.add_patch(Rectangle((x - 0.7, bottom), 1.4, 4.2 * value, fc=GREEN, ec=GREEN))
    for number, order in enumerate((-1, 0, 1, -2, -1, 0, 1, 2)):
        text(axis, 5 + 2.4 * number + (1.2 if number > 2 else 0), 2.9, f"{order}".replace("-", "−"), FAINT, size=7)
    text(axis, 2.4, 2.9, "m", FAINT, size=8, style="italic")

    text(axis, 41.4, 22.2, "map of features 0e+1o+2e", size=9, weight="bold")
    orders = sorted([m for l in (0, 1, 2) for m in range(-l, l + 1)], key=lambda m: (abs(m), m))
    cell = 1.28
    for panel, left in enumerate((28.6, 42.2)):
        for i, first in enumerate(orders):
            for j, second in enumerate(orders):
                inside = panel == 0 or abs(first) == abs(second)
                corner = (left + j * cell, 7 + (8 - i) * cell)
                fill = GREY_FILL if not inside else (GREEN, BLUE, ORANGE)[abs(first)] if panel else BLUE
                axis.add_patch(Rectangle(corner, cell, cell, fc=fill, ec=CARD, lw=0.8))
        text(axis, left + 4.5 * cell, 20.1, "12"[panel], size=9, weight="bold")
    text(axis, 28.6 + 4.5 * cell, 4.2, "every component\nmeets every other", FAINT, size=7.5, linespacing=1.2)
    text(axis, 42.2 + 4.5 * cell, 4.2, "a block for each |m|,\nthen turn back", FAINT, size=7.5, linespacing=1.2)
    save(figure, "edge_frame")


def architecture() -> None:
    """The parts of the package; imports go down, or to the left."""
    figure, axis = canvas(56, 56)
    rows = [
        ("what you run", ORANGE, ORANGE_FILL, [("train", 9.4), ("simulate", 11.1), ("bench", 10.4), ("cli", 7)]),
        (
            "whole networks",
            BLUE,
            BLUE_FILL,
            [("data", 7), ("models: MACE, ...", 12.9), ("testing", 8), ("integrations", 10)],
        ),
        ("fronts", BLUE, BLUE_FILL, [("nn, functional, o3: export names", 40.9)]),
        ("families", GREEN, GREEN_FILL, [("layers: tensor_product, linear, so2, norm, gate, ...", 40.9)]),
        ("rooms below", PURPLE, PURPLE_FILL, [("irreps", 10), ("sparse: infos, products", 18), ("e3nn_compat", 10.9)]),
        ("core", GREEN, GREEN_FILL, [("core: forms, operator, backends, graph, checks", 40.9)]),
    ]
    height, gap = 4.6, 2.2
    y = 48.6
    for name, edge, fill, parts in rows:
        text(axis, 1.8, y + height / 2, name, FAINT, size=8.5, ha="left")
        x = 13
        for words, width in parts:
            box(axis, x, y, width, height, fill, edge, words, size=8.5)
            x += width + 1
        arrow(axis, (33.5, y - 0.3), (33.5, y - gap + 0.3), FAINT, lw=1)
        y -= height + gap
    axis.add_patch(Rectangle((1.2, 1.6), 53.6, 8.3, fc=GREY_FILL, ec=LINE, lw=1))
    text(axis, 3, 8.2, "eqlayers_kernels: knows neither irreps nor modules", FAINT, size=8.5, ha="left")
    for x, width, words in ((3, 16, "arithmetic, forms"), (20, 16, "c: prints, compiles"), (37, 16, "triton: prints")):
        box(axis, x, 2.6, width, 4, fill=CARD, edge=FAINT, words=words, size=8.5)
    save(figure, "architecture")


PICTURES: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        irreps_under_rotation,
        tensor_product_path,
        gather_product_sum,
        layouts,
        edge_frame,
        architecture,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        print(f"{name}.svg")
