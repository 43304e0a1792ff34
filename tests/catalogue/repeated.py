"""Layers of irreps with repeated groups, which 'ir_mul' keeps side by side: simplified irreps have another order."""

from functools import partial
from typing import Any

import torch
from e3nn import nn as theirs_nn
from e3nn import o3

import eqlayers.nn as nn

from . import attention, products, reshaping, so2
from .angular import conjugated, with_matrices
from .cases import ONE, Case, Turn, edges, features, row
from .norms import drawn

IRREPS = "2x1o + 1x1o + 2x0e + 3x0e + 1x2e"
#: Layers that join groups, as e3nn's, and thus refuse repeated ones in 'ir_mul': name -> arguments that are refused.
REFUSE: dict[str, tuple[Any, ...]] = {
    "Gate": ("2x0e", [torch.tanh], "3x0e", [torch.sigmoid], "2x1o + 1x1o"),
    "FullTensorProduct": ("1x1o", "1x0e + 1x1o + 1x1o"),
    "ElementwiseTensorProduct": ("4x1o", "2x0e + 2x0o"),
    "TensorSquare": ("2x1o + 1x1o",),
}


def scaled(a: Any) -> list[Any]:
    """A scalar times vectors."""
    return [a[0] * value for value in a[1:]]


def named(cases: list[Case], name: str) -> Case:
    return next(case for case in cases if case.name.startswith(name))


