"""Linear maps of features, and dot products of them."""

from __future__ import annotations

import torch
from e3nn import o3
from torch import Tensor

import eqlayers.nn as nn

from .cases import Case, features

IRREPS = "3x0e + 2x1o + 2x1o + 1x2e"
EDGE = "0e + 1o + 2e"


def species(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    operands = features(features=IRREPS)(rows, generator)
    return operands | {"kind": torch.randint(0, 3, (rows,), generator=generator)}


CASES = [
    Case(
        "Linear, biases",
        lambda layout: nn.Linear(IRREPS, "2x0e + 4x1o", biases=True, path_normalization="path", layout=layout),
        features(features=IRREPS),
        {"features": IRREPS},
        ("2x0e + 4x1o",),
        e3nn=lambda: o3.Linear(IRREPS, "2x0e + 4x1o", biases=True, path_normalization="path"),
        family="Linear maps",
    ),
    Case(
        "IrrepwiseLinear",
        lambda layout: nn.IrrepwiseLinear(IRREPS, [2, 3, 1, 2], biases=True, layout=layout),
        features(features=IRREPS),
        {"features": IRREPS},
        ("2x0e + 3x1o + 1x1o + 2x2e",),
        e3nn=lambda: o3.Linear(
            IRREPS, "2x0e + 3x1o + 1x1o + 2x2e", instructions=[(i, i) for i in range(4)], biases=True
        ),
        family="Linear maps",
    ),
    Case(
        "LowRankLinear",
        lambda layout: nn.LowRankLinear(IRREPS, "2x0e + 3x1o", 2, biases=True, layout=layout),
        features(features=IRREPS),
        {"features": IRREPS},
        ("2x0e + 3x1o",),
        family="Linear maps",
    ),
    Case(
        "SpeciesLinear",
        lambda layout: nn.SpeciesLinear(IRREPS, "2x0e + 2x1o", 3, layout=layout),
        species,
        {"features": IRREPS},
        ("2x0e + 2x1o",),
        family="Linear maps",
    ),
    Case(
        "SO3Linear",
        lambda layout: nn.SO3Linear("2x0e + 2x1o", EDGE, "2x0e + 2x1o + 2x2e", layout=layout),
        features(x="2x0e + 2x1o", y=EDGE),
        {"x": "2x0e + 2x1o", "y": EDGE},
        ("2x0e + 2x1o + 2x2e",),
        family="Linear maps",
    ),
    Case(
        "SO3Linear, uv",
        lambda layout: nn.SO3Linear("2x0e + 3x1o", "0e + 1o", "2x0e + 3x1o", "uv", layout=layout),
        features(x="2x0e + 3x1o", y="0e + 1o"),
        {"x": "2x0e + 3x1o", "y": "0e + 1o"},
        ("2x0e + 3x1o",),
        e3nn=lambda: o3.FullyConnectedTensorProduct("2x0e + 3x1o", "0e + 1o", "2x0e + 3x1o"),
        family="Linear maps",
    ),
    Case(
        "TensorDot",
        lambda layout: nn.TensorDot(IRREPS, scaled=True, layout=layout),
        features(x=IRREPS, y=IRREPS),
        {"x": IRREPS, "y": IRREPS},
        ("8x0e",),
        family="Linear maps",
    ),
    Case(
        "TensorDot, uv",
        lambda layout: nn.TensorDot("3x0e + 2x1o", "2x0e + 3x1o", "uv", layout=layout),
        features(x="3x0e + 2x1o", y="2x0e + 3x1o"),
        {"x": "3x0e + 2x1o", "y": "2x0e + 3x1o"},
        ("12x0e",),
        family="Linear maps",
    ),
]
