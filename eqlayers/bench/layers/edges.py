"""Benchmarked layers with their peers: rotations and Cartesian tensors (e3nn), attention and SO(2) (plain torch)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn import o3
from e3nn.io import CartesianTensor as TheirTensor
from torch import Tensor

from ... import nn
from ...core.dtypes import default_dtype
from ...core.graph import Graph
from ...irreps.algebra import as_irreps
from ...irreps.instructions import paths
from ...layers.definitions import aggregate, edge_softmax, sign
from .pair import Pair, blocks, features, graph_of, joined, nodes_of, plain, vectors

#: Index symmetry of the elasticity tensor, 2x0e + 2x2e + 1x4e.
ELASTICITY = "ijkl=jikl=klij"
#: Attention heads, invariants of an edge, and harmonics of an edge.
HEADS, SCALARS, EDGE = 4, 8, "0e+1o+2e"


def _upper(irreps: str, rows: int) -> Tensor:
    """Random directions with y > 0, for which EdgeFrame is the shortest rotation to y, as the peer's."""
    drawn = vectors(irreps, rows)
    drawn[:, 1] = drawn[:, 1].abs() + 0.1
    drawn[:, 0] += drawn[:, 0].sign()  # e3nn's angles have no derivatives at the pole
    return drawn


def _matrices(irreps: Any, *angles: Tensor) -> list[Tensor]:
    """e3nn's Wigner matrices of each irrep by Euler angles."""
    with default_dtype(angles[0].dtype):  # e3nn computes generators in the default dtype
        return [ir.D_from_angles(*angles) for _, ir in as_irreps(irreps)]


def _their_angles(irreps: str) -> Callable[[Tensor], Tensor]:
    def run(angles: Tensor) -> Tensor:
        with default_dtype(angles.dtype):
            return as_irreps(irreps).D_from_angles(*angles.unbind(-1))

    return run


