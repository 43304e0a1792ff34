"""Layers that take features apart, put them together, and change their order or their axes."""

from __future__ import annotations

import torch
from e3nn import nn as theirs
from torch import Tensor

import eqlayers.nn as nn
from eqlayers.irreps.algebra import as_irreps, representation_matrix
from eqlayers.irreps.layout import to_ir_mul, to_mul_ir

from .cases import Case, features

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


def scaled(layout: str) -> torch.nn.Module:
    """Factors per irrep, which are matrices that commute with rotations."""
    eye = torch.eye(3, dtype=torch.float64)
    return nn.ChangeOfBasis(IRREPS, {"1o": 2 * eye, "0e": [[-3.0]]}, inverse=True, layout=layout)


CASES = [
    Case(
        "Extract",
        lambda layout: nn.Extract(IRREPS, ["1x2e + 3x0e", "3x0e + 3x1o"], [(3, 1), (1, 2)], layout=layout),
        features(x=IRREPS),
        {"x": IRREPS},
        ("1x2e + 3x0e", "3x0e + 3x1o"),
        e3nn=lambda: theirs.Extract(IRREPS, ["1x2e + 3x0e", "3x0e + 3x1o"], [(3, 1), (1, 2)]),
        family="Reshaping",
    ),
    Case(
        "ExtractIr",
        lambda layout: nn.ExtractIr(IRREPS, "1o", layout=layout),
        features(x=IRREPS),
        {"x": IRREPS},
        ("2x1o + 3x1o",),
        e3nn=lambda: theirs.ExtractIr(IRREPS, "1o"),
        family="Reshaping",
    ),
    Case(
        "Split",
        lambda layout: nn.Split(IRREPS, [3, "2x0e + 1x1o", -1], layout=layout),
        features(x=IRREPS),
        {"x": IRREPS},
        ("2x1o + 1x0e", "2x0e + 1x1o", "2x1o + 1x2e"),
        family="Reshaping",
    ),
    Case(
        "Merge",
        lambda layout: Merge(["2x1o + 1x0e", "3x1o"], layout=layout),
        features(a="2x1o + 1x0e", b="3x1o"),
        {"a": "2x1o + 1x0e", "b": "3x1o"},
        ("2x1o + 1x0e + 3x1o",),
        family="Reshaping",
    ),
    Case(
        "Sort",
        lambda layout: nn.Sort(IRREPS, layout=layout),
        features(x=IRREPS),
        {"x": IRREPS},
        ("3x0e + 5x1o + 1x2e",),
        family="Reshaping",
    ),
    Case(
        "Identity",
        lambda layout: nn.Identity(IRREPS, IRREPS, layout=layout),
        features(features=IRREPS),
        {"features": IRREPS},
        (IRREPS,),
        e3nn=lambda: theirs.Identity(IRREPS, IRREPS),
        family="Reshaping",
    ),
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
    Case(
        "ChangeOfBasis",
        lambda layout: nn.ChangeOfBasis(IRREPS, "polar_z", layout=layout),
        features(x=IRREPS),
        {"x": IRREPS},
        (polar_z,),
        layouts=("mul_ir",),
        family="Reshaping",
    ),
    Case(
        "ChangeOfBasis, to ir_mul",
        lambda layout: nn.ChangeOfBasis(IRREPS, "polar_z", layout=layout, layout_out="ir_mul"),
        features(x=IRREPS),
        {"x": IRREPS},
        (polar_z_ir_mul,),
        layouts=("mul_ir",),
        family="Reshaping",
    ),
    Case(
        "ChangeOfBasis, from ir_mul",
        lambda _: nn.ChangeOfBasis(IRREPS, "polar_z", inverse=True, layout="ir_mul", layout_out="mul_ir"),
        features(x=IRREPS),
        {"x": polar_z_ir_mul},
        (IRREPS,),
        layouts=("mul_ir",),
        family="Reshaping",
    ),
    Case(
        "ChangeOfBasis, factors",
        scaled,
        features(x=IRREPS),
        {"x": IRREPS},
        (IRREPS,),
        family="Reshaping",
    ),
]
