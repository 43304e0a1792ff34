"""Norms, and layers that normalise, beside e3nn's or the plainest torch."""

from __future__ import annotations

import torch
from e3nn import nn as theirs
from e3nn import o3
from torch import Tensor

from ... import nn
from ...algebra import as_irreps
from .pair import Pair, plain


class PlainNorm(torch.nn.Module):
    """Each irreps group over the root of its mean square, in the plainest torch; even scalars by torch's layer norm.

    Args:
        irreps: Of the features.
        centred: Whether even scalars have their mean taken off and a bias, or are like the others.
    """

    def __init__(self, irreps: str, centred: bool = False) -> None:
        super().__init__()
        self.irreps, self.centred = as_irreps(irreps), centred
        self.weight = torch.nn.Parameter(torch.ones(self.irreps.num_irreps))
        if centred:
            self.bias = torch.nn.Parameter(torch.zeros(self.irreps.count("0e")))

    def forward(self, x: Tensor) -> Tensor:
        """``[N, dim]``."""
        out, first, scalars = [], 0, 0
        for part, (mul, ir) in zip(self.irreps.slices(), self.irreps, strict=True):
            weight = self.weight[first : first + mul]
            if self.centred and ir.is_scalar():
                bias = self.bias[scalars : scalars + mul]
                out.append(torch.nn.functional.layer_norm(x[:, part], (mul,), weight, bias, 1e-5))
                scalars += mul
            else:
                block = x[:, part].reshape(-1, mul, ir.dim)
                scale = (block.square().mean((1, 2), keepdim=True) + 1e-5).rsqrt()
                out.append((block * scale * weight[:, None]).flatten(1))
            first += mul
        return torch.cat(out, 1)


class PlainBatchNorm(torch.nn.Module):
    """Each copy over the root of its mean square in the batch, with running mean squares, in the plainest torch."""

    running_squared_norm: Tensor

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.irreps = as_irreps(irreps)
        self.weight = torch.nn.Parameter(torch.ones(self.irreps.num_irreps))
        self.register_buffer("running_squared_norm", torch.ones(self.irreps.num_irreps))

    def forward(self, x: Tensor) -> Tensor:
        """``[N, dim]``."""
        blocks = [
            x[:, part].unflatten(1, (mul, -1)) for part, (mul, _) in zip(self.irreps.slices(), self.irreps, strict=True)
        ]
        means = [block.square().mean((0, 2)) for block in blocks]
        with torch.no_grad():
            self.running_squared_norm.lerp_(torch.cat(means), 0.1)
        weights = self.weight.split([mul for mul, _ in self.irreps])
        scaled = [
            block * ((mean + 1e-5).rsqrt() * weight)[:, None]
            for block, mean, weight in zip(blocks, means, weights, strict=True)
        ]
        return torch.cat([block.flatten(1) for block in scaled], 1)


class PlainMeans(torch.nn.Module):
    """Means of the squares of each group, in the plainest torch."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.parts = as_irreps(irreps).slices()

    def forward(self, x: Tensor) -> Tensor:
        """``[N, dim]`` to ``[N, groups]``."""
        return torch.stack([x[:, part].square().mean(1) for part in self.parts], 1)


NORMS: dict[str, Pair] = {
    "Norm": Pair(nn.Norm, o3.Norm),
    "BatchNorm": Pair(nn.BatchNorm, theirs.BatchNorm),
    "BatchRMSNorm": plain(nn.BatchRMSNorm, PlainBatchNorm),
    "LayerNorm": plain(nn.LayerNorm, lambda i: PlainNorm(i, centred=True)),
    "RMSNorm": plain(nn.RMSNorm, PlainNorm),
    "MeanSquaredNorm": plain(nn.MeanSquaredNorm, PlainMeans),
}
