"""Rotations of features, frames of edges and Cartesian tensors beside e3nn's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn import o3
from e3nn.io import CartesianTensor as TheirTensor
from torch import Tensor

from ... import nn
from ...algebra import as_irreps
from ..measure import default_dtype
from .pair import Pair, vectors

#: The symmetry of the tensor of elasticity, 2x0e + 2x2e + 1x4e.
ELASTICITY = "ijkl=jikl=klij"


def _angles(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return (vectors(irreps, rows),)


def _upper(irreps: str, rows: int) -> Tensor:
    """Directions between the plane and the pole y, where our frame is the shortest rotation to that pole."""
    drawn = vectors(irreps, rows)
    drawn[:, 1] = drawn[:, 1].abs() + 0.1
    drawn[:, 0] += drawn[:, 0].sign()  # e3nn's angles have no derivatives at the pole
    return drawn


def _their_angles(irreps: str) -> Callable[[Tensor], Tensor]:
    def run(angles: Tensor) -> Tensor:
        with default_dtype(angles.dtype):  # e3nn makes its generators in it, at every call
            return as_irreps(irreps).D_from_angles(*angles.unbind(-1))

    return run


def _their_rotation(irreps: str) -> Callable[[Tensor, Tensor], Tensor]:
    """e3nn's matrices of each irrep, and its copies times them."""
    whole = as_irreps(irreps)

    def run(x: Tensor, angles: Tensor) -> Tensor:
        with default_dtype(x.dtype):
            matrices = [ir.D_from_angles(*angles.unbind(-1)) for _, ir in whole]
        groups = x.split([group.dim for group in whole], 1)
        blocks = [group.unflatten(1, (-1, ir.dim)) for group, (_, ir) in zip(groups, whole, strict=True)]
        return torch.cat([(b @ d.mT).flatten(1) for b, d in zip(blocks, matrices, strict=True)], 1)

    return run


def _their_frame(irreps: str) -> Callable[[Tensor], Tensor]:
    """e3nn's matrices of the shortest rotation to the pole y, by its angles."""
    irs = [ir for _, ir in as_irreps(irreps)]

    def run(given: Tensor) -> Tensor:
        alpha, beta = o3.xyz_to_angles(given)
        with default_dtype(given.dtype):
            return torch.cat([ir.D_from_angles(alpha, -beta, -alpha).flatten(1) for ir in irs], 1)

    return run


def _their_tensor(formula: str) -> Callable[[Tensor], Tensor]:
    tensor = TheirTensor(formula)
    products = tensor.reduced_tensor_products()
    return lambda x: tensor.to_cartesian(x, products)


def _elasticities(irreps: str, rows: int) -> Tensor:
    return torch.randn(rows, 21, dtype=torch.float64)


ANGULAR: dict[str, Pair] = {
    "WignerD": Pair(lambda i: nn.WignerD(i, "angles"), _their_angles, vectors, roundings=1024),
    "RotateFeatures": Pair(lambda i: nn.RotateFeatures(i, "angles"), _their_rotation, further=_angles, roundings=1024),
    "EdgeFrame": Pair(lambda i: nn.EdgeFrame(as_irreps(i).lmax), _their_frame, _upper, of_edges=True, roundings=1024),
    "CartesianTensor": Pair(
        lambda i: nn.CartesianTensor(ELASTICITY).to_cartesian, lambda i: _their_tensor(ELASTICITY), _elasticities
    ),
}
