"""Benchmarked layers with their peers (e3nn or plain torch): linear maps, products and scales of features."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...irreps.algebra import as_irreps
from ...irreps.instructions import paths
from .pair import Pair, features, plain, second_features, species_of, twin

RANK, SPECIES = 8, 10
#: Irreps of the second operand, harmonics of edges.
EDGE = "0e+1o+2e"


def _their_low_rank(irreps: str) -> torch.nn.Module:
    """Low-rank linear map as two e3nn Linear maps."""
    middle = o3.Irreps([(RANK, ir) for _, ir in as_irreps(irreps)])
    return torch.nn.Sequential(OrderedDict(down=o3.Linear(irreps, middle), up=o3.Linear(middle, irreps)))


class TheirSpecies(torch.nn.Module):
    """Linear map by species as in MACE: e3nn's tensor product with one-hot species.

    Weights are stored as in SpeciesLinear, ``[species, weights of a map]``, and transposed in each call.
    """

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.tp = o3.FullyConnectedTensorProduct(irreps, f"{SPECIES}x0e", irreps, internal_weights=False)
        self.shapes = [(u, w) for u, _, w in (path.path_shape for path in self.tp.instructions)]
        self.weight = torch.nn.Parameter(torch.randn(SPECIES, sum(u * w for u, w in self.shapes)))

    def forward(self, x: Tensor, species: Tensor) -> Tensor:
        """Features ``[N, dim]`` and species ``[N]`` to features ``[N, dim]``."""
        parts = zip(self.weight.split([u * w for u, w in self.shapes], 1), self.shapes, strict=True)
        weights = torch.cat([part.unflatten(1, shape).movedim(0, 1).flatten() for part, shape in parts])
        one_hot = torch.nn.functional.one_hot(species, SPECIES).to(x.dtype)
        mapped: Tensor = self.tp(x, one_hot, SPECIES**0.5 * weights)
        return mapped


def _species(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return (species_of(rows, SPECIES, device),)


def _harmonics(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return (features(EDGE, rows),)


def scalars(irreps: str, rows: int) -> Tensor:
    """Random numbers, one for each copy of an irrep."""
    return torch.randn(rows, as_irreps(irreps).num_irreps, dtype=torch.float64)


def gated_cross(s: Any, a: Any, b: Any) -> Any:
    """Formula of one channel: cross product of two vectors, times a gate."""
    cross = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    return [s[0].silu() * c for c in cross]


def _formula(irreps: str) -> nn.FormulaLayer:
    vectors = as_irreps(irreps)
    return nn.FormulaLayer(gated_cross, {"s": f"{vectors.num_irreps}x0e", "a": vectors, "b": vectors}, vectors)


def plain_cross(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The formula in plain torch: ``[N, C]``, ``[N, 3 C]`` twice to ``[N, 3 C]``."""
    cross = torch.linalg.cross(a.unflatten(1, (-1, 3)), b.unflatten(1, (-1, 3)))
    return (torch.nn.functional.silu(s)[..., None] * cross).flatten(1)


PRODUCTS: dict[str, Pair] = {
    **twin("Linear", lambda i: (i, i)),
    "IrrepwiseLinear": Pair(
        nn.IrrepwiseLinear, lambda i: o3.Linear(i, i, instructions=[(n, n) for n in range(len(as_irreps(i)))])
    ),
    "LowRankLinear": Pair(lambda i: nn.LowRankLinear(i, i, RANK), _their_low_rank),
    "SpeciesLinear": Pair(lambda i: nn.SpeciesLinear(i, i, SPECIES), TheirSpecies, further=_species),
    **twin("ElementwiseTensorProduct", lambda i: (i, i), further=second_features),
    **twin("FullTensorProduct", lambda i: (i, EDGE), further=_harmonics),
    **twin("TensorSquare", lambda i: (as_irreps(i),)),
    "SO3Linear": Pair(
        lambda i: nn.SO3Linear(i, EDGE, i),
        lambda i: o3.TensorProduct(as_irreps(i), as_irreps(EDGE), *paths(i, EDGE, irreps_out=i)),
        further=_harmonics,
    ),
    "TensorDot": Pair(
        lambda i: nn.TensorDot(i, scaled=True),
        lambda i: o3.ElementwiseTensorProduct(i, i, ["0e"]),
        further=second_features,
    ),
    "SO3Scale": Pair(
        lambda i: nn.SO3Scale(i, "external"),
        lambda i: o3.ElementwiseTensorProduct(i, f"{as_irreps(i).num_irreps}x0e"),
        further=lambda i, rows, device: (scalars(i, rows),),
    ),
    "FormulaLayer": plain(
        _formula, lambda i: plain_cross, scalars, lambda i, rows, device: (features(i, rows), features(i, rows))
    ),
}
