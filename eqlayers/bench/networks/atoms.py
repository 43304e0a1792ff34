"""Structures for benchmarks of networks: open clusters, and a perturbed crystal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ...core.errors import ConfigError
from ...models import Structures

CUTOFF = 4.0  # Angstrom
SPECIES = {1: "H", 6: "C", 7: "N", 8: "O"}
#: Numbers of atoms of the structures of a batch; atoms have about twenty neighbours.
SIZES = (27,) * 10
SPACING = 1.7  # Angstrom
NITRIDE = {7: "N", 13: "Al"}
#: Wurtzite AlN: lattice constants in Angstrom, and species and fractional coordinates of the atoms of its cell.
A, C = 3.11, 4.98
_RISE = 0.25 + A**2 / (3 * C**2)  # from Al to N along c, where all four bonds are equal
WURTZITE = (
    (13, (1 / 3, 2 / 3, 0.0)),
    (7, (1 / 3, 2 / 3, _RISE)),
    (13, (2 / 3, 1 / 3, 0.5)),
    (7, (2 / 3, 1 / 3, 0.5 + _RISE)),
)
SHAKEN = 0.05  # Angstrom, standard deviation of each coordinate


@dataclass(frozen=True)
class Structure:
    """Species, positions and cell of one structure."""

    species: Tensor  # [A], indices in the list of species
    pos: Tensor  # [A, 3] Angstrom, float64
    cell: Tensor | None = None  # [3, 3] Angstrom, float64, a lattice vector in each row; None if nothing is periodic


def structures(sizes: Sequence[int] = SIZES, seed: int = 0) -> list[Structure]:
    """Clusters of atoms on a perturbed cubic lattice, with random species; a size of 1 gives an isolated atom.

    Example:
        >>> [tuple(s.pos.shape) for s in structures((3, 1))]
        [(3, 3), (1, 3)]
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for size in sizes:
        side = math.ceil(size ** (1 / 3)) + 1
        grid = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64) - (side - 1) / 2] * 3)
        nearest = (grid.norm(dim=-1) + 1e-3 * grid[:, 0]).argsort(stable=True)[:size]
        shaken = SPACING * grid[nearest] + 0.3 * (torch.rand(size, 3, generator=generator, dtype=torch.float64) - 0.5)
        drawn.append(Structure(torch.randint(len(SPECIES), (size,), generator=generator), shaken))
    return drawn


