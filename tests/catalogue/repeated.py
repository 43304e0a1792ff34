"""Layers of irreps with repeated groups, which 'ir_mul' keeps side by side: simplified irreps have another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn import nn as theirs_nn
from e3nn import o3

import eqlayers.nn as nn

from . import attention, products, reshaping, so2
from .angular import conjugated, with_matrices
from .cases import Case, edges, features
from .norms import drawn

IRREPS = "2x1o + 1x1o + 2x0e + 3x0e + 1x2e"
#: Layers that join groups, as e3nn's, and thus refuse repeated ones in 'ir_mul': name -> arguments that are refused.
REFUSE: dict[str, tuple[Any, ...]] = {
    "Gate": ("2x0e", [torch.tanh], "3x0e", [torch.sigmoid], "2x1o + 1x1o"),
    "FullTensorProduct": ("1x1o", "1x0e + 1x1o + 1x1o"),
    "ElementwiseTensorProduct": ("4x1o", "2x0e + 2x0o"),
    "TensorSquare": ("2x1o + 1x1o",),
}


def row(
    name: str,
    make: Callable[[str], torch.nn.Module],
    out: str,
    e3nn: Callable[[], torch.nn.Module] | None = None,
    layouts: tuple[str, ...] = ("mul_ir", "ir_mul"),
    **irreps: str,
) -> Case:
    """A row whose operands are features."""
    return Case(
        f"{name}, repeated irreps",
        lambda layout: drawn(make(layout), False),
        features(**irreps),
        irreps,
        (out,),
        layouts=layouts,
        e3nn=None if e3nn is None else lambda: drawn(e3nn(), False),
        family="Repeated irreps",
    )


def scaled(a: Any) -> list[Any]:
    """A scalar times vectors."""
    return [a[0] * value for value in a[1:]]


def like(case: Case, make: Callable[[str], torch.nn.Module], out: str, inputs: Any = None, **acts: Any) -> Case:
    """A row like one of a graph, of other irreps."""
    return Case(
        f"{case.name.partition(',')[0]}, repeated irreps",
        make,
        inputs or case.inputs,
        {**case.acts, **acts},
        (out,),
        rows=case.rows,
        out_rows=case.out_rows,
        family="Repeated irreps",
        slow=("derivatives", "kernels"),
    )


def named(cases: list[Case], name: str) -> Case:
    return next(case for case in cases if case.name.startswith(name))


def with_x(case: Case, irreps: str) -> Any:
    """The operands of a row, with other features x."""
    return lambda rows, generator: case.inputs(rows, generator) | features(x=irreps)(rows, generator)


def without(operands: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """Operands but for one."""
    return {key: value for key, value in operands.items() if key != name}


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

CASES = [
    row(
        "Norm",
        lambda layout: nn.Norm(IRREPS, layout=layout),
        "9x0e",
        lambda: o3.Norm(o3.Irreps(IRREPS)),
        features=IRREPS,
    ),
    row(
        "NormActivation",
        lambda layout: nn.NormActivation(IRREPS, torch.sigmoid, bias=True, layout=layout),
        IRREPS,
        features=IRREPS,
    ),
    row("BatchNorm", lambda layout: nn.BatchNorm(IRREPS, layout=layout), IRREPS, input=IRREPS),
    row("BatchRMSNorm", lambda layout: nn.BatchRMSNorm(IRREPS, layout=layout), IRREPS, x=IRREPS),
    row("LayerNorm", lambda layout: nn.LayerNorm(IRREPS, layout=layout), IRREPS, x=IRREPS),
    row("RMSNorm", lambda layout: nn.RMSNorm(IRREPS, layout=layout), IRREPS, x=IRREPS),
    row("MeanSquaredNorm", lambda layout: nn.MeanSquaredNorm(IRREPS, layout=layout), "5x0e", features=IRREPS),
    row("Dropout", lambda layout: nn.Dropout(IRREPS, 0.5, layout=layout), IRREPS, x=IRREPS),
    row(
        "Activation",
        lambda layout: nn.Activation(IRREPS, [None, None, torch.tanh, None, None], layout=layout),
        IRREPS,
        lambda: theirs_nn.Activation(IRREPS, [None, None, torch.tanh, None, None]),
        features=IRREPS,
    ),
    row(
        "GatedNonlinearity",
        lambda layout: nn.GatedNonlinearity(IRREPS, layout=layout),
        IRREPS,
        x=f"4x0e + {IRREPS}",
    ),
    row(
        "Gate",
        lambda layout: nn.Gate(*REFUSE["Gate"], layout=layout),
        "2x0e + 3x1o",
        lambda: theirs_nn.Gate(*REFUSE["Gate"]),
        layouts=("mul_ir",),
        features="2x0e + 3x0e + 2x1o + 1x1o",
    ),
    row(
        "Linear",
        lambda layout: nn.Linear(IRREPS, "2x1o + 1x1o + 1x0e", layout=layout),
        "2x1o + 1x1o + 1x0e",
        lambda: o3.Linear(IRREPS, "2x1o + 1x1o + 1x0e"),
        features=IRREPS,
    ),
    row("SO3Scale", lambda layout: nn.SO3Scale(IRREPS, layout=layout), IRREPS, x=IRREPS),
    row(
        "SO3Linear",
        lambda layout: nn.SO3Linear(NODE, EDGE, OUT, "uv", layout=layout),
        OUT,
        x=NODE,
        y=EDGE,
    ),
    row(
        "TensorProduct",
        lambda layout: nn.TensorProduct(NODE, EDGE, OUT, CONV, layout=layout),
        OUT,
        lambda: o3.TensorProduct(NODE, EDGE, OUT, CONV),
        x=NODE,
        y=EDGE,
    ),
    row(
        "FullyConnectedTensorProduct",
        lambda layout: nn.FullyConnectedTensorProduct(NODE, "1x1o + 1x1o", OUT, layout=layout),
        OUT,
        lambda: o3.FullyConnectedTensorProduct(NODE, "1x1o + 1x1o", OUT),
        x=NODE,
        y="1x1o + 1x1o",
    ),
    row(
        "FullTensorProduct",
        lambda layout: nn.FullTensorProduct(*REFUSE["FullTensorProduct"], layout=layout),
        str(o3.FullTensorProduct(*REFUSE["FullTensorProduct"]).irreps_out),
        lambda: o3.FullTensorProduct(*REFUSE["FullTensorProduct"]),
        layouts=("mul_ir",),
        x="1x1o",
        y="1x0e + 1x1o + 1x1o",
    ),
    row(
        "ElementwiseTensorProduct",
        lambda layout: nn.ElementwiseTensorProduct("2x1o + 1x1o", "3x0e", layout=layout),
        "2x1o + 1x1o",
        lambda: o3.ElementwiseTensorProduct("2x1o + 1x1o", "3x0e"),
        x="2x1o + 1x1o",
        y="3x0e",
    ),
    row(
        "TensorSquare",
        lambda layout: nn.TensorSquare("2x1o + 1x1o", "2x0e + 2x2e", layout=layout),
        "2x0e + 2x2e",
        lambda: o3.TensorSquare("2x1o + 1x1o", "2x0e + 2x2e"),
        layouts=("mul_ir",),
        x="2x1o + 1x1o",
    ),
    row(
        "FormulaLayer",
        lambda layout: nn.FormulaLayer(scaled, {"a": "2x0e + 2x1o + 2x1o"}, "2x1o + 2x1o", layout=layout),
        "2x1o + 2x1o",
        a="2x0e + 2x1o + 2x1o",
    ),
    row("Sort", lambda layout: nn.Sort(IRREPS, layout=layout), "5x0e + 3x1o + 1x2e", x=IRREPS),
    row("Identity", lambda layout: nn.Identity(IRREPS, IRREPS, layout=layout), IRREPS, features=IRREPS),
    row(
        "Merge",
        lambda layout: reshaping.Merge(["2x1o + 1x1o", "1x1o"], layout=layout),
        "2x1o + 1x1o + 1x1o",
        a="2x1o + 1x1o",
        b="1x1o",
    ),
    row(
        "Separable",
        lambda layout: nn.Separable("2x1o + 2x1o", [3, 1], [None, nn.Norm("1o", layout=layout)], layout=layout),
        "2x1o + 1x1o + 1x0e",
        x="2x1o + 2x1o",
    ),
    row("Extract", lambda layout: nn.Extract(IRREPS, ["1o + 2x1o"], [(1, 0)], layout=layout), "1o + 2x1o", x=IRREPS),
    row(
        "Split", lambda layout: nn.Split("2x1o + 3x1o", ["2x1o + 3x1o"], layout=layout), "2x1o + 3x1o", x="2x1o + 3x1o"
    ),
    row("ExtractIr", lambda layout: nn.ExtractIr(IRREPS, "1o", layout=layout), "2x1o + 1x1o", x=IRREPS),
    row(
        "ChangeOfBasis", lambda layout: nn.ChangeOfBasis(IRREPS, {"1o": -torch.eye(3)}, layout=layout), IRREPS, x=IRREPS
    ),
    Case(
        "RotateFeatures, repeated irreps",
        lambda layout: nn.RotateFeatures(IRREPS, "matrix", layout=layout),
        lambda rows, generator: with_matrices(rows, generator) | features(x=IRREPS)(rows, generator),
        {"x": IRREPS, "rotation": conjugated},
        (IRREPS,),
        family="Repeated irreps",
    ),
    like(
        contraction,
        lambda layout: nn.SymmetricContraction(DOUBLE, SINGLE, 2, 2, layout=layout),
        SINGLE,
        with_x(contraction, DOUBLE),
        x=DOUBLE,
    ),
    like(
        convolution,
        lambda layout: nn.TensorProductConv(
            NODE, EDGE, OUT, CONV, internal_weights=False, shared_weights=False, layout=layout
        ),
        OUT,
        with_x(convolution, NODE),
        x=NODE,
    ),
    like(
        interaction,
        lambda layout: nn.Interaction(NODE, EDGE, NODE, 4, radial_hidden=(5,), layout=layout),
        NODE,
        with_x(interaction, NODE),
        x=NODE,
    ),
    like(
        aggregate,
        lambda layout: attention.AttentionAggregate(VALUES, 2, layout=layout),
        VALUES,
        lambda rows, generator: (
            attention.messages(rows, generator) | features(values=VALUES)(edges(rows, generator).shape[1], generator)
        ),
        values=VALUES,
    ),
    like(
        block,
        lambda layout: nn.EquivariantAttention(NODE, "1x0e + 1x1o + 1x2e", OUT, 3, 2, "dot", 3, (4,), layout=layout),
        OUT,
        with_x(block, NODE),
        x=NODE,
    ),
    like(
        frames,
        lambda layout: nn.SO2Convolution(NODE, OUT, layout=layout),
        OUT,
        lambda rows, generator: without(with_x(frames, NODE)(rows, generator), "scales"),
        x=NODE,
    ),
    Case(
        "SO2Linear, repeated irreps",
        lambda layout: nn.SO2Linear(NODE, OUT, layout=layout),
        features(x=NODE),
        {"x": NODE},
        (OUT,),
        family="Repeated irreps",
        lacks=frame.lacks,
    ),
]
