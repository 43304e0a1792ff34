"""Products of features and harmonics, along edges and at nodes."""

from functools import partial

import torch
from e3nn import o3
from torch import Tensor

import eqlayers.nn as nn

from .cases import ONE, edges, features, row

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
    of_edges = features(edge_attr=EDGE, weight=f"{WEIGHTS}x0e")(index.shape[1], generator)
    return features(x=NODE)(rows, generator) | of_edges | {"edge_index": index}


def step(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    index = edges(rows, generator)
    lengths = 0.5 + 4 * torch.rand(index.shape[1], generator=generator, dtype=torch.float64)
    operands = features(x=NODE)(rows, generator) | features(edge_attr=EDGE)(index.shape[1], generator)
    return operands | {"lengths": lengths, "edge_index": index}


def atoms(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    pos = 3 * torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return {"pos": pos, "edge_index": edges(rows, generator)}


def species(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    operands = features(x=NODE)(rows, generator)
    return operands | {"y": torch.randint(0, 2, (rows,), generator=generator)}


product = partial(row, family="Products")
MIXED, WIDE, DEGREES = "2x0e + 2x1o", "2x0e + 3x1o", "0e + 1o + 2e + 3o"
CASES = [
    product(partial(nn.TensorProduct, IN1, IN2, OUT, PATHS), OUT, o3.TensorProduct, x=IN1, y=IN2),
    product(
        partial(nn.FullyConnectedTensorProduct, IN1, IN2, MIXED), MIXED, o3.FullyConnectedTensorProduct, x=IN1, y=IN2
    ),
    product(
        partial(nn.FullTensorProduct, "2x0e + 1o", "2x1o"),
        str(o3.FullTensorProduct("2x0e + 1o", "2x1o").irreps_out),
        o3.FullTensorProduct,
        x="2x0e + 1o",
        y="2x1o",
    ),
    product(
        partial(nn.ElementwiseTensorProduct, WIDE, "2x1o + 3x1o"),
        str(o3.ElementwiseTensorProduct(WIDE, "2x1o + 3x1o").irreps_out),
        o3.ElementwiseTensorProduct,
        x=WIDE,
        y="2x1o + 3x1o",
    ),
    product(partial(nn.TensorSquare, WIDE, "2x0e + 2x2e"), "2x0e + 2x2e", o3.TensorSquare, x=WIDE),
    product(
        partial(nn.SphericalHarmonics, DEGREES, True, "component"), DEGREES, o3.SphericalHarmonics, layouts=ONE, x="1o"
    ),
    product(partial(nn.SymmetricContraction, NODE, NODE, 3, 2), NODE, inputs=species, x=NODE),
    product(
        partial(nn.TensorProductConv, NODE, EDGE, NODE, CONV, internal_weights=False, shared_weights=False),
        NODE,
        inputs=graph,
        rows={"edge_attr": "edge", "weight": "edge", "edge_index": "index"},
        out_rows="node",
        x=NODE,
        edge_attr=EDGE,
        weight=f"{WEIGHTS}x0e",
    ),
    product(
        partial(nn.EdgeGeometry, "0e + 1o + 2e"),
        ("1o", lambda value, _: value, "1o", "0e + 1o + 2e"),
        inputs=atoms,
        rows={"edge_index": "index"},
        out_rows="edge",
        layouts=ONE,
        pos="1o",
    ),
    product(
        partial(nn.Interaction, NODE, EDGE, NODE, 4, radial_hidden=(5,)),
        NODE,
        inputs=step,
        rows={"edge_attr": "edge", "lengths": "edge", "edge_index": "index"},
        out_rows="node",
        slow=("derivatives", "kernels", "torch.compile", "torch.export"),
        x=NODE,
        edge_attr=EDGE,
    ),
]
