"""The definition of rotated features: the matrix of a rotation on each irrep, in float64."""

from __future__ import annotations

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from ..harmonics.definition import spherical_harmonics


def matrix_of(degree: int, rotation: Tensor) -> Tensor:
    """``[3, 3]`` to ``[2 l + 1, 2 l + 1]``: the matrix D with Y(R v) = D Y(v) for all vectors v.

    Harmonics of random vectors determine D by least squares.
    """
    vectors = torch.randn(8 * degree + 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before, after = spherical_harmonics(degree, vectors), spherical_harmonics(degree, vectors @ rotation.T)
    return torch.linalg.lstsq(before, after).solution.T


def rotate(x: Tensor, irreps: Irreps, rotation: Tensor) -> Tensor:
    """``[N, irreps.dim]`` in 'mul_ir', each copy rotated by the matrix of its degree; parities do not matter."""
    parts = [
        (x[:, s].reshape(len(x), mul, ir.dim) @ matrix_of(ir.l, rotation).T).flatten(1)
        for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True)
    ]
    return torch.cat(parts, 1)
