"""Layers with functions of features: scalars, gates, norms and signals on grids; and those that leave parts out."""

from functools import partial

import torch
from e3nn import nn as theirs
from e3nn import o3
from torch import Tensor

import eqlayers.nn as nn

from .cases import ONE, features, row
from .norms import drawn

IRREPS = "2x1o + 3x0e + 1x0o + 2x2e"
SILU, TANH, SIGMOID = torch.nn.functional.silu, torch.tanh, torch.sigmoid
#: Arguments of e3nn's gate: kernels know the functions of the first, not of the second; groups are cut and reordered.
KNOWN = ("3x0e + 2x0o", [SILU, TANH], "2x0e + 3x0e", [SIGMOID, SILU], "2x1o + 1x2e + 2x1o")
OTHER = ("2x0e + 1x0o", [torch.cos, torch.square], "3x0e + 2x0o", [None, TANH], "2x1o + 1x1e + 2x2e")
ACTS = [None, SILU, TANH, None]


def two_nodes_each(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Features of nodes, two to a graph."""
    return {**features(x=IRREPS)(rows, generator), "batch": torch.arange(rows) // 2}


nonlinear = partial(row, family="Nonlinear")
regularising = partial(row, family="Regularising", prepare=torch.nn.Module.eval)
GATED, SPHERE, TURNS = "3x0e + 2x1o", "0e + 1o + 2e", "0e + 3x1e"
CASES = [
    nonlinear(partial(nn.GatedNonlinearity, GATED), GATED, x=f"2x0e + {GATED}"),
    nonlinear(partial(nn.Activation, IRREPS, ACTS), IRREPS, theirs.Activation, features=IRREPS),
    nonlinear(
        partial(nn.Gate, *KNOWN),
        "3x0e + 2x0o + 2x1o + 1x2e + 2x1o",
        theirs.Gate,
        features="2x0o + 8x0e + 4x1o + 1x2e",
    ),
    nonlinear(
        partial(nn.Gate, *OTHER),
        "3x0e + 2x1o + 1x1e + 2x2o",
        theirs.Gate,
        special="other functions",
        features="3x0o + 5x0e + 2x1o + 1x1e + 2x2e",
    ),
    nonlinear(
        partial(nn.NormActivation, o3.Irreps(IRREPS), SIGMOID, bias=True),
        IRREPS,
        theirs.NormActivation,
        prepare=drawn,
        features=IRREPS,
    ),
    nonlinear(
        partial(nn.NormActivation, IRREPS, TANH, normalize=False), IRREPS, special="not normalized", features=IRREPS
    ),
    nonlinear(partial(nn.NormalizedActivation, "silu"), "4x0e", layouts=ONE, x="4x0e"),
    # squares have twice the degree: the grids hold them, so that rotations are exact
    nonlinear(
        partial(nn.S2Activation, SPHERE, torch.square, 8), SPHERE, theirs.S2Activation, layouts=ONE, features=SPHERE
    ),
    nonlinear(
        partial(nn.SO3Activation, 1, 1, torch.square, 2), TURNS, theirs.SO3Activation, layouts=ONE, features=TURNS
    ),
    regularising(partial(nn.Dropout, IRREPS, 0.5), IRREPS, theirs.Dropout, x=IRREPS),
    regularising(partial(nn.DropPath, 0.5), IRREPS, inputs=two_nodes_each, layouts=ONE, x=IRREPS),
]
