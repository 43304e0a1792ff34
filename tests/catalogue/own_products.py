"""Layers that a user writes as a function of components."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

import eqlayers.nn as nn

from .cases import edges, features, row


def mixed(x: Any, y: Any) -> Any:
    """A gated vector, and a triple product: polynomials and a function, of scalars and vectors."""
    s, a, b = x[0], x[1:], y
    dot = sum((p * q for p, q in zip(a, b, strict=True)), start=s - s)
    cross = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    return [dot * s - 2 * s**3 / 7, *(s.silu() * c for c in cross)]


def message(x: Any, r: Any, weight: Any) -> Any:
    """Features of the sender along the direction of an edge."""
    inverse = r[0].inverse_length(r[1], r[2])
    return [weight[0] * x[0] * v * inverse for v in r], [x[0].tanh()]


def rows(number: int, generator: torch.Generator) -> dict[str, Tensor]:
    index = edges(number, generator)
    operands = features(x="4x0e")(number, generator) | features(r="4x1o")(index.shape[1], generator)
    weight = torch.randn(4, generator=generator, dtype=torch.float64)
    return operands | {"weight": weight, "graph": index}


own = partial(row, family="Own products")
WIDE, FEW = ("4x0e + 4x1o", "4x1o"), ("2x0e + 2x1o", "2x1o")
CASES = [
    own(
        partial(nn.FormulaLayer, mixed, {"x": WIDE[0], "y": WIDE[1]}, "4x0e + 4x1e"),
        "4x0e + 4x1e",
        x=WIDE[0],
        y=WIDE[1],
    ),
    own(
        partial(nn.FormulaLayer, mixed, {"x": FEW[0], "y": FEW[1]}, "2x0e + 2x1e"),
        "2x0e + 2x1e",
        special="few channels",
        x=FEW[0],
        y=FEW[1],
    ),
    own(
        partial(
            nn.FormulaLayer,
            message,
            {"x": "4x0e", "r": "4x1o", "weight": "4x0e"},
            ["4x1o", "4x0e"],
            rows={"x": "src", "weight": "one"},
            rows_out="dst",
        ),
        ("4x1o", "4x0e"),
        special="along edges",
        inputs=rows,
        rows={"r": "edge", "weight": "one", "graph": "index"},
        out_rows="node",
        r="4x1o",
    ),
]
