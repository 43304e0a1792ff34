"""Small layers of the catalogue that launch every kind of printed kernel, and their values and two derivatives."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

import eqlayers.nn as nn
from eqlayers.irreps.algebra import as_irreps
from tests.catalogue.attention import AttentionAggregate
from tests.catalogue.cases import results
from tests.catalogue.own_products import message, mixed


class Kind(NamedTuple):
    """A layer, the shapes or the values of its inputs, and the kernels that value and derivatives take."""

    make: Callable[[], torch.nn.Module]
    inputs: Mapping[str, Any]
    kernels: str

    def layer(self, backend: str, dtype: torch.dtype) -> torch.nn.Module:
        """With the same weights every time, and every part of it on the backend."""
        torch.manual_seed(0)
        layer = self.make().to(dtype)
        for module in layer.modules():
            if hasattr(module, "backend"):
                module.backend = backend
        return layer

    def arguments(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Inputs by name: normal numbers where a shape is given, and tensors as they are."""
        made = torch.Generator().manual_seed(1)
        wide = {
            name: value if isinstance(value, Tensor) else torch.randn(value, generator=made, dtype=torch.float64)
            for name, value in self.inputs.items()
        }
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in wide.items()}


def rows(count: int = 3, **irreps: str | int) -> dict[str, tuple[int, int]]:
    """Shapes of operands with so many rows: of irreps, or of so many columns."""
    return {name: (count, one if isinstance(one, int) else as_irreps(one).dim) for name, one in irreps.items()}


