"""Attention over edges."""

from __future__ import annotations

import torch
from torch import Tensor

import eqlayers.nn as nn

from .cases import Case, edges

VALUES = "4x0e + 2x1o + 2x2e"
FEATURES, HARMONICS, OUT = "4x0e + 2x1o + 2x1e", "1x0e + 1x1o + 1x2e", "3x0e + 1x0o + 2x1o"


class AttentionAggregate(nn.AttentionAggregate):
    """Called with tensors, whose number of nodes is that of the rows of one."""

    def forward(self, values: Tensor, logits: Tensor, envelope: Tensor, edge_index: Tensor, nodes: Tensor) -> Tensor:
        return super().forward(values, logits, edge_index, nodes.shape[0], envelope)


def messages(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    index = edges(rows, generator)
    count = index.shape[1]
    made = {"values": torch.randn(count, 20, generator=generator, dtype=torch.float64)}
    made["logits"] = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    made["envelope"] = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    return {**made, "edge_index": index, "nodes": torch.zeros(rows, dtype=torch.int64)}


def molecule(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    index = edges(rows, generator)
    count = index.shape[1]
    made = {"x": torch.randn(rows, 16, generator=generator, dtype=torch.float64)}
    made["edge_attr"] = torch.randn(count, 9, generator=generator, dtype=torch.float64)
    made["edge_scalars"] = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    made["envelope"] = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    return {**made, "edge_index": index}


def block(logits: str) -> Case:
    return Case(
        f"EquivariantAttention, {logits}",
        lambda layout: nn.EquivariantAttention(FEATURES, HARMONICS, OUT, 3, 2, logits, 3, (4,), layout=layout),
        molecule,
        {"x": FEATURES, "edge_attr": HARMONICS},
        (OUT,),
        rows={"x": "node", "edge_index": "index"} | dict.fromkeys(("edge_attr", "edge_scalars", "envelope"), "edge"),
        out_rows="node",
        family="Attention",
        slow=("derivatives", "torch.compile", *(("torch.export",) if logits == "mlp" else ())),
    )


CASES = [
    Case(
        "AttentionAggregate",
        lambda layout: AttentionAggregate(VALUES, 2, layout=layout),
        messages,
        {"values": VALUES},
        (VALUES,),
        rows={"edge_index": "index", "nodes": "node"} | dict.fromkeys(("values", "logits", "envelope"), "edge"),
        out_rows="node",
        family="Attention",
    ),
    block("dot"),
    block("mlp"),
]
