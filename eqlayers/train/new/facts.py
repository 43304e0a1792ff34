"""Facts about a file of structures that settings are chosen by: labels, distances, energies of atoms, problems."""

from __future__ import annotations

import warnings

import numpy as np

from ...atoms.elements import symbols_of
from ...core.errors import DataError, EqlayersWarning
from ...data.embedded import embedded_source
from ...data.neighbors import Edges, structure_edges
from ...data.plausible import check_physics, check_reach, check_sizes
from ...data.readers import Keys, Units, read_file
from ...data.statistics import lone_atoms
from ...data.structuremodule import keys_of
from ...data.structures import StructureArrays

#: Longest cutoff that is considered, in Angstrom.
FARTHEST = 7.0
_SAMPLED = 100  # structures whose neighbours are counted, spread over the file
_ALIKE = 0.6  # ratio of distances, successive to random structures, below which a file is a trajectory


class Near:
    """Neighbours in a sample of structures.

    Attributes:
        nearest: Nearest-neighbour distance in Angstrom: the largest of the medians of the elements.
        atoms: Number of atoms.
        row: Structure of each edge.
        length: Length of each edge in Angstrom.
    """

    def __init__(self, structures: StructureArrays, edges: Edges) -> None:
        src, dst = edges.local + np.repeat(structures.starts, edges.n_edges)
        self.atoms, self.row = len(structures.z), structures.row_of_atom[dst]
        vectors = structures.pos[dst] - structures.pos[src]
        if edges.shifts is not None:
            vectors += np.einsum("ni,nij->nj", edges.shifts.astype(np.float64), structures.cell[self.row])
        self.length = np.linalg.norm(vectors, axis=1)
        nearest = np.full(self.atoms, np.inf)
        np.minimum.at(nearest, dst, self.length)
        of_elements = [nearest[(structures.z == z) & np.isfinite(nearest)] for z in structures.species]
        self.nearest = max((float(np.median(values)) for values in of_elements if len(values)), default=FARTHEST)

    def at(self, cutoff: float) -> tuple[float, int]:
        """Mean number of neighbours of an atom, and largest number of edges of a structure, at a cutoff."""
        within = self.length <= cutoff
        return float(within.sum() / self.atoms), int(np.bincount(self.row[within], minlength=1).max())


class Facts:
    """Facts about a file of structures, which is read.

    Args:
        path: A file, or the name of an embedded set.
        keys, units, skip_bad: See :func:`eqlayers.data.readers.read_structures`.
        target: Name in the file of the property to learn; None for a potential.

    Attributes:
        periodic: How many of the structures are: all, some or none.
        free: Number of isolated atoms among the structures.
        sizes: Number and sizes of structures without isolated atoms, as text.
        successive: Distance of successive structures relative to random pairs; NaN if not comparable.
        trajectory: Whether successive structures are similar.
        isolated: Energy in eV of an isolated atom, by atomic number.
        unique: Whether the compositions determine energies of atoms uniquely.
        noticed: Messages about possible problems.
    """

    def __init__(
        self, path: str, keys: Keys = None, units: Units = None, target: str | None = None, skip_bad: bool = False
    ) -> None:
        self.path, self.target, self.skip_bad = path, target, skip_bad
        keys = keys if target is None else keys_of(target)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", EqlayersWarning)
            source, units = embedded_source(path, units)
            self.embedded = source != path
            self.file = read_file(source, keys, units, skip_bad)
            self.noticed = [str(entry.message) for entry in caught if entry.category is EqlayersWarning]
        self.structures = structures = self.file.structures
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
        few, many = int(structures.n_atoms[some].min()), int(structures.n_atoms[some].max())
        self.sizes = f"{len(some):,} structures of {few if few == many else f'{few} to {many}'}"
        self.free, pbc = int(alone.sum()), np.asarray(structures.pbc[some].any(axis=1))
        self.periodic = "all" if pbc.all() else "some" if pbc.any() else "none"
        self.successive = _successive(structures)
        self.trajectory = self.successive < _ALIKE
        counts, known = structures.counts(structures.species), ~np.isnan(structures.energy)
        self.unique = len(structures.species) == (np.linalg.matrix_rank(counts[known]) if known.any() else 0)
        first = structures.z[structures.starts[alone & known]]
        self.isolated = dict(zip(first.tolist(), structures.energy[alone & known].tolist(), strict=True))
        sample = structures.take(some[np.unique(np.linspace(0, len(some) - 1, _SAMPLED).astype(np.int64))])
        edges = structure_edges(sample, FARTHEST)
        self.near = Near(sample, edges)
        self.noticed += [*check_reach(sample, edges), *check_physics(structures), *check_sizes(structures)]


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
