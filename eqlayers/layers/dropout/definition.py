"""The definitions of dropout: copies of irreps, or the rows of whole graphs, times 0 or 1 / (1 - p)."""

from __future__ import annotations

import torch
from e3nn.o3 import Irreps
from torch import Tensor


def dropout(x: Tensor, irreps: Irreps, p: float) -> Tensor:
    """``[N, irreps.dim]`` in 'mul_ir', each copy of each row times 0 or 1 / (1 - p), drawn group by group.

    Source:
        Srivastava et al. 2014, JMLR 15, 1929.
    """
    parts = []
    for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True):
        draws = x.new_empty(len(x), mul, 1).bernoulli_(1 - p)
        parts.append((x[:, s].reshape(len(x), mul, ir.dim) * draws / (1 - p)).flatten(1))
    return torch.cat(parts, 1)


def drop_path(x: Tensor, p: float, batch: Tensor, num_graphs: int) -> Tensor:
    """``[N, ...]``, the rows of each graph times 0 or 1 / (1 - p); ``batch`` ``[N]`` is the graph of each row.

    Source:
        Huang et al. 2016, arXiv:1603.09382.
    """
    draws = x.new_empty(num_graphs, 1).bernoulli_(1 - p) / (1 - p)
    return x * draws[batch]