def _their_rotation(irreps: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Rotation of features by e3nn's Wigner matrices."""

    def run(x: Tensor, angles: Tensor) -> Tensor:
        each = zip(blocks(x, irreps), _matrices(irreps, *angles.unbind(-1)), strict=True)
        return joined(block @ matrix.mT for block, matrix in each)

    return run


def _their_frame(irreps: str) -> Callable[[Tensor], Tensor]:
    """e3nn's Wigner matrices of the shortest rotation of a vector to y."""

    def run(vectors: Tensor) -> Tensor:
        alpha, beta = o3.xyz_to_angles(vectors)
        return joined(_matrices(irreps, alpha, -beta, -alpha))

    return run


def _their_tensor(irreps: str) -> Callable[[Tensor], Tensor]:
    tensor = TheirTensor(ELASTICITY)
    products = tensor.reduced_tensor_products()
    return lambda x: tensor.to_cartesian(x, products)


ANGULAR: dict[str, Pair] = {
    "WignerD": Pair(lambda i: nn.WignerD(i, "angles"), _their_angles, vectors, roundings=1024),
    "RotateFeatures": Pair(
        lambda i: nn.RotateFeatures(i, "angles"),
        _their_rotation,
        further=lambda i, rows, device: (vectors(i, rows),),
        roundings=1024,
    ),
    "EdgeFrame": Pair(lambda i: nn.EdgeFrame(as_irreps(i).lmax), _their_frame, _upper, of_edges=True, roundings=1024),
    "CartesianTensor": Pair(
        lambda i: nn.CartesianTensor(ELASTICITY).to_cartesian, _their_tensor, lambda i, rows: features("21x0e", rows)
    ),
}


# -- attention and SO(2) maps ------------------------------------------------------------------------------------------


def softmax(logits: Tensor, sink: Tensor, dst: Tensor, nodes: int) -> Tensor:
    """The softmax over the edges into each node and a sink, ``[E, heads]``."""
    return edge_softmax(logits, dst, nodes, logits.new_ones(len(dst)), sink)


class PlainAggregate(torch.nn.Module):
    """Reference of AttentionAggregate: softmax over incoming edges, and weighted sum of messages."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.irreps = as_irreps(irreps)
        self.sink = torch.nn.Parameter(torch.zeros(HEADS))

    def forward(self, values: Tensor, logits: Tensor, graph: Graph) -> Tensor:
        """Weighted sums over edges: values ``[E, dim]`` to ``[N, dim]``."""
        dst, nodes = graph.edge_index[1], graph.num_dst
        return aggregate(values, softmax(logits, self.sink, dst, nodes), self.irreps, dst, nodes)


def _our_attention(irreps: str) -> nn.EquivariantAttention:
    return nn.EquivariantAttention(irreps, EDGE, irreps, SCALARS, HEADS, "dot", layout="mul_ir")


class TheirAttention(torch.nn.Module):
    """Dot-product attention built from e3nn's layers and plain torch."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        whole = as_irreps(irreps)
        middle, instructions = paths(whole, as_irreps(EDGE), whole)
        self.up, self.query, self.key = (o3.Linear(whole, whole) for _ in range(3))
        self.product = o3.TensorProduct(whole, EDGE, middle, instructions, internal_weights=False, shared_weights=False)
        self.radial = _our_attention(irreps).radial  # a plain torch network
        self.down = o3.Linear(middle, whole)
        self.compare = torch.nn.Parameter(torch.randn(SCALARS, whole.num_irreps))
        self.sink = torch.nn.Parameter(torch.zeros(HEADS))
        self.groups, self.factor = whole, (whole.dim / HEADS) ** -0.5
        self.widths = [whole[path.i_in1].mul for path in self.product.instructions]

    def forward(self, x: Tensor, edge_attr: Tensor, scalars: Tensor, graph: Graph) -> Tensor:
        """Features ``[N, dim]`` to features of the same shape."""
        src, dst = graph.edge_index
        logits = self._logits(self.query(x)[dst], self.key(x)[src], scalars @ (self.compare * SCALARS**-0.5))
        shares = softmax(logits, self.sink, dst, graph.num_dst)
        groups = self.radial(scalars).split(self.widths, 1)  # each is split among heads
        weights = joined(group.unflatten(1, (HEADS, -1)) * shares[..., None] for group in groups)
        messages = self.product(self.up(x)[src], edge_attr, weights)
        mapped: Tensor = self.down(messages.new_zeros(len(x), messages.shape[1]).index_add(0, dst, messages))
        return mapped

    def _logits(self, query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
        products, out, first = query * key, torch.zeros_like(weights[:, :HEADS]), 0
        for part, (mul, ir) in zip(self.groups.slices(), self.groups, strict=True):
            dots = products[:, part].unflatten(1, (mul, ir.dim)).sum(2) * weights[:, first : first + mul]
            out, first = out + dots.unflatten(1, (HEADS, -1)).sum(2), first + mul
        return self.factor * out


def _edges_and_graph(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    attributes = torch.randn(rows, as_irreps(EDGE).dim, dtype=torch.float64)
    return attributes, torch.randn(rows, SCALARS, dtype=torch.float64), graph_of(rows, device)


class PlainSO2(torch.nn.Module):
    """SO(2) linear map in plain torch: gather columns of each order m, multiply by matrices, scatter back."""

    index: Tensor
    signs: Tensor
    back: Tensor

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.irreps = as_irreps(irreps)
        self.matrices: list[tuple[bool, int]] = []  # (whether it acts on m and -m, width)
        columns = []  # index and sign of each column; irreps with sign -1 are multiplied by J
        for m, signs in [(0, (1,)), (0, (-1,)), *((m, (1, -1)) for m in range(1, self.irreps.lmax + 1))]:
            parts = zip(self.irreps.slices(), self.irreps, strict=True)
            groups = [(part.start + g.ir.l, g) for part, g in parts if g.ir.l >= m and sign(g.ir) in signs]
            for side in (1, -1) if m else (1,):
                for middle, (mul, ir) in groups:
                    swapped = m > 0 and sign(ir) < 0
                    column, factor = middle + m * (-side if swapped else side), -1 if swapped and side == 1 else 1
                    columns += [(column + u * ir.dim, factor) for u in range(mul)]
            if groups:
                self.matrices.append((m > 0, sum(group.mul for _, group in groups)))
        self.register_buffer("index", torch.tensor([column for column, _ in columns]))
        self.register_buffer("signs", torch.tensor([factor for _, factor in columns], dtype=torch.float64))
        self.register_buffer("back", self.index.argsort())
        self.weight = torch.nn.Parameter(torch.randn(sum(width**2 for _, width in self.matrices)))

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[..., dim]`` to features of the same shape."""
        packed = x[..., self.index] * self.signs
        columns = packed.split([2 * width if both else width for both, width in self.matrices], -1)
        weights = self.weight.split([width**2 for _, width in self.matrices])
        out = []
        for part, weight, (both, width) in zip(columns, weights, self.matrices, strict=True):
            matrix = weight.view(width, width) * width**-0.5
            out.append((part.unflatten(-1, (2, width)) @ matrix).flatten(-2) if both else part @ matrix)
        return (torch.cat(out, -1) * self.signs)[..., self.back]


class PlainSO2Convolution(PlainSO2):
    """SO(2) convolution in plain torch: rotate gathered features to edge frames, map, rotate back, and sum."""

    def forward(self, x: Tensor, frames: Tensor, graph: Graph) -> Tensor:  # type: ignore[override]
        """Features ``[N, dim]`` and frames ``[E, blocks]`` to features ``[N, dim]``."""
        src, dst = graph.edge_index
        widths = [2 * l + 1 for l in range(self.irreps.lmax + 1)]
        parts = zip(frames.split([n**2 for n in widths], 1), widths, strict=True)
        rotations = [part.unflatten(1, (n, n)) for part, n in parts]
        messages = self._rotated(super().forward(self._rotated(x[src], [r.mT for r in rotations])), rotations)
        return messages.new_zeros(graph.num_dst, messages.shape[1]).index_add(0, dst, messages)

    def _rotated(self, x: Tensor, frames: list[Tensor]) -> Tensor:
        each = zip(blocks(x, self.irreps), self.irreps, strict=True)
        return joined(group @ frames[ir.l] for group, (_, ir) in each)


def _frames(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    frames = nn.EdgeFrame(as_irreps(irreps).lmax)(torch.randn(rows, 3, dtype=torch.float64))
    return frames, graph_of(rows, device)


EDGES: dict[str, Pair] = {
    "AttentionAggregate": plain(
        lambda i: nn.AttentionAggregate(i, HEADS),
        PlainAggregate,
        further=lambda i, rows, device: (torch.randn(rows, HEADS, dtype=torch.float64), graph_of(rows, device)),
        of_edges=True,
    ),
    "EquivariantAttention": Pair(_our_attention, TheirAttention, nodes_of, _edges_and_graph, of_edges=True),
    "SO2Linear": plain(lambda i: nn.SO2Linear(i, i), PlainSO2, of_edges=True),
    "SO2Convolution": plain(lambda i: nn.SO2Convolution(i, i), PlainSO2Convolution, nodes_of, _frames, of_edges=True),
}