def like(case: Case, make: partial[torch.nn.Module], out: str, **acts: Turn) -> Case:
    """A row like one of a graph, of other irreps."""

    def inputs(rows: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        operands = case.inputs(rows, generator)
        return operands | features(x=acts["x"])(rows, generator) if "x" in acts else operands  # type: ignore[arg-type]

    options = {"rows": case.rows, "out_rows": case.out_rows, "slow": ("derivatives", "kernels")}
    return plain(make, out, **{"inputs": inputs} | options | dict(case.acts) | acts)


def weighted(rows: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Messages of other irreps."""
    operands = attention.messages(rows, generator)
    return operands | features(values=VALUES)(edges(rows, generator).shape[1], generator)


def unscaled(rows: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Operands in frames without scales, and features of other irreps."""
    operands = frames.inputs(rows, generator) | features(x=NODE)(rows, generator)
    return {name: value for name, value in operands.items() if name != "scales"}


plain = partial(row, family="Repeated irreps", special="repeated irreps")
repeated = partial(plain, prepare=partial(drawn, training=False))
NODE, EDGE = "2x1o + 2x1o + 2x0e", "0e + 1o"
CONV = [(0, 0, 0, "uvu", True), (0, 1, 2, "uvu", True), (1, 0, 1, "uvu", True), (2, 1, 3, "uvw", True)]
OUT = "2x1o + 2x1o + 2x0e + 2x1o"
convolution, interaction, contraction = (
    named(products.CASES, name) for name in ("TensorProductConv", "Interaction", "SymmetricContraction")
)
SINGLE, DOUBLE = "2x0e + 2x1o", "2x0e + 2x1o + 2x1o"
frame, frames = (named(so2.CASES, name) for name in ("SO2Linear", "SO2Convolution"))
block, aggregate = (named(attention.CASES, name) for name in ("EquivariantAttention, dot", "AttentionAggregate"))
VALUES = "4x0e + 2x1o + 2x1o + 2x1e"
THREE, LINEAR, TWICE = "2x1o + 1x1o", "2x1o + 1x1o + 1x0e", "1x1o + 1x1o"

CASES = [
    repeated(partial(nn.Norm, o3.Irreps(IRREPS)), "9x0e", o3.Norm, features=IRREPS),
    repeated(partial(nn.NormActivation, IRREPS, torch.sigmoid, bias=True), IRREPS, features=IRREPS),
    repeated(partial(nn.BatchNorm, IRREPS), IRREPS, input=IRREPS),
    repeated(partial(nn.BatchRMSNorm, IRREPS), IRREPS, x=IRREPS),
    repeated(partial(nn.LayerNorm, IRREPS), IRREPS, x=IRREPS),
    repeated(partial(nn.RMSNorm, IRREPS), IRREPS, x=IRREPS),
    repeated(partial(nn.MeanSquaredNorm, IRREPS), "5x0e", features=IRREPS),
    repeated(partial(nn.Dropout, IRREPS, 0.5), IRREPS, x=IRREPS),
    repeated(
        partial(nn.Activation, IRREPS, [None, None, torch.tanh, None, None]),
        IRREPS,
        theirs_nn.Activation,
        features=IRREPS,
    ),
    repeated(partial(nn.GatedNonlinearity, IRREPS), IRREPS, x=f"4x0e + {IRREPS}"),
    repeated(
        partial(nn.Gate, *REFUSE["Gate"]),
        "2x0e + 3x1o",
        theirs_nn.Gate,
        layouts=ONE,
        features="2x0e + 3x0e + 2x1o + 1x1o",
    ),
    repeated(partial(nn.Linear, IRREPS, LINEAR), LINEAR, o3.Linear, features=IRREPS),
    repeated(partial(nn.SO3Scale, IRREPS), IRREPS, x=IRREPS),
    repeated(partial(nn.SO3Linear, NODE, EDGE, OUT, "uv"), OUT, x=NODE, y=EDGE),
    repeated(partial(nn.TensorProduct, NODE, EDGE, OUT, CONV), OUT, o3.TensorProduct, x=NODE, y=EDGE),
    repeated(
        partial(nn.FullyConnectedTensorProduct, NODE, TWICE, OUT),
        OUT,
        o3.FullyConnectedTensorProduct,
        x=NODE,
        y=TWICE,
    ),
    repeated(
        partial(nn.FullTensorProduct, *REFUSE["FullTensorProduct"]),
        str(o3.FullTensorProduct(*REFUSE["FullTensorProduct"]).irreps_out),
        o3.FullTensorProduct,
        layouts=ONE,
        x="1x1o",
        y="1x0e + 1x1o + 1x1o",
    ),
    repeated(
        partial(nn.ElementwiseTensorProduct, THREE, "3x0e"), THREE, o3.ElementwiseTensorProduct, x=THREE, y="3x0e"
    ),
    repeated(partial(nn.TensorSquare, THREE, "2x0e + 2x2e"), "2x0e + 2x2e", o3.TensorSquare, layouts=ONE, x=THREE),
    repeated(partial(nn.FormulaLayer, scaled, {"a": DOUBLE}, "2x1o + 2x1o"), "2x1o + 2x1o", a=DOUBLE),
    repeated(partial(nn.Sort, IRREPS), "5x0e + 3x1o + 1x2e", x=IRREPS),
    repeated(partial(nn.Identity, IRREPS, IRREPS), IRREPS, features=IRREPS),
    repeated(partial(reshaping.Merge, [THREE, "1x1o"]), f"{THREE} + 1x1o", a=THREE, b="1x1o"),
    Case(
        "Separable, repeated irreps",
        lambda layout: drawn(
            nn.Separable("2x1o + 2x1o", [3, 1], [None, nn.Norm("1o", layout=layout)], layout=layout), False
        ),
        features(x="2x1o + 2x1o"),
        {"x": "2x1o + 2x1o"},
        ("2x1o + 1x1o + 1x0e",),
        family="Repeated irreps",
    ),
    repeated(partial(nn.Extract, IRREPS, ["1o + 2x1o"], [(1, 0)]), "1o + 2x1o", x=IRREPS),
    repeated(partial(nn.Split, "2x1o + 3x1o", ["2x1o + 3x1o"]), "2x1o + 3x1o", x="2x1o + 3x1o"),
    repeated(partial(nn.ExtractIr, IRREPS, "1o"), THREE, x=IRREPS),
    repeated(partial(nn.ChangeOfBasis, IRREPS, {"1o": -torch.eye(3)}), IRREPS, x=IRREPS),
    plain(
        partial(nn.RotateFeatures, IRREPS, "matrix"),
        IRREPS,
        inputs=lambda rows, generator: with_matrices(rows, generator) | features(x=IRREPS)(rows, generator),
        x=IRREPS,
        rotation=conjugated,
    ),
    like(contraction, partial(nn.SymmetricContraction, DOUBLE, SINGLE, 2, 2), SINGLE, x=DOUBLE),
    like(
        convolution,
        partial(nn.TensorProductConv, NODE, EDGE, OUT, CONV, internal_weights=False, shared_weights=False),
        OUT,
        x=NODE,
    ),
    like(interaction, partial(nn.Interaction, NODE, EDGE, NODE, 4, radial_hidden=(5,)), NODE, x=NODE),
    like(aggregate, partial(attention.AttentionAggregate, VALUES, 2), VALUES, inputs=weighted, values=VALUES),
    like(
        block,
        partial(nn.EquivariantAttention, NODE, "1x0e + 1x1o + 1x2e", OUT, 3, 2, "dot", 3, (4,)),
        OUT,
        x=NODE,
    ),
    like(frames, partial(nn.SO2Convolution, NODE, OUT), OUT, inputs=unscaled, x=NODE),
    plain(partial(nn.SO2Linear, NODE, OUT), OUT, lacks=frame.lacks, x=NODE),
]