def orders(layer: torch.nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Values, gradients by arguments and parameters, and the gradients of a sum of the squares of these."""
    live = {name: t.detach().clone().requires_grad_(t.is_floating_point()) for name, t in inputs.items()}
    by = [t for t in (*live.values(), *layer.parameters()) if t.requires_grad]
    found = list(results(layer(**live)))
    how: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    first = torch.autograd.grad(sum(t.square().sum() + t.sum() for t in found), by, create_graph=True, **how)
    second = torch.autograd.grad(sum(t.square().sum() for t in first), by, **how)
    return [t.detach() for t in (*found, *first, *second)]


def triple(layout: str = "mul_ir") -> nn.FormulaLayer:
    return nn.FormulaLayer(mixed, {"x": "5x0e + 5x1o", "y": "5x1o"}, "5x0e + 5x1e", layout=layout)


def along_edges(channels: int) -> nn.FormulaLayer:
    one, three = f"{channels}x0e", f"{channels}x1o"
    where = {"x": "src", "weight": "one"}
    return nn.FormulaLayer(message, {"x": one, "r": three, "weight": one}, [three, one], rows=where, rows_out="dst")


def attention(logits: str) -> nn.EquivariantAttention:
    """With one copy for each head, as kernels ask for."""
    return nn.EquivariantAttention(FEATURES, "0e + 1o", FEATURES, 3, 2, logits, 2, (4,))


def gate(layout: str) -> nn.Gate:
    return nn.Gate("4x0e + 4x0o", [SILU, TANH], "8x0e", [SIGMOID], "4x1o + 4x2e", layout=layout)


#: Of products and convolutions: further arguments of `compile_form`.
OPERATIONS = {"product": {"graph": False}, "conv": {"graph": True}, "atomic-conv": {"graph": True, "atomic": True}}
EDGES = torch.tensor([[0, 1, 2, 0, 3, 2, 3], [1, 0, 1, 2, 1, 2, 1]])  # node 3 has no edge in
SILU, TANH, SIGMOID = torch.nn.functional.silu, torch.tanh, torch.sigmoid
FEATURES, GATED, FRAMED = "2x0e + 2x1o", "12x0e + 4x0o + 4x1o + 4x2e", "2x0e + 1x1e + 2x1o"
HEADS = {"edge_index": EDGES, "envelope": torch.linspace(0.1, 1, 7, dtype=torch.float64)}
BLOCK = {**rows(4, x=FEATURES), **rows(7, edge_attr="0e + 1o", edge_scalars=3), **HEADS}
PRODUCTS, LANES, CHANNELS = "forward_rows backward_rows double_backward_rows", "formula_lanes", "formula_rows"
SUMS = "forward_by_dst backward_by_src double_backward_by_src double_backward_by_dst"
ENDS = "formula_rows formula_by_src formula_by_dst"
#: Formulas with functions of scalars (lanes are channels, or rows of the batch where there are few), norms, formulas of
#: users, frames of edges, and products with constants, rotations or weights of heads; they compile in a second each.
QUICK = {
    "gate": Kind(lambda: gate("mul_ir"), rows(features=GATED), CHANNELS),
    "gate_of_few_channels": Kind(
        lambda: nn.Gate("3x0e", [TANH], "2x0e", [SILU], "2x1o"), rows(features="5x0e + 2x1o"), LANES
    ),
    "norm_activation": Kind(
        lambda: nn.NormActivation("4x0e + 4x1o", SIGMOID, bias=True), rows(features="4x0e + 4x1o"), CHANNELS
    ),
    "batch_norm": Kind(lambda: nn.BatchNorm("4x0e + 4x1o").eval(), rows(input="4x0e + 4x1o"), CHANNELS),
    "own_triple": Kind(triple, rows(x="5x0e + 5x1o", y="5x1o"), CHANNELS),
    "own_along_edges": Kind(
        lambda: along_edges(5), {**rows(4, x=5), **rows(7, r=15), "weight": (5,), "graph": EDGES}, ENDS
    ),
    "own_of_few_channels": Kind(
        lambda: along_edges(2), {**rows(4, x=2), **rows(7, r=6), "weight": (2,), "graph": EDGES}, LANES
    ),
    "edge_frames": Kind(lambda: nn.EdgeFrame(1), rows(vectors=3), LANES),
    "basis": Kind(lambda: nn.ChangeOfBasis("5x1o + 2x2e", "polar_z", layout_out="ir_mul"), rows(x=25), PRODUCTS),
    "packed_so3": Kind(lambda: nn.SO2Linear("2x1e", "2x1e", parity="so3"), rows(x="2x1e"), PRODUCTS),
    "weights_of_heads": Kind(
        lambda: AttentionAggregate(FEATURES, 2),
        {**rows(7, values=FEATURES, logits=2), **HEADS, "nodes": torch.zeros(4, dtype=torch.int64)},
        SUMS,
    ),
}
#: The same in another layout, and what has more kernels: convolutions, rotations, frames of higher degree.
KINDS = QUICK | {
    "squared_norms": Kind(lambda: nn.Norm(FRAMED), rows(features=FRAMED), PRODUCTS),
    "gate_in_ir_mul": Kind(lambda: gate("ir_mul"), rows(features=GATED), CHANNELS),
    "gate_of_other_functions": Kind(
        lambda: nn.Gate("4x0e", [torch.cos], "4x0e", [torch.square], "4x1o"), rows(features="8x0e + 4x1o"), CHANNELS
    ),
    "own_in_ir_mul": Kind(lambda: triple("ir_mul"), rows(x="5x0e + 5x1o", y="5x1o"), CHANNELS),
    "edges_of_degree_2": Kind(lambda: nn.EdgeFrame(2), rows(vectors=3), LANES),
    "matrices": Kind(lambda: nn.WignerD("1o + 2e", "quaternion"), rows(rotation=4), LANES),
    "turned_features": Kind(
        lambda: nn.RotateFeatures(FEATURES, "quaternion"), rows(x=FEATURES, rotation=4), f"{PRODUCTS} {LANES}"
    ),
    "sparse_turns": Kind(
        lambda: nn.RotateFeatures(FEATURES, "angles", "sparse"), rows(x=FEATURES, rotation=3), PRODUCTS
    ),
    "packed": Kind(lambda: nn.SO2Linear(FEATURES, FRAMED), rows(x=FEATURES, scales=6), PRODUCTS),
    "frame_convolution": Kind(
        lambda: nn.SO2Convolution(FEATURES, FRAMED),
        {**rows(4, x=FEATURES), **rows(7, frames=3, scales=6), "edge_index": EDGES},
        f"{SUMS} {LANES}",
    ),
    "dot_attention": Kind(lambda: attention("dot"), BLOCK, f"{PRODUCTS} {SUMS}"),
    "mlp_attention": Kind(lambda: attention("mlp"), BLOCK, f"{PRODUCTS} {SUMS}"),
}
