"""Layers with functions of features: scalars, gates, norms and signals on grids; and those that leave parts out."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import nn as theirs
from e3nn import o3
from torch import Tensor

import eqlayers.nn as nn

from .cases import Case, features
from .norms import drawn

IRREPS = "2x1o + 3x0e + 1x0o + 2x2e"
SILU, TANH, SIGMOID = torch.nn.functional.silu, torch.tanh, torch.sigmoid
#: Arguments of e3nn's gate: kernels know the functions of the first, not of the second; groups are cut and reordered.
KNOWN = ("3x0e + 2x0o", [SILU, TANH], "2x0e + 3x0e", [SIGMOID, SILU], "2x1o + 1x2e + 2x1o")
OTHER = ("2x0e + 1x0o", [torch.cos, torch.square], "3x0e + 2x0o", [None, TANH], "2x1o + 1x1e + 2x2e")
ACTS = [None, SILU, TANH, None]


def gate(name: str, arguments: tuple[Any, ...], irreps_in: str, irreps_out: str) -> Case:
    return Case(
        name,
        lambda layout: nn.Gate(*arguments, layout=layout),
        features(features=irreps_in),
        {"features": irreps_in},
        (irreps_out,),
        e3nn=lambda: theirs.Gate(*arguments),
        family="Nonlinear",
    )


def two_nodes_each(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Features of nodes, two to a graph."""
    return {**features(x=IRREPS)(rows, generator), "batch": torch.arange(rows) // 2}


CASES = [
    Case(
        "Activation",
        lambda layout: nn.Activation(IRREPS, ACTS, layout=layout),
        features(features=IRREPS),
        {"features": IRREPS},
        (IRREPS,),
        e3nn=lambda: theirs.Activation(IRREPS, ACTS),
        family="Nonlinear",
    ),
    gate("Gate", KNOWN, "2x0o + 8x0e + 4x1o + 1x2e", "3x0e + 2x0o + 2x1o + 1x2e + 2x1o"),
    gate("Gate, other functions", OTHER, "3x0o + 5x0e + 2x1o + 1x1e + 2x2e", "3x0e + 2x1o + 1x1e + 2x2o"),
    Case(
        "NormActivation",
        lambda layout: drawn(nn.NormActivation(IRREPS, SIGMOID, bias=True, layout=layout)),
        features(features=IRREPS),
        {"features": IRREPS},
        (IRREPS,),
        e3nn=lambda: drawn(theirs.NormActivation(o3.Irreps(IRREPS), SIGMOID, bias=True)),
        family="Nonlinear",
    ),
    Case(
        "NormActivation, not normalized",
        lambda layout: nn.NormActivation(IRREPS, TANH, normalize=False, layout=layout),
        features(features=IRREPS),
        {"features": IRREPS},
        (IRREPS,),
        family="Nonlinear",
    ),
    Case(
        "NormalizedActivation",
        lambda _: nn.NormalizedActivation("silu"),
        features(x="4x0e"),
        {"x": "4x0e"},
        ("4x0e",),
        layouts=("mul_ir",),
        family="Nonlinear",
    ),
    # squares have twice the degree: the grids hold them, so that rotations are exact
    Case(
        "S2Activation",
        lambda _: nn.S2Activation("0e + 1o + 2e", torch.square, 8),
        features(features="0e + 1o + 2e"),
        {"features": "0e + 1o + 2e"},
        ("0e + 1o + 2e",),
        layouts=("mul_ir",),
        e3nn=lambda: theirs.S2Activation("0e + 1o + 2e", torch.square, 8),
        family="Nonlinear",
    ),
    Case(
        "SO3Activation",
        lambda _: nn.SO3Activation(1, 1, torch.square, 2),
        features(features="0e + 3x1e"),
        {"features": "0e + 3x1e"},
        ("0e + 3x1e",),
        layouts=("mul_ir",),
        e3nn=lambda: theirs.SO3Activation(1, 1, torch.square, 2),
        family="Nonlinear",
    ),
    Case(
        "Dropout",
        lambda layout: nn.Dropout(IRREPS, 0.5, layout=layout).eval(),
        features(x=IRREPS),
        {"x": IRREPS},
        (IRREPS,),
        e3nn=lambda: theirs.Dropout(IRREPS, 0.5).eval(),
        family="Regularising",
    ),
    Case(
        "DropPath",
        lambda _: nn.DropPath(0.5).eval(),
        two_nodes_each,
        {"x": IRREPS},
        (IRREPS,),
        layouts=("mul_ir",),
        family="Regularising",
    ),
]
