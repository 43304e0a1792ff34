"""Attention over edges, and maps in the frames of edges, beside the plainest torch."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...algebra import as_irreps
from ...graph import Graph
from ...lowering.path_lists import paths
from .pair import Pair, graph_of, nodes_of, plain

#: Of an attention; invariants of an edge; harmonics.
HEADS, SCALARS, EDGE = 4, 8, "0e+1o+2e"


def heads_times(values: Tensor, shares: Tensor, widths: list[int]) -> Tensor:
    """Each group of columns in as many parts as there are heads, times the share of the head."""
    groups = [v.unflatten(1, (shares.shape[1], -1)) * shares[..., None] for v in values.split(widths, 1)]
    return torch.cat([group.flatten(1) for group in groups], 1)


def softmax(logits: Tensor, sink: Tensor, dst: Tensor, nodes: int) -> Tensor:
    """Over the edges into each node and a sink, ``[E, heads]``."""
    sinks = sink.expand(nodes, -1)
    top = sinks.detach().scatter_reduce(0, dst[:, None].expand_as(logits), logits.detach(), "amax")
    parts = (logits - top[dst]).exp()
    return parts / (sinks - top).exp().index_add(0, dst, parts)[dst]


class PlainAggregate(torch.nn.Module):
    """Softmax over the edges into each node and the weighted sum of messages, in the plainest torch."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.widths = [group.dim for group in as_irreps(irreps)]
        self.sink = torch.nn.Parameter(torch.zeros(HEADS))

    def forward(self, values: Tensor, logits: Tensor, graph: Graph) -> Tensor:
        """``[E, dim]`` to ``[N, dim]``."""
        dst = graph.edge_index[1]
        messages = heads_times(values, softmax(logits, self.sink, dst, graph.num_dst), self.widths)
        return messages.new_zeros(graph.num_dst, messages.shape[1]).index_add(0, dst, messages)


def _own_attention(irreps: str) -> nn.EquivariantAttention:
    return nn.EquivariantAttention(irreps, EDGE, irreps, SCALARS, HEADS, "dot", layout="mul_ir")


