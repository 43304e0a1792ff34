"""Layers that take features apart, put them together, and change their order or their axes."""

from functools import partial

import torch
from e3nn import nn as theirs
from torch import Tensor

import eqlayers.nn as nn
from eqlayers.irreps.algebra import as_irreps, representation_matrix
from eqlayers.irreps.layout import to_ir_mul, to_mul_ir

from .cases import ONE, Case, features, row

IRREPS = "2x1o + 3x0e + 3x1o + 1x2e"
#: The exchange of axes that leads from e3nn's polar axis y to z.
AXES = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=torch.float64)


class Merge(nn.Merge):
    """With names for its features, by which the list calls layers."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return super().forward(a, b)


def polar_z(value: Tensor, matrix: Tensor) -> Tensor:
    """How features with the polar axis z turn."""
    axes = AXES.to(matrix)
    return value @ representation_matrix(as_irreps(IRREPS), axes @ matrix @ axes.T).to(value).T


def polar_z_ir_mul(value: Tensor, matrix: Tensor) -> Tensor:
    """How those with the polar axis z turn in 'ir_mul'."""
    return to_ir_mul(polar_z(to_mul_ir(value, as_irreps(IRREPS)), matrix), as_irreps(IRREPS))


#: Factors per irrep, which are matrices that commute with rotations.
SCALED = {"1o": 2 * torch.eye(3, dtype=torch.float64), "0e": [[-3.0]]}


reshaping = partial(row, family="Reshaping")
PARTS = ("2x1o + 1x0e", "3x1o")
CASES = [
    reshaping(
        partial(nn.Extract, IRREPS, ["1x2e + 3x0e", "3x0e + 3x1o"], [(3, 1), (1, 2)]),
        ("1x2e + 3x0e", "3x0e + 3x1o"),
        theirs.Extract,
        x=IRREPS,
    ),
    reshaping(partial(nn.ExtractIr, IRREPS, "1o"), "2x1o + 3x1o", theirs.ExtractIr, x=IRREPS),
    reshaping(
        partial(nn.Split, IRREPS, [3, "2x0e + 1x1o", -1]), ("2x1o + 1x0e", "2x0e + 1x1o", "2x1o + 1x2e"), x=IRREPS
    ),
    reshaping(partial(Merge, PARTS), "2x1o + 1x0e + 3x1o", a=PARTS[0], b=PARTS[1]),
    reshaping(partial(nn.Sort, IRREPS), "3x0e + 5x1o + 1x2e", x=IRREPS),
    reshaping(partial(nn.Identity, IRREPS, IRREPS), IRREPS, theirs.Identity, features=IRREPS),
    Case(
        "Separable",
        lambda layout: nn.Separable(
            IRREPS,
            [4, 3, -1],
            [None, nn.Linear("1x0e + 2x1o", "2x1o", layout=layout), nn.Norm("1o + 2e", layout=layout)],
            layout=layout,
        ),
        features(x=IRREPS),
        {"x": IRREPS},
        ("2x1o + 2x0e + 2x1o + 2x0e",),
        family="Reshaping",
    ),
    reshaping(partial(nn.ChangeOfBasis, IRREPS, "polar_z"), polar_z, layouts=ONE, x=IRREPS),
    reshaping(
        partial(nn.ChangeOfBasis, IRREPS, "polar_z", layout_out="ir_mul"),
        polar_z_ir_mul,
        special="to ir_mul",
        layouts=ONE,
        x=IRREPS,
    ),
    reshaping(
        partial(nn.ChangeOfBasis, IRREPS, "polar_z", inverse=True, layout="ir_mul", layout_out="mul_ir"),
        IRREPS,
        special="from ir_mul",
        inputs=features(x=IRREPS),
        layouts=ONE,
        x=polar_z_ir_mul,
    ),
    reshaping(partial(nn.ChangeOfBasis, IRREPS, SCALED, inverse=True), IRREPS, special="factors", x=IRREPS),
]
