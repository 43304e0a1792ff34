"""Layers that were there before the list."""

from __future__ import annotations

from e3nn import o3

import eqlayers.nn as nn

from .cases import Case, features

IRREPS = "3x0e + 2x1o + 1x2e"
CASES = [
    Case(
        "Linear",
        lambda layout: nn.Linear(IRREPS, "2x0e + 4x1o", layout=layout),
        features(features=IRREPS),
        {"features": IRREPS},
        ("2x0e + 4x1o",),
        e3nn=lambda: o3.Linear(IRREPS, "2x0e + 4x1o"),
        family="Linear maps",
    ),
    Case(
        "Norm",
        lambda layout: nn.Norm(IRREPS, layout=layout),
        features(features=IRREPS),
        {"features": IRREPS},
        ("6x0e",),
        e3nn=lambda: o3.Norm(IRREPS),
        family="Norms",
    ),
    Case(
        "GatedNonlinearity",
        lambda layout: nn.GatedNonlinearity("3x0e + 2x1o", layout=layout),
        features(x="2x0e + 3x0e + 2x1o"),
        {"x": "2x0e + 3x0e + 2x1o"},
        ("3x0e + 2x1o",),
        family="Nonlinear",
    ),
    Case(
        "SO3Scale",
        lambda layout: nn.SO3Scale(IRREPS, layout=layout),
        features(x=IRREPS),
        {"x": IRREPS},
        (IRREPS,),
        family="Linear maps",
    ),
]
