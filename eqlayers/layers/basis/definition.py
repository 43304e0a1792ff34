"""The definitions of a change of basis, and of the irreps of tensors of rank 2, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from e3nn.o3 import Irrep, Irreps, wigner_3j
from torch import Tensor


def change_of_basis(x: Tensor, irreps: Irreps, matrices: Mapping[Irrep, Tensor]) -> Tensor:
    """``[N, irreps.dim]`` in 'mul_ir', each copy times the matrix ``[2 l + 1, 2 l + 1]`` of its irrep."""
    parts = [
        (x[:, s].reshape(len(x), mul, ir.dim) @ matrices[ir].T).flatten(1)
        for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True)
    ]
    return torch.cat(parts, 1)


def irreps_of_rank_2(tensor: Tensor) -> Tensor:
    """``[N, 3, 3]`` to ``[N, 9]``: the trace (0e), the antisymmetric part (1e) and the symmetric traceless part (2e).

    The norm of the irreps is the norm of the tensor.

    Source:
        ``e3nn.io.CartesianTensor``.
    """
    parts = [
        (2 * l + 1) ** 0.5 * torch.einsum("kij,nij->nk", wigner_3j(l, 1, 1, dtype=tensor.dtype), tensor)
        for l in range(3)
    ]
    return torch.cat(parts, 1)
