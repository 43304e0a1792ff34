"""Layers in the frames of edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

import eqlayers.nn as nn

from .cases import Case, Turn, edges, features, turned

IN, OUT = "2x0e + 1x1o + 1x1e + 2x2e", "2x0e + 1x0o + 2x1o + 1x2o"
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


ROWS_OF_GRAPH = {"x": "node", "frames": "edge", "edge_index": "index", "scales": "edge", "envelope": "edge"}
CASES = [
    Case(
        "SO2Linear",
        lambda layout: nn.SO2Linear(IN, OUT, layout=layout),
        of_frame(2),
        {"x": IN},
        (OUT,),
        family="Frames of edges",
        lacks={"rotation": ABOUT_Y, "inversion": ABOUT_Y},
    ),
    Case(
        "SO2Linear, about y",
        lambda layout: nn.SO2Linear(IN, OUT, 1, layout=layout),
        of_frame(1),
        {"x": about_y(IN)},
        (about_y(OUT),),
        layouts=("mul_ir",),
        family="Frames of edges",
    ),
    Case(
        "SO2Convolution",
        lambda layout: nn.SO2Convolution(IN, OUT, layout=layout),
        of_graph,
        {"x": IN, "frames": "1o"},
        (OUT,),
        rows=ROWS_OF_GRAPH,
        out_rows="node",
        slow=("derivatives",),  # those by weights are in the row of SO2Linear, the others in tests/layers/so2
        family="Frames of edges",
    ),
    Case(
        "SO2Convolution, SO(3)",
        lambda layout: nn.SO2Convolution("2x0e + 2x1e", "1x1e + 1x2e", parity="so3", layout=layout),
        lambda rows, generator: (
            features(x="2x0e + 2x1e")(rows, generator)
            | {
                name: value
                for name, value in of_graph(rows, generator).items()
                if name in ("frames", "edge_index", "envelope")
            }
        ),
        {"x": "2x0e + 2x1e", "frames": "1o"},
        ("1x1e + 1x2e",),
        slow=("derivatives", "torch.compile"),
        rows={name: kind for name, kind in ROWS_OF_GRAPH.items() if name != "scales"},
        out_rows="node",
        family="Frames of edges",
        lacks={"inversion": "it ignores parities, by its option"},
    ),
]
