"""The definition of attention over the edges into each node, in float64."""

from __future__ import annotations

import torch
from e3nn.o3 import Irreps
from torch import Tensor


def edge_softmax(logits: Tensor, dst: Tensor, num_nodes: int, envelope: Tensor, sink: float | Tensor = 0.0) -> Tensor:
    """Weights ``[E, H]`` from logits s: f exp(s) over exp(sink) plus the sum of f exp(s) over edges of one receiver.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762; Xiao et al. 2024, arXiv:2309.17453, for the sink.
    """
    shares = envelope[:, None] * logits.exp()
    sums = logits.new_zeros(num_nodes, logits.shape[1]).index_add(0, dst, shares)
    return shares / (torch.as_tensor(sink, dtype=logits.dtype, device=logits.device).exp() + sums)[dst]


def aggregate(messages: Tensor, weights: Tensor, irreps: Irreps, dst: Tensor, num_nodes: int) -> Tensor:
    """``[E, irreps.dim]`` in 'mul_ir' to ``[N, irreps.dim]``: each receiver gets the weighted sum of its messages.

    Head h weights the h-th share of the copies of each group.
    """
    heads, count = weights.shape[1], len(dst)
    parts = [
        (messages[:, s].reshape(count, heads, mul // heads * ir.dim) * weights[:, :, None]).flatten(1)
        for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True)
    ]
    return messages.new_zeros(num_nodes, irreps.dim).index_add(0, dst, torch.cat(parts, 1))