def repeats(count: int) -> tuple[int, int, int]:
    """Repetitions of a cell of four atoms along each vector, as even as possible, for a number of atoms.

    Example:
        >>> [repeats(count) for count in (64, 256, 1000)]
        [(4, 2, 2), (4, 4, 4), (10, 5, 5)]
    """
    cells, rest = divmod(count, len(WURTZITE))
    if rest or not cells:
        raise ConfigError(f"sizes must be multiples of {len(WURTZITE)} atoms, got {count}. Take 64, 256 or 1000.")
    ways = [(i, j, cells // i // j) for i in range(1, cells + 1) for j in range(1, cells // i + 1)]
    return min((way for way in ways if math.prod(way) == cells and way[0] >= way[1] >= way[2]), key=sum)


def wurtzite(count: int, seed: int = 0) -> Structure:
    """A perturbed periodic crystal of aluminium nitride with ``count`` atoms.

    Example:
        >>> crystal = wurtzite(16)
        >>> tuple(crystal.pos.shape), crystal.species.unique().tolist()
        ((16, 3), [0, 1])
    """
    vectors = A * torch.tensor([[1.0, 0.0, 0.0], [-0.5, 0.75**0.5, 0.0], [0.0, 0.0, C / A]], dtype=torch.float64)
    times = repeats(count)
    fractions = torch.tensor([fraction for _, fraction in WURTZITE], dtype=torch.float64)
    cells = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in times))
    pos = ((cells[:, None] + fractions).flatten(0, 1)) @ vectors
    pos += SHAKEN * torch.randn(pos.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    species = torch.tensor([list(NITRIDE).index(z) for z, _ in WURTZITE]).repeat(len(cells))
    return Structure(species, pos, torch.tensor(times, dtype=torch.float64)[:, None] * vectors)


def edges(structure: Structure, cutoff: float) -> tuple[Tensor, Tensor]:
    """All ordered pairs within the cutoff, by brute force.

    Returns:
        ``[2, E]`` (src, dst), sorted by dst, and ``[E, 3]`` float64, displacement of dst in lattice vectors.
    """
    pos, cell = structure.pos, structure.cell
    steps = torch.zeros(1, 3, dtype=torch.float64)
    if cell is not None:
        inverse = torch.linalg.inv(cell)
        fraction = pos @ inverse
        most = cutoff * inverse.norm(dim=0) + (fraction.amax(0) - fraction.amin(0))  # heights of the cell are 1/norm
        steps = torch.cartesian_prod(*(torch.arange(-int(n), int(n) + 1, dtype=torch.float64) for n in most))
    near_pairs, moved = [], []
    for step in steps:
        near = torch.cdist(pos if cell is None else pos + step @ cell, pos) < cutoff  # dst, src
        if not step.any():
            near.fill_diagonal_(False)
        near_pairs.append(near.nonzero())
        moved.append(step.expand(len(near_pairs[-1]), 3))
    pairs, shifts = torch.cat(near_pairs), torch.cat(moved)
    order = (pairs[:, 0] * len(pos) + pairs[:, 1]).argsort(stable=True)
    return pairs[order].flip(1).T.contiguous(), shifts[order]


@dataclass(frozen=True)
class Sample:
    """A batch of structures with cutoff and species; all are periodic or none."""

    batch: Sequence[Structure]
    cutoff: float = CUTOFF  # longest edge, Angstrom
    species: Mapping[int, str] = field(
        default_factory=lambda: SPECIES
    )  # atomic number -> symbol, in the order of indices
    neighbors: float | None = None  # mean number of neighbours for networks; None for the batch's

    @cached_property
    def _edges(self) -> list[tuple[Tensor, Tensor]]:
        return [edges(structure, self.cutoff) for structure in self.batch]

    @property
    def num_atoms(self) -> int:
        """Number of atoms in all structures."""
        return sum(len(structure.pos) for structure in self.batch)

    @property
    def num_edges(self) -> int:
        """Number of directed edges in all structures."""
        return sum(index.shape[1] for index, _ in self._edges)

    @property
    def mean_neighbors(self) -> float:
        """``neighbors`` if given, else the mean number of edges of an atom, at least 1."""
        return max(1.0, self.num_edges / self.num_atoms) if self.neighbors is None else self.neighbors

    def structures(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Structures:
        """The batch as input of potentials of this package."""
        counts = torch.tensor([len(structure.pos) for structure in self.batch])
        starts = (counts.cumsum(0) - counts).tolist()
        cells = [structure.cell for structure in self.batch if structure.cell is not None]
        index = torch.cat([pairs + start for (pairs, _), start in zip(self._edges, starts, strict=True)], 1)
        shifts = torch.cat([shift for _, shift in self._edges])
        return Structures(
            torch.tensor(list(self.species))[torch.cat([structure.species for structure in self.batch])].to(device),
            torch.cat([structure.pos for structure in self.batch]).to(device, dtype),
            index.to(device),
            torch.repeat_interleave(torch.arange(len(counts)), counts).to(device),
            len(counts),
            torch.stack(cells).to(device, dtype) if cells else None,
            shifts.to(device, dtype) if cells else None,
        )


def clusters(sizes: Sequence[int] = SIZES) -> Sample:
    """A sample of clusters of four species."""
    return Sample(structures(sizes))


def crystal(count: int, cutoff: float) -> Sample:
    """A sample of one crystal of aluminium nitride."""
    return Sample([wurtzite(count)], cutoff, NITRIDE)


def rounded(sample: Sample, seed: int = 1) -> Sample:
    """A copy with coordinates perturbed by up to two float32 roundings of the largest coordinate.

    It stands for the rounding errors of edge vectors.
    """
    generator = torch.Generator().manual_seed(seed)

    def moved(structure: Structure) -> Structure:
        pos = structure.pos
        size = torch.finfo(torch.float32).eps * float(pos.abs().max())
        return replace(structure, pos=pos + size * (2 * torch.rand(pos.shape, generator=generator).double() - 1))

    return replace(sample, batch=[moved(structure) for structure in sample.batch], neighbors=sample.mean_neighbors)