class TheirAttention(torch.nn.Module):
    """An attention with logits from scalar products, of e3nn's layers and the plainest torch."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        own = as_irreps(irreps)
        middle, instructions = paths(own, as_irreps(EDGE), own)
        self.up, self.query, self.key = (o3.Linear(own, own) for _ in range(3))
        self.product = o3.TensorProduct(own, EDGE, middle, instructions, internal_weights=False, shared_weights=False)
        self.radial = _own_attention(irreps).radial  # products of torch and an activation
        self.down = o3.Linear(middle, own)
        self.compare = torch.nn.Parameter(torch.randn(SCALARS, own.num_irreps))
        self.sink = torch.nn.Parameter(torch.zeros(HEADS))
        self.groups, self.factor = own, (own.dim / HEADS) ** -0.5
        self.widths = [own[path.i_in1].mul for path in self.product.instructions]

    def forward(self, x: Tensor, edge_attr: Tensor, scalars: Tensor, graph: Graph) -> Tensor:
        """``[N, dim]`` to the same."""
        src, dst = graph.edge_index
        logits = self._logits(self.query(x)[dst], self.key(x)[src], scalars @ (self.compare * SCALARS**-0.5))
        shares = softmax(logits, self.sink, dst, graph.num_dst)
        weights = heads_times(self.radial(scalars), shares, self.widths)
        messages = self.product(self.up(x)[src], edge_attr, weights)
        found: Tensor = self.down(messages.new_zeros(len(x), messages.shape[1]).index_add(0, dst, messages))
        return found

    def _logits(self, query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
        products, out, first = query * key, torch.zeros_like(weights[:, :HEADS]), 0
        for part, (mul, ir) in zip(self.groups.slices(), self.groups, strict=True):
            dots = products[:, part].unflatten(1, (mul, ir.dim)).sum(2) * weights[:, first : first + mul]
            out, first = out + dots.unflatten(1, (HEADS, -1)).sum(2), first + mul
        return self.factor * out


def _logits_and_graph(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return torch.randn(rows, HEADS, dtype=torch.float64), graph_of(rows, device)


def _edges_and_graph(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    attributes = torch.randn(rows, as_irreps(EDGE).dim, dtype=torch.float64)
    return attributes, torch.randn(rows, SCALARS, dtype=torch.float64), graph_of(rows, device)


class PlainSO2(torch.nn.Module):
    """A map of features in the frame of an edge: columns of each order m, matrix products of torch, columns back."""

    places: Tensor
    signs: Tensor
    back: Tensor

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.irreps = as_irreps(irreps)
        columns: list[tuple[int, float]] = []
        self.matrices: list[tuple[bool, int]] = []  # whether for m and -m, and the width
        for m in range(self.irreps.lmax + 1):
            for signs in ((1,), (-1,)) if m == 0 else ((1, -1),):
                plus, minus = self._columns(m, signs)
                if plus:
                    columns += plus + minus
                    self.matrices.append((m > 0, len(plus)))
        self.register_buffer("places", torch.tensor([place for place, _ in columns]))
        self.register_buffer("signs", torch.tensor([sign for _, sign in columns], dtype=torch.float64))
        self.register_buffer("back", self.places.argsort())
        self.weight = torch.nn.Parameter(torch.randn(sum(width**2 for _, width in self.matrices)))

    def _columns(self, m: int, wanted: tuple[int, ...]) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Columns of m and of -m with their signs; J times the columns of irreps of the sign -1."""
        plus: list[tuple[int, float]] = []
        minus: list[tuple[int, float]] = []
        for part, (mul, ir) in zip(self.irreps.slices(), self.irreps, strict=True):
            sign = ir.p * (-1) ** ir.l
            if ir.l < m or sign not in wanted:
                continue
            for u in range(mul):
                middle = part.start + u * ir.dim + ir.l
                if m == 0:
                    plus.append((middle, 1.0))
                elif sign > 0:
                    plus.append((middle + m, 1.0))
                    minus.append((middle - m, 1.0))
                else:
                    plus.append((middle - m, -1.0))
                    minus.append((middle + m, 1.0))
        return plus, minus

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` to the same."""
        packed = x[..., self.places] * self.signs
        columns = packed.split([2 * width if both else width for both, width in self.matrices], -1)
        weights = self.weight.split([width**2 for _, width in self.matrices])
        out = []
        for own, weight, (both, width) in zip(columns, weights, self.matrices, strict=True):
            matrix = weight.view(width, width) * width**-0.5
            out.append((own.unflatten(-1, (2, width)) @ matrix).flatten(-2) if both else own @ matrix)
        return (torch.cat(out, -1) * self.signs)[..., self.back]


class PlainSO2Convolution(PlainSO2):
    """Gathered features times the blocks of the frames, a map, its results times the blocks again, and the sum."""

    def forward(self, x: Tensor, frames: Tensor, graph: Graph) -> Tensor:  # type: ignore[override]
        """``[N, dim]``, ``[E, blocks]`` to ``[N, dim]``."""
        src, dst = graph.edge_index
        blocks = [
            block.unflatten(1, (2 * l + 1, 2 * l + 1))
            for l, block in enumerate(frames.split([(2 * l + 1) ** 2 for l in range(self.irreps.lmax + 1)], 1))
        ]
        messages = self._turned(super().forward(self._turned(x[src], [b.mT for b in blocks])), blocks)
        return messages.new_zeros(graph.num_dst, messages.shape[1]).index_add(0, dst, messages)

    def _turned(self, x: Tensor, blocks: list[Tensor]) -> Tensor:
        groups = x.split([group.dim for group in self.irreps], 1)
        turned = [
            group.unflatten(1, (-1, ir.dim)) @ blocks[ir.l] for group, (_, ir) in zip(groups, self.irreps, strict=True)
        ]
        return torch.cat([group.flatten(1) for group in turned], 1)


def _frames(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    frames = nn.EdgeFrame(as_irreps(irreps).lmax)(torch.randn(rows, 3, dtype=torch.float64))
    return frames, graph_of(rows, device)


EDGES: dict[str, Pair] = {
    "AttentionAggregate": plain(
        lambda i: nn.AttentionAggregate(i, HEADS), PlainAggregate, further=_logits_and_graph, of_edges=True
    ),
    "EquivariantAttention": Pair(_own_attention, TheirAttention, nodes_of, _edges_and_graph, of_edges=True),
    "SO2Linear": plain(lambda i: nn.SO2Linear(i, i), PlainSO2, of_edges=True),
    "SO2Convolution": plain(lambda i: nn.SO2Convolution(i, i), PlainSO2Convolution, nodes_of, _frames, of_edges=True),
}
