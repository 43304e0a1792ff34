"""The definition of a linear map of features: a matrix over the channels for each pair of equal irreps, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from e3nn.o3 import Irreps
from torch import Tensor


def linear(x: Tensor, irreps_in: Irreps, irreps_out: Irreps, weights: Mapping[tuple[int, int], Tensor]) -> Tensor:
    """``[N, irreps_in.dim]`` to ``[N, irreps_out.dim]`` in 'mul_ir'.

    Args:
        weights: ``[mul_in, mul_out]`` by group before and group after.

    A sum over n channels is divided by sqrt(n), n being all channels that reach a group, which preserves variances.
    """
    rows = [x[:, s].reshape(len(x), mul, ir.dim) for s, (mul, ir) in zip(irreps_in.slices(), irreps_in, strict=True)]
    out = []
    for b, (mul, ir) in enumerate(irreps_out):
        reaching = [a for a, group in enumerate(irreps_in) if group.ir == ir and (a, b) in weights]
        channels = sum(irreps_in[a].mul for a in reaching)
        total = x.new_zeros(len(x), mul, ir.dim)
        for a in reaching:
            total += torch.einsum("nui,uw->nwi", rows[a], weights[a, b]) / math.sqrt(channels)
        out.append(total.flatten(1))
    return torch.cat(out, 1)
