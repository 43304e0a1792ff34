"""Linear maps of features, and dot products of them."""

from functools import partial

import torch
from e3nn import o3
from torch import Tensor

import eqlayers.nn as nn

from .cases import features, row

IRREPS = "3x0e + 2x1o + 2x1o + 1x2e"
EDGE = "0e + 1o + 2e"


def species(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    operands = features(features=IRREPS)(rows, generator)
    return operands | {"kind": torch.randint(0, 3, (rows,), generator=generator)}


linear = partial(row, family="Linear maps")
OUT = "2x0e + 4x1o"
FIRST, SECOND = "3x0e + 2x1o", "2x0e + 3x1o"
CASES = [
    linear(partial(nn.Linear, IRREPS, OUT), OUT, o3.Linear, features=IRREPS),
    linear(partial(nn.SO3Scale, IRREPS), IRREPS, x=IRREPS),
    linear(
        partial(nn.Linear, IRREPS, OUT, biases=True, path_normalization="path"),
        OUT,
        o3.Linear,
        special="biases",
        features=IRREPS,
    ),
    linear(
        partial(nn.IrrepwiseLinear, IRREPS, [2, 3, 1, 2], biases=True),
        "2x0e + 3x1o + 1x1o + 2x2e",
        lambda irreps, channels, biases: o3.Linear(
            irreps, "2x0e + 3x1o + 1x1o + 2x2e", instructions=[(i, i) for i in range(4)], biases=biases
        ),
        features=IRREPS,
    ),
    linear(partial(nn.LowRankLinear, IRREPS, SECOND, 2, biases=True), SECOND, features=IRREPS),
    linear(partial(nn.SpeciesLinear, IRREPS, "2x0e + 2x1o", 3), "2x0e + 2x1o", inputs=species, features=IRREPS),
    linear(
        partial(nn.SO3Linear, "2x0e + 2x1o", EDGE, "2x0e + 2x1o + 2x2e"),
        "2x0e + 2x1o + 2x2e",
        x="2x0e + 2x1o",
        y=EDGE,
    ),
    linear(
        partial(nn.SO3Linear, SECOND, "0e + 1o", SECOND, "uv"),
        SECOND,
        lambda *arguments: o3.FullyConnectedTensorProduct(*arguments[:3]),
        special="uv",
        x=SECOND,
        y="0e + 1o",
    ),
    linear(partial(nn.TensorDot, IRREPS, scaled=True), "8x0e", x=IRREPS, y=IRREPS),
    linear(partial(nn.TensorDot, FIRST, SECOND, "uv"), "12x0e", special="uv", x=FIRST, y=SECOND),
]
