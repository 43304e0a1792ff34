"""The definition of a symmetric contraction, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def contraction(x: Tensor, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """``[N, C, D]`` to ``[N, C, 2 l + 1]``: a polynomial in the features of each channel, of degree `len(tensors)`.

    Args:
        x: Each channel has one copy of each of several irreps, D numbers in all.
        tensors: For the power p = 1, 2, ...: ``[2 l + 1, D, ..., D, paths]`` with D for p times, a basis of all
            equivariant maps.
        weights: For each power ``[N, paths, C]``, chosen by the species of the atom.

    Source:
        Batatia et al. 2022, arXiv:2206.07697, eq. 10 and 11.
    """
    total: Tensor | float = 0.0
    for power, (basis, weight) in enumerate(zip(tensors, weights, strict=True), start=1):
        letters = "abcdefgh"[:power]
        factors = ",".join(f"nz{letter}" for letter in letters)
        total = total + torch.einsum(f"i{letters}k,{factors},nkz->nzi", basis, *[x] * power, weight)
    assert isinstance(total, Tensor)
    return total
