"""Layers in the frames of edges."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import eqlayers.nn as nn

from .cases import ONE, Turn, edges, features, row, turned

IN, OUT = "2x0e + 1x1o + 1x1e + 2x2e", "2x0e + 1x0o + 2x1o + 1x2o"
EVEN = "2x0e + 2x1e"
ABOUT_Y = "it commutes with rotations about the edge, the axis y, and with no other rotation: see the row below"


def about_y(irreps: str) -> Turn:
    """A rotation about y by some angle of the matrix, and the reflection of x if it inverts."""

    def turn(value: Tensor, matrix: Tensor) -> Tensor:
        c, s = math.cos(3 * float(matrix[0, 0])), math.sin(3 * float(matrix[0, 0]))
        rotation = torch.tensor([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]], dtype=torch.float64)
        if torch.linalg.det(matrix) < 0:
            rotation[0] = -rotation[0]
        return turned(value, irreps, rotation)

    return turn


def of_frame(mmax: int) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    def make(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        scales = nn.SO2Linear(IN, OUT, mmax).num_scales
        drawn = torch.randn(rows, scales, generator=generator, dtype=torch.float64)
        return {**features(x=IN)(rows, generator), "scales": drawn}

    return make


def of_graph(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    edge_index = edges(rows, generator)
    count, scales = edge_index.shape[1], nn.SO2Linear(IN, OUT).num_scales
    return {
        **features(x=IN)(rows, generator),
        "frames": torch.randn(count, 3, generator=generator, dtype=torch.float64),
        "edge_index": edge_index,
        "scales": torch.randn(count, scales, generator=generator, dtype=torch.float64),
        "envelope": torch.rand(count, generator=generator, dtype=torch.float64),
    }


def without_scales(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    made = of_graph(rows, generator)
    return features(x=EVEN)(rows, generator) | {name: made[name] for name in ("frames", "edge_index", "envelope")}


ROWS_OF_GRAPH = {"x": "node", "frames": "edge", "edge_index": "index", "scales": "edge", "envelope": "edge"}
of_frames = partial(row, family="Frames of edges")
CASES = [
    of_frames(
        partial(nn.SO2Linear, IN, OUT), OUT, inputs=of_frame(2), lacks={"rotation": ABOUT_Y, "inversion": ABOUT_Y}, x=IN
    ),
    of_frames(
        partial(nn.SO2Linear, IN, OUT, 1),
        about_y(OUT),
        special="about y",
        inputs=of_frame(1),
        layouts=ONE,
        x=about_y(IN),
    ),
    of_frames(
        partial(nn.SO2Convolution, IN, OUT),
        OUT,
        inputs=of_graph,
        rows=ROWS_OF_GRAPH,
        out_rows="node",
        slow=("derivatives",),  # those by weights are in the row of SO2Linear, the others in tests/layers/so2
        x=IN,
        frames="1o",
    ),
    of_frames(
        partial(nn.SO2Convolution, EVEN, "1x1e + 1x2e", parity="so3"),
        "1x1e + 1x2e",
        special="SO(3)",
        inputs=without_scales,
        rows={name: kind for name, kind in ROWS_OF_GRAPH.items() if name != "scales"},
        out_rows="node",
        lacks={"inversion": "it ignores parities, by its option"},
        slow=("derivatives", "torch.compile"),
        x=EVEN,
        frames="1o",
    ),
]
