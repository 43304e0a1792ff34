"""Attention over edges."""

from functools import partial

import torch
from torch import Tensor

import eqlayers.nn as nn

from .cases import Case, edges, features, row

VALUES = "4x0e + 2x1o + 2x2e"
FEATURES, HARMONICS, OUT = "4x0e + 2x1o + 2x1e", "1x0e + 1x1o + 1x2e", "3x0e + 1x0o + 2x1o"


class AttentionAggregate(nn.AttentionAggregate):
    """Called with tensors, whose number of nodes is that of the rows of one."""

    def forward(self, values: Tensor, logits: Tensor, envelope: Tensor, edge_index: Tensor, nodes: Tensor) -> Tensor:
        return super().forward(values, logits, edge_index, nodes.shape[0], envelope)


def drawn(rows: int, generator: torch.Generator, **irreps: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Edges, with numbers of such irreps on each and an envelope."""
    index = edges(rows, generator)
    made = features(**irreps)(index.shape[1], generator)
    return index, {**made, "envelope": torch.rand(index.shape[1], generator=generator, dtype=torch.float64) + 0.1}


def messages(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    index, made = drawn(rows, generator, values=VALUES, logits="2x0e")
    return {**made, "edge_index": index, "nodes": torch.zeros(rows, dtype=torch.int64)}


def molecule(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    index, made = drawn(rows, generator, edge_attr=HARMONICS, edge_scalars="3x0e")
    return {**features(x=FEATURES)(rows, generator), **made, "edge_index": index}


attention = partial(row, family="Attention", out_rows="node")
OF_EDGES = dict.fromkeys(("edge_attr", "edge_scalars", "envelope"), "edge")


def block(logits: str) -> Case:
    return attention(
        partial(nn.EquivariantAttention, FEATURES, HARMONICS, OUT, 3, 2, logits, 3, (4,)),
        OUT,
        special=logits,
        inputs=molecule,
        rows={"x": "node", "edge_index": "index"} | OF_EDGES,
        slow=("derivatives", "torch.compile", *(("torch.export",) if logits == "mlp" else ())),
        x=FEATURES,
        edge_attr=HARMONICS,
    )


CASES = [
    attention(
        partial(AttentionAggregate, VALUES, 2),
        VALUES,
        inputs=messages,
        rows={"edge_index": "index", "nodes": "node"} | dict.fromkeys(("values", "logits", "envelope"), "edge"),
        values=VALUES,
    ),
    block("dot"),
    block("mlp"),
]
