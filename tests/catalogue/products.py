"""Products of features and harmonics, along edges and at nodes."""

from __future__ import annotations

import torch
from e3nn import o3
from torch import Tensor

import eqlayers.nn as nn

from .cases import Case, edges, features

IN1, IN2, OUT = "3x0e + 2x1o + 1x2e", "2x0e + 2x1o", "3x0e + 2x1o + 2x1e + 2x2e"
PATHS = [
    (0, 0, 0, "uvu", True),
    (1, 1, 0, "uvw", True),
    (1, 0, 1, "uuu", True),
    (1, 1, 2, "uuw", True),
    (0, 1, 1, "uvv", False),
    (1, 1, 3, "uuu", False),
]
NODE, EDGE = "2x0e + 2x1o", "0e + 1o"
CONV = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 0, "uvw", True)]
WEIGHTS = 2 + 2 + 2 + 4


def graph(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    index = edges(rows, generator)
    operands = features(x=NODE)(rows, generator) | features(edge_attr=EDGE, weight=f"{WEIGHTS}x0e")(
        index.shape[1], generator
    )
    return operands | {"edge_index": index}


def step(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    index = edges(rows, generator)
    lengths = 0.5 + 4 * torch.rand(index.shape[1], generator=generator, dtype=torch.float64)
    operands = features(x=NODE)(rows, generator) | features(edge_attr=EDGE)(index.shape[1], generator)
    return operands | {"lengths": lengths, "edge_index": index}


def atoms(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    pos = 3 * torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return {"pos": pos, "edge_index": edges(rows, generator)}


def species(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    operands = features(x="2x0e + 2x1o")(rows, generator)
    return operands | {"y": torch.randint(0, 2, (rows,), generator=generator)}


def product(name: str, ours: object, theirs: object, out: str, irreps: tuple[str, str] = (IN1, IN2)) -> Case:
    """A row of two features to one."""
    return Case(
        name,
        lambda layout: ours(layout=layout),  # type: ignore[operator]
        features(x=irreps[0], y=irreps[1]),
        {"x": irreps[0], "y": irreps[1]},
        (out,),
        e3nn=theirs,  # type: ignore[arg-type]
        family="Products",
    )


CASES = [
    product(
        "TensorProduct",
        lambda layout: nn.TensorProduct(IN1, IN2, OUT, PATHS, layout=layout),
        lambda: o3.TensorProduct(IN1, IN2, OUT, PATHS),
        OUT,
    ),
    product(
        "FullyConnectedTensorProduct",
        lambda layout: nn.FullyConnectedTensorProduct(IN1, IN2, "2x0e + 2x1o", layout=layout),
        lambda: o3.FullyConnectedTensorProduct(IN1, IN2, "2x0e + 2x1o"),
        "2x0e + 2x1o",
    ),
    product(
        "FullTensorProduct",
        lambda layout: nn.FullTensorProduct("2x0e + 1o", "2x1o", layout=layout),
        lambda: o3.FullTensorProduct("2x0e + 1o", "2x1o"),
        str(o3.FullTensorProduct("2x0e + 1o", "2x1o").irreps_out),
        ("2x0e + 1o", "2x1o"),
    ),
    product(
        "ElementwiseTensorProduct",
        lambda layout: nn.ElementwiseTensorProduct("2x0e + 3x1o", "2x1o + 3x1o", layout=layout),
        lambda: o3.ElementwiseTensorProduct("2x0e + 3x1o", "2x1o + 3x1o"),
        str(o3.ElementwiseTensorProduct("2x0e + 3x1o", "2x1o + 3x1o").irreps_out),
        ("2x0e + 3x1o", "2x1o + 3x1o"),
    ),
    Case(
        "TensorSquare",
        lambda layout: nn.TensorSquare("2x0e + 3x1o", "2x0e + 2x2e", layout=layout),
        features(x="2x0e + 3x1o"),
        {"x": "2x0e + 3x1o"},
        ("2x0e + 2x2e",),
        e3nn=lambda: o3.TensorSquare("2x0e + 3x1o", "2x0e + 2x2e"),
        family="Products",
    ),
    Case(
        "SphericalHarmonics",
        lambda _: nn.SphericalHarmonics("0e + 1o + 2e + 3o", True, "component"),
        features(x="1o"),
        {"x": "1o"},
        ("0e + 1o + 2e + 3o",),
        layouts=("mul_ir",),
        e3nn=lambda: o3.SphericalHarmonics("0e + 1o + 2e + 3o", True, "component"),
        family="Products",
    ),
    Case(
        "SymmetricContraction",
        lambda layout: nn.SymmetricContraction("2x0e + 2x1o", "2x0e + 2x1o", 3, 2, layout=layout),
        species,
        {"x": "2x0e + 2x1o"},
        ("2x0e + 2x1o",),
        family="Products",
    ),
    Case(
        "TensorProductConv",
        lambda layout: nn.TensorProductConv(
            NODE, EDGE, NODE, CONV, internal_weights=False, shared_weights=False, layout=layout
        ),
        graph,
        {"x": NODE, "edge_attr": EDGE, "weight": f"{WEIGHTS}x0e"},
        (NODE,),
        rows={"edge_attr": "edge", "weight": "edge", "edge_index": "index"},
        out_rows="node",
        family="Products",
    ),
    Case(
        "EdgeGeometry",
        lambda _: nn.EdgeGeometry("0e + 1o + 2e"),
        atoms,
        {"pos": "1o"},
        ("1o", lambda value, _: value, "1o", "0e + 1o + 2e"),
        rows={"edge_index": "index"},
        out_rows="edge",
        layouts=("mul_ir",),
        family="Products",
    ),
    Case(
        "Interaction",
        lambda layout: nn.Interaction(NODE, EDGE, NODE, 4, radial_hidden=(5,), layout=layout),
        step,
        {"x": NODE, "edge_attr": EDGE},
        (NODE,),
        rows={"edge_attr": "edge", "lengths": "edge", "edge_index": "index"},
        out_rows="node",
        family="Products",
        slow=("derivatives", "kernels", "torch.compile", "torch.export"),
    ),
]
