"""Linear maps beside e3nn's."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...algebra import as_irreps
from .pair import Pair, species_of

RANK, SPECIES = 8, 10


class TheirLowRank(torch.nn.Module):
    """Two of e3nn's maps, with a few copies of each irrep between them."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        whole = as_irreps(irreps)
        middle = o3.Irreps([(RANK, ir) for _, ir in whole])
        self.down, self.up = o3.Linear(whole, middle), o3.Linear(middle, whole)

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
        shapes = [path.path_shape for path in self.tp.instructions]
        self.weight = torch.nn.Parameter(torch.randn(SPECIES, sum(u * w for u, _, w in shapes)))
        self.shapes = [(u, w) for u, _, w in shapes]

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        """``[N, dim]``, ``[N]`` to ``[N, dim]``."""
        parts = self.weight.split([u * w for u, w in self.shapes], 1)
        turned = [
            part.unflatten(1, shape).movedim(0, 1).flatten() for part, shape in zip(parts, self.shapes, strict=True)
        ]
        one_hot = torch.nn.functional.one_hot(kind, SPECIES).to(x.dtype)
        mapped: Tensor = self.tp(x, one_hot, SPECIES**0.5 * torch.cat(turned))
        return mapped


def _each_alone(irreps: str) -> o3.Linear:
    whole = as_irreps(irreps)
    return o3.Linear(whole, whole, instructions=[(i, i) for i in range(len(whole))])


def _species(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return (species_of(rows, SPECIES, device),)


MAPS: dict[str, Pair] = {
    "Linear": Pair(lambda i: nn.Linear(i, i), lambda i: o3.Linear(i, i)),
    "IrrepwiseLinear": Pair(nn.IrrepwiseLinear, _each_alone),
    "LowRankLinear": Pair(lambda i: nn.LowRankLinear(i, i, RANK), TheirLowRank),
    "SpeciesLinear": Pair(lambda i: nn.SpeciesLinear(i, i, SPECIES), TheirSpecies, further=_species),
}
