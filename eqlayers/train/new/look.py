"""Facts of a file of structures: labels and guesses of their units, order, distances, energies of atoms, mistakes."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import units as ase_units
from numpy.typing import NDArray

from ...core.errors import ConfigError, DataError, EqlayersWarning
from ...data.embedded import TRAJECTORIES, TRAJECTORY_UNITS, embedded_trajectory
from ...data.neighbors import StructureEdges, structure_edges
from ...data.plausible import check_physics, check_reach
from ...data.propertymodule import keys_of
from ...data.readers import Keys, StructureFile, Units, read_file
from ...data.statistics import lone_atoms, regression
from ...data.structures import StructureArrays
from ...elements import symbols_of
from ...units import unit_size

#: Units that programs write, by how usual they are.
CANDIDATES = (
    ("eV", "eV/Angstrom"),
    ("Hartree", "Hartree/Bohr"),
    ("kcal/mol", "kcal/mol/Angstrom"),
    ("eV", "Hartree/Bohr"),
    ("Hartree", "eV/Angstrom"),
    ("kJ/mol", "kJ/mol/Angstrom"),
    ("eV", "kcal/mol/Angstrom"),
    ("Hartree", "Hartree/Angstrom"),
    ("kJ/mol", "kJ/mol/nm"),
)
#: Units that few programs write. All checks take them for others within a factor of 2.
RARE = (("Rydberg", "Rydberg/Bohr"), ("kcal/mol", "kcal/mol/Bohr"))
# Energies with all electrons over energies of the Thomas-Fermi atom: 0.65 of hydrogen, 0.76 of ethanol, 0.9 of gold.
_ALL_ELECTRONS = (0.55, 1.05)
_THOMAS_FERMI = 0.768745 * ase_units.Hartree


class Guess(NamedTuple):
    """Units of energy and forces, and the reason in a sentence."""

    units: dict[str, str]
    reason: str


def guess_units(structures: StructureArrays, unsaid: bool = False) -> Guess | None:
    """Units under which energies and forces agree, where the usual ones do not and one pair of units alone does.

    ``unsaid``: the format of the file does not let eV be taken for granted.
    """
    wrong = _problems(structures)
    if not wrong and not unsaid:
        return None
    fitting = []
    for energy, forces in (*CANDIDATES, *RARE):
        if unsaid or (energy, forces) != CANDIDATES[0]:
            sizes = unit_size("energy", energy), unit_size("forces", forces)
            other = replace(structures, energy=structures.energy * sizes[0], forces=structures.forces * sizes[1])
            if not _problems(other):
                fitting.append((energy, forces, _whole_atoms(other)))
    usual = [one for one in fitting if one[:2] not in RARE] or fitting
    whole = [one for one in usual if one[2]]
    chosen = usual if len(usual) == 1 and not unsaid else whole
    if len(chosen) != 1:
        return None
    energy, forces, all_electrons = chosen[0]
    reason = f"in eV and eV/Angstrom {re.split(': |[.] The', wrong[0])[0]}" if wrong else "the file says no unit"
    how = "energies include all electrons, and forces agree with them" if all_electrons else "all numbers agree"
    others = [" and ".join(one[:2]) for one in fitting if one[:2] in RARE and one is not chosen[0]]
    doubt = f", as they do in {' or in '.join(others)}: look them up" if others else ""
    return Guess({"energy": energy, "forces": forces}, f"{reason}; in these units {how}{doubt}")


def _problems(structures: StructureArrays) -> list[str]:
    try:
        return check_physics(structures)
    except DataError as error:  # of a sign, which no unit changes
        return [str(error)]


def _whole_atoms(structures: StructureArrays) -> bool:
    """Whether energies are of the size of atoms with all their electrons."""
    free = np.bincount(structures.row_of_atom, weights=_THOMAS_FERMI * structures.z ** (7 / 3))
    known = ~np.isnan(structures.energy)
    if not known.any():
        return False
    share = float(np.median(-structures.energy[known] / free[known]))
    return _ALL_ELECTRONS[0] < share < _ALL_ELECTRONS[1]


#: Angstrom: the longest cutoff that is thought of; lists of neighbours reach so far.
FARTHEST = 7.0
_LOOKED_AT = 100  # structures whose neighbours are counted, all over the file
_ALIKE = 0.6  # of the distance between structures drawn from the file: less between successive ones is a trajectory
_LARGE_FORCE = 30.0  # eV/Angstrom on one atom
_FAR_ENERGY = 15.0  # median deviations
_FEWEST_ENERGIES = 20  # of which a median deviation says something


@dataclass(frozen=True)
class Near:
    """Neighbours in some of the structures.

    Attributes:
        nearest: Distance of the nearest neighbour of an atom in Angstrom, the largest of the medians of the elements.
        cutoffs: Distances in Angstrom.
        mean: Mean number of neighbours of an atom within each of them.
        most: Largest number of neighbours of all atoms of a structure together within each of them.
    """

    nearest: float
    cutoffs: NDArray[np.float64]
    mean: NDArray[np.float64]
    most: NDArray[np.float64]

    def at(self, cutoff: float) -> tuple[float, int]:
        """Mean number of neighbours of an atom, and the largest number of edges of a structure."""
        place = int(np.argmin(np.abs(self.cutoffs - cutoff)))
        return float(self.mean[place]), int(self.most[place])


@dataclass(frozen=True)
class Look:
    """The facts of a file.

    Attributes:
        successive: Distance of successive structures over the distance of any two; NaN where structures cannot be
            compared.
        isolated: Atomic numbers of which there is an atom alone, with its energy.
        unique: Whether the energies determine the energies of atoms, by composition.
        noticed: Sentences on what looks wrong.
        target: The property that is learned, a name in the file; None for a potential.
    """

    path: str
    file: StructureFile
    embedded: bool
    guess: Guess | None
    periodic: str
    successive: float
    isolated: tuple[int, ...]
    unique: bool
    near: Near
    noticed: list[str]
    target: str | None = None
    skip_bad: bool = False

    @property
    def structures(self) -> StructureArrays:
        """The structures."""
        return self.file.structures

    @property
    def free(self) -> int:
        """Number of structures that are one atom alone."""
        return int(lone_atoms(self.structures).sum())

    @property
    def sizes(self) -> str:
        """How many structures there are, but for free atoms, and how large they are, for people."""
        number = self.structures.n_atoms[~lone_atoms(self.structures)]
        few, many = int(number.min()), int(number.max())
        return f"{len(number):,} structures of {few if few == many else f'{few} to {many}'}"

    @property
    def trajectory(self) -> bool:
        """Whether successive structures are alike."""
        return self.successive < _ALIKE


def look(path: str, keys: Keys = None, units: Units = None, target: str | None = None, skip_bad: bool = False) -> Look:
    """Look at a file of structures.

    Args:
        path: A file, or the name of an embedded set.
        keys, units, skip_bad: As of :func:`eqlayers.data.readers.read_structures`.
        target: The property that is learned, in place of a potential.
    """
    keys = keys if target is None else keys_of(target)
    embedded = path in TRAJECTORIES and not Path(path).exists()
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EqlayersWarning)
        file, guess = _read(path, embedded, partial(read_file, keys=keys, skip_bad=skip_bad), units)
        said += [str(one.message) for one in caught if one.category is EqlayersWarning]
    structures = file.structures
    if not set(structures.labels) & {"energy", "forces", "dipole", "polarizability", "y"}:
        raise DataError(
            f"{path} must have energies, forces, dipoles or polarizabilities of its structures, got labels "
            f"{', '.join(structures.labels) or 'none'}; it has no other name that is known. Name them: --keys "
            "'{energy: my_energy, forces: my_forces}', or learn one property: --target my_gap."
        )
    alone = lone_atoms(structures)
    some = np.flatnonzero(structures.n_atoms > 1)
    if not len(some):
        raise DataError(f"{path} must have structures of more than one atom, got only free atoms. Name another file.")
    rows = some[np.unique(np.linspace(0, len(some) - 1, _LOOKED_AT).astype(np.int64))]
    edges = structure_edges(structures.take(rows), FARTHEST)
    said += check_reach(structures.take(rows), edges)
    pbc = np.asarray(structures.pbc.any(axis=1))[~alone]
    counts, known = structures.counts(structures.species), ~np.isnan(structures.energy)
    rank = int(np.linalg.matrix_rank(counts[known])) if known.any() else 0
    return Look(
        path=path,
        file=file,
        embedded=embedded,
        guess=guess,
        periodic="all" if pbc.all() else "some" if pbc.any() else "none",
        successive=_successive(structures),
        isolated=tuple(np.unique(structures.z[structures.starts[alone & known]]).tolist()),
        unique=rank == len(structures.species),
        near=_near(structures.take(rows), edges),
        noticed=[*said, *check_physics(structures), *_outliers(structures, counts, known & ~alone)],
        target=target,
        skip_bad=skip_bad,
    )


def _read(path: str, embedded: bool, read: Any, units: Any) -> tuple[StructureFile, Guess | None]:
    """The file, in units that were given, that it says, that were guessed, or that are taken for granted."""
    if embedded:
        return read(embedded_trajectory(path), units=TRAJECTORY_UNITS), None
    asked = dict(units or {})
    try:
        file = read(path, units=asked)
        bare = False
    except ConfigError:
        if Path(path).suffix != ".npz" or {"energy", "forces"} <= set(asked):
            raise
        file = read(path, units={"energy": "eV", "forces": "eV/Angstrom", **asked})
        bare = True
    guess = guess_units(file.structures, bare) if not {"energy", "forces", "pos", "groups"} & set(asked) else None
    if guess is None:
        return (read(path, units=asked) if bare else file), None  # which says that units must be given
    return read(path, units={**asked, **guess.units}), guess


def _near(structures: StructureArrays, edges: StructureEdges) -> Near:
    """Neighbours in some structures."""
    first = np.repeat(structures.starts, edges.n_edges)
    row = np.repeat(np.arange(len(structures)), edges.n_edges)
    src, dst = edges.local + first
    moved = np.einsum("ni,nij->nj", edges.shifts.astype(np.float64), structures.cell[row])
    length = np.linalg.norm(structures.pos[dst] - structures.pos[src] + moved, axis=1)
    nearest = np.full(len(structures.z), np.inf)
    np.minimum.at(nearest, dst, length)
    of_elements = [nearest[(structures.z == z) & np.isfinite(nearest)] for z in structures.species]
    medians = [float(np.median(values)) for values in of_elements if len(values)]
    cutoffs = np.arange(3.0, FARTHEST + 0.25, 0.5)
    within = [length <= cutoff for cutoff in cutoffs]
    return Near(
        nearest=max(medians, default=FARTHEST),
        cutoffs=cutoffs,
        mean=np.array([mask.sum() / len(structures.z) for mask in within]),
        most=np.array([np.bincount(row[mask], minlength=1).max() for mask in within]),
    )


def _successive(structures: StructureArrays) -> float:
    """How alike successive structures are: their distance over the distance of any two, of the usual composition."""
    sizes, repeats = np.unique(structures.n_atoms, return_counts=True)
    size = int(sizes[repeats.argmax()])
    rows = np.flatnonzero(structures.n_atoms == size)
    if size < 2 or len(rows) < 10:
        return float("nan")

    def distance(a: int, b: int) -> float:
        one, two = map(structures.atoms, (a, b))
        if (structures.z[one] != structures.z[two]).any():
            return float("nan")
        moved = structures.pos[two] - structures.pos[one]
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


def _outliers(structures: StructureArrays, counts: NDArray[np.int64], rows: NDArray[np.bool_]) -> list[str]:
    """Sentences on forces and energies far from the others."""
    said = []
    size = np.linalg.norm(np.nan_to_num(structures.forces), axis=1)
    largest = np.zeros(len(structures))
    np.maximum.at(largest, structures.row_of_atom, size)
    beyond = np.flatnonzero(largest > _LARGE_FORCE)
    if 0 < 2 * len(beyond) <= len(structures):  # of more, the unit is likelier wrong, which is reported elsewhere
        row = int(beyond[largest[beyond].argmax()])
        said.append(
            f"{len(beyond)} structures have a force above {_LARGE_FORCE:g} eV/Angstrom, the largest "
            f"{largest[row]:.3g} in row {structures.idx[row]}: they weigh most in the training; look at them"
        )
    chosen = np.flatnonzero(rows)
    if len(chosen) < _FEWEST_ENERGIES:
        return said
    atoms = structures.n_atoms[chosen].astype(np.float64)
    energy = structures.energy[chosen]
    left = (energy - counts[chosen] @ regression(counts[chosen], energy, intercept=False)) / atoms
    middle = float(np.median(left))
    spread = float(np.median(np.abs(left - middle)))
    beyond = np.flatnonzero(np.abs(left - middle) > max(_FAR_ENERGY * spread, 1e-3))
    if 0 < len(beyond) <= max(2, len(chosen) // 20):
        row = int(beyond[np.abs(left[beyond] - middle).argmax()])
        said.append(
            f"{len(beyond)} energies are far from the others of their composition, the farthest by "
            f"{left[row] - middle:+.3g} eV per atom in row {structures.idx[chosen[row]]}: look for calculations that "
            "did not converge, or for other settings"
        )
    return said


def described(facts: Look) -> str:
    """Number, size, species, periodicity and labels in one line."""
    structures = facts.structures
    cell = {"none": "not periodic", "all": "periodic", "some": "some of them periodic"}[facts.periodic]
    labels = facts.target or ", ".join(structures.labels)
    species = symbols_of(structures.species)
    free = f", and {facts.free} free atoms" if facts.free else ""
    return f"{facts.path}: {facts.sizes} atoms of {species}, {cell}{free}; {labels}"
