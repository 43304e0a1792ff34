"""The definitions of norms of copies and of normalisation by them, in float64, for features in 'mul_ir'."""

from __future__ import annotations

import torch
from e3nn.o3 import Irreps
from torch import Tensor


def copies(x: Tensor, irreps: Irreps) -> list[Tensor]:
    """``[N, irreps.dim]`` as one ``[N, mul, 2 l + 1]`` for each group."""
    return [x[:, s].reshape(len(x), mul, ir.dim) for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True) if mul]


def norm(x: Tensor, irreps: Irreps) -> Tensor:
    """The norm of each copy, ``[N, num_irreps]``."""
    return torch.cat([group_of.pow(2).sum(-1).sqrt() for group_of in copies(x, irreps)], 1)


def layer_norm(x: Tensor, irreps: Irreps, eps: float, centred: bool = True) -> Tensor:
    """Each group divided by the root of its mean square over copies and components; RMS norm if not `centred`.

    If `centred`, the mean of even scalars is subtracted first.

    Source:
        Liao and Smidt 2023, arXiv:2206.11990, section 4.1.
    """
    parts = []
    for group_of, (_, ir) in zip(copies(x, irreps), [group for group in irreps if group.mul], strict=True):
        rest = group_of - group_of.mean(1, keepdim=True) if centred and ir.is_scalar() else group_of
        parts.append((rest / (rest.pow(2).mean((1, 2), keepdim=True) + eps).sqrt()).flatten(1))
    return torch.cat(parts, 1)
