"""Linear maps and products of features beside e3nn's, and scales of irreps."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...irreps.algebra import as_irreps
from ...irreps.path_lists import paths
from .pair import Pair, features, plain, second_features, species_of

RANK, SPECIES = 8, 10
#: Harmonics that features are multiplied with.
EDGE = "0e+1o+2e"


class TheirLowRank(torch.nn.Module):
    """Two of e3nn's maps, with a few copies of each irrep between them."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        middle = o3.Irreps([(RANK, ir) for _, ir in as_irreps(irreps)])
        self.down, self.up = o3.Linear(irreps, middle), o3.Linear(middle, irreps)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, dim]`` to the same."""
        mapped: Tensor = self.up(self.down(x))
        return mapped


class TheirSpecies(torch.nn.Module):
    """Weights for each species as MACE has them: e3nn's product with one-hot species.

    It holds the weights as ours does, ``[species, weights of a map]``, and turns them at each call.
    """

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.tp = o3.FullyConnectedTensorProduct(irreps, f"{SPECIES}x0e", irreps, internal_weights=False)
        self.shapes = [(u, w) for u, _, w in (path.path_shape for path in self.tp.instructions)]
        self.weight = torch.nn.Parameter(torch.randn(SPECIES, sum(u * w for u, w in self.shapes)))

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        """``[N, dim]``, ``[N]`` to ``[N, dim]``."""
        parts = zip(self.weight.split([u * w for u, w in self.shapes], 1), self.shapes, strict=True)
        weights = torch.cat([part.unflatten(1, shape).movedim(0, 1).flatten() for part, shape in parts])
        one_hot = torch.nn.functional.one_hot(kind, SPECIES).to(x.dtype)
        mapped: Tensor = self.tp(x, one_hot, SPECIES**0.5 * weights)
        return mapped


def _each_alone(irreps: str) -> o3.Linear:
    return o3.Linear(irreps, irreps, instructions=[(i, i) for i in range(len(as_irreps(irreps)))])


def _species(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return (species_of(rows, SPECIES, device),)


def _harmonics(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return (features(EDGE, rows),)


def scalars(irreps: str, rows: int) -> Tensor:
    """One for each copy."""
    return torch.randn(rows, as_irreps(irreps).num_irreps, dtype=torch.float64)


def _every_path(irreps: str) -> o3.TensorProduct:
    """Features times harmonics, with a weight for each channel."""
    first, second = as_irreps(irreps), as_irreps(EDGE)
    return o3.TensorProduct(first, second, *paths(first, second, irreps_out=first))


def gated_cross(s: Any, a: Any, b: Any) -> Any:
    """A vector times a gate, and the product of two vectors: components of one channel."""
    cross = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    return [s[0].silu() * c for c in cross]


def _formula(irreps: str) -> nn.FormulaLayer:
    vectors = as_irreps(irreps)
    return nn.FormulaLayer(gated_cross, {"s": f"{vectors.num_irreps}x0e", "a": vectors, "b": vectors}, vectors)


def plain_cross(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The formula in the plainest torch: ``[N, C]``, ``[N, 3 C]`` twice to ``[N, 3 C]``."""
    cross = torch.linalg.cross(a.unflatten(1, (-1, 3)), b.unflatten(1, (-1, 3)))
    return (torch.nn.functional.silu(s)[..., None] * cross).flatten(1)


PRODUCTS: dict[str, Pair] = {
    "Linear": Pair(lambda i: nn.Linear(i, i), lambda i: o3.Linear(i, i)),
    "IrrepwiseLinear": Pair(nn.IrrepwiseLinear, _each_alone),
    "LowRankLinear": Pair(lambda i: nn.LowRankLinear(i, i, RANK), TheirLowRank),
    "SpeciesLinear": Pair(lambda i: nn.SpeciesLinear(i, i, SPECIES), TheirSpecies, further=_species),
    "ElementwiseTensorProduct": Pair(
        lambda i: nn.ElementwiseTensorProduct(i, i),
        lambda i: o3.ElementwiseTensorProduct(i, i),
        further=second_features,
    ),
    "FullTensorProduct": Pair(
        lambda i: nn.FullTensorProduct(i, EDGE), lambda i: o3.FullTensorProduct(i, EDGE), further=_harmonics
    ),
    "TensorSquare": Pair(nn.TensorSquare, lambda i: o3.TensorSquare(as_irreps(i))),
    "SO3Linear": Pair(lambda i: nn.SO3Linear(i, EDGE, i), _every_path, further=_harmonics),
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
