"""The definition of spherical harmonics: degree l from degree l - 1, by Clebsch-Gordan coefficients, in float64."""

from __future__ import annotations

import math

import torch
from e3nn.o3 import wigner_3j
from torch import Tensor


def spherical_harmonics(degree: int, vectors: Tensor) -> Tensor:
    """``[N, 3]`` to ``[N, 2 l + 1]``, of norm sqrt(2 l + 1) for unit vectors ('component' normalisation).

    The product of degree l - 1 with the vector has one part of degree l. Its norm is the same for all unit vectors, so
    the vector along y gives the factor, which is positive at m = 0.

    Source:
        Varshalovich, Moskalev and Khersonskii 1988, section 5.6.
    """
    harmonics, at_y = torch.ones_like(vectors[:, :1]), torch.ones(1, 1, dtype=vectors.dtype)
    y = vectors.new_tensor([[0.0, 1.0, 0.0]])
    for l in range(1, degree + 1):
        coupling = wigner_3j(l - 1, 1, l, dtype=vectors.dtype)
        harmonics = torch.einsum("ijk,ni,nj->nk", coupling, harmonics, vectors)
        at_y = torch.einsum("ijk,ni,nj->nk", coupling, at_y, y)
        factor = math.sqrt(2 * l + 1) / at_y[0, l]
        harmonics, at_y = harmonics * factor, at_y * factor
    return harmonics
