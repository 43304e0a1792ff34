"""Facts about a file of structures that settings are chosen by: labels, distances, energies of atoms, problems."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...atoms.elements import symbols_of
from ...core.errors import DataError, EqlayersWarning
from ...data.embedded import TRAJECTORIES, TRAJECTORY_UNITS, embedded_trajectory
from ...data.neighbors import Edges, structure_edges
from ...data.plausible import check_physics, check_reach, check_sizes
from ...data.readers import Keys, StructureFile, Units, read_file
from ...data.statistics import lone_atoms
from ...data.structuremodule import keys_of
from ...data.structures import StructureArrays

#: Longest cutoff that is considered, in Angstrom.
FARTHEST = 7.0
_SAMPLED = 100  # structures whose neighbours are counted, spread over the file
_ALIKE = 0.6  # ratio of distances, successive to random structures, below which a file is a trajectory


@dataclass(frozen=True)
class Near:
    """Neighbours in a sample of structures.

    Attributes:
        nearest: Nearest-neighbour distance in Angstrom: the largest of the medians of the elements.
        atoms: Number of atoms.
        row: Structure of each edge.
        length: Length of each edge in Angstrom.
    """

    nearest: float
    atoms: int
    row: NDArray[np.int64]
    length: NDArray[np.float64]

    def at(self, cutoff: float) -> tuple[float, int]:
        """Mean number of neighbours of an atom, and largest number of edges of a structure, at a cutoff."""
        within = self.length <= cutoff
        return float(within.sum() / self.atoms), int(np.bincount(self.row[within], minlength=1).max())


@dataclass(frozen=True)
class Facts:
    """Facts about a file of structures.

    Attributes:
        successive: Distance of successive structures relative to random pairs; NaN if not comparable.
        isolated: Energy in eV of an isolated atom, by atomic number.
        unique: Whether the compositions determine energies of atoms uniquely.
        noticed: Messages about possible problems.
        target: Name in the file of the property to learn; None for a potential.
    """

    path: str
    file: StructureFile
    embedded: bool
    periodic: str
    successive: float
    isolated: dict[int, float]
    unique: bool
    near: Near
    noticed: list[str]
    target: str | None = None
    skip_bad: bool = False

    @property
    def structures(self) -> StructureArrays:
        """All structures of the file."""
        return self.file.structures

    @property
    def free(self) -> int:
        """Number of isolated atoms among the structures."""
        return int(lone_atoms(self.structures).sum())

    @property
    def sizes(self) -> str:
        """Number and sizes of structures without isolated atoms, as text."""
        number = self.structures.n_atoms[~lone_atoms(self.structures)]
        few, many = int(number.min()), int(number.max())
        return f"{len(number):,} structures of {few if few == many else f'{few} to {many}'}"

    @property
    def trajectory(self) -> bool:
        """Whether successive structures are similar."""
        return self.successive < _ALIKE


def read_facts(
    path: str, keys: Keys = None, units: Units = None, target: str | None = None, skip_bad: bool = False
) -> Facts:
    """Read a file of structures and collect facts about it.

    Args:
        path: A file, or the name of an embedded set.
        keys, units, skip_bad: See :func:`eqlayers.data.readers.read_structures`.
        target: Name of the property to learn; None for a potential.
    """
    keys = keys if target is None else keys_of(target)
    embedded = path in TRAJECTORIES and not Path(path).exists()
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EqlayersWarning)
        source = embedded_trajectory(path) if embedded else path
        file = read_file(source, keys, TRAJECTORY_UNITS if embedded else units, skip_bad)
        messages += [str(entry.message) for entry in caught if entry.category is EqlayersWarning]
    structures = file.structures
    if not set(structures.labels) & {"energy", "forces", "dipole", "polarizability", "y"}:
        raise DataError(
            f"{path} must have energies, forces, dipoles or polarizabilities of its structures, got labels "
            f"{', '.join(structures.labels) or 'none'}; it has no other name that is known. Name them: --keys "
            "'{energy: my_energy, forces: my_forces}', or learn one property: --target my_gap."
        )
    alone = lone_atoms(structures)
    some = np.flatnonzero(~alone)  # a crystal may have one atom in its cell
    if not len(some):
        raise DataError(f"{path} must have molecules or crystals, got only free atoms. Name another file.")
    rows = some[np.unique(np.linspace(0, len(some) - 1, _SAMPLED).astype(np.int64))]
    edges = structure_edges(structures.take(rows), FARTHEST)
    messages += check_reach(structures.take(rows), edges)
    pbc = np.asarray(structures.pbc.any(axis=1))[~alone]
    counts, known = structures.counts(structures.species), ~np.isnan(structures.energy)
    first = structures.z[structures.starts[alone & known]]
    rank = int(np.linalg.matrix_rank(counts[known])) if known.any() else 0
    return Facts(
        path=path,
        file=file,
        embedded=embedded,
        periodic="all" if pbc.all() else "some" if pbc.any() else "none",
        successive=_successive(structures),
        isolated=dict(zip(first.tolist(), structures.energy[alone & known].tolist(), strict=True)),
        unique=rank == len(structures.species),
        near=_near(structures.take(rows), edges),
        noticed=[*messages, *check_physics(structures), *check_sizes(structures)],
        target=target,
        skip_bad=skip_bad,
    )


def _near(structures: StructureArrays, edges: Edges) -> Near:
    """The neighbours of edges of structures."""
    first = np.repeat(structures.starts, edges.n_edges)
    row = np.repeat(np.arange(len(structures)), edges.n_edges)
    src, dst = edges.local + first
    vectors = structures.pos[dst] - structures.pos[src]
    if edges.shifts is not None:
        vectors += np.einsum("ni,nij->nj", edges.shifts.astype(np.float64), structures.cell[row])
    length = np.linalg.norm(vectors, axis=1)
    nearest = np.full(len(structures.z), np.inf)
    np.minimum.at(nearest, dst, length)
    of_elements = [nearest[(structures.z == z) & np.isfinite(nearest)] for z in structures.species]
    medians = [float(np.median(values)) for values in of_elements if len(values)]
    return Near(max(medians, default=FARTHEST), len(structures.z), row, length)


def _successive(structures: StructureArrays) -> float:
    """Ratio of median distances: successive structures to random pairs, of the most frequent size; NaN if unknown."""
    sizes, repeats = np.unique(structures.n_atoms, return_counts=True)
    size = int(sizes[repeats.argmax()])
    rows = np.flatnonzero(structures.n_atoms == size)
    if size < 2 or len(rows) < 10:
        return float("nan")

    def distance(a: int, b: int) -> float:
        first, second = map(structures.atoms, (a, b))
        if (structures.z[first] != structures.z[second]).any():
            return float("nan")
        moved = structures.pos[second] - structures.pos[first]
        cell = structures.cell[a]
        if structures.pbc[a].any() and abs(np.linalg.det(cell)) > 0:  # the nearest image
            parts = moved @ np.linalg.inv(cell)
            moved = (parts - np.round(parts) * structures.pbc[a]) @ cell
        moved = moved - moved.mean(axis=0)
        return float(np.sqrt(np.square(moved).mean()))

    draw = np.random.default_rng(0)
    starts = rows[:-1][np.diff(rows) == 1]
    starts = starts[:: max(1, len(starts) // 200)]
    pairs = draw.choice(rows, size=(min(400, len(structures)), 2))
    near = np.array([distance(k, k + 1) for k in starts.tolist()])
    far = np.array([distance(a, b) for a, b in pairs.tolist() if a != b])
    near, far = near[~np.isnan(near)], far[~np.isnan(far)]
    if len(near) < 5 or len(far) < 5 or np.median(far) == 0:
        return float("nan")
    return float(np.median(near) / np.median(far))


def described(facts: Facts) -> str:
    """One line with number, sizes, species, periodicity and labels of the structures."""
    structures = facts.structures
    cell = {"none": "not periodic", "all": "periodic", "some": "some of them periodic"}[facts.periodic]
    labels = facts.target or ", ".join(structures.labels)
    species = symbols_of(structures.species)
    free = f", and {facts.free} free atoms" if facts.free else ""
    return f"{facts.path}: {facts.sizes} atoms of {species}, {cell}{free}; {labels}"
