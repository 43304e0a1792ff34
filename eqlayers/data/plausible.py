"""Mistakes in labelled structures that numbers give away: wrong units, missing signs, copies, atoms out of reach.

What cannot be right is an error. What may be right in an unusual data set is a sentence for a warning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
from ase import units as ase_units
from numpy.typing import NDArray

from eqlayers.data.flat import rows_of_atoms
from eqlayers.data.structure_dataset import StructureEdges, check_structure_edges
from eqlayers.data.structures import StructureArrays, check_structures
from eqlayers.elements import symbols_of
from eqlayers.errors import DataError

__all__ = ["check_parts", "check_physics", "check_reach"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_THOMAS_FERMI = 0.768745 * ase_units.Hartree  # eV: neutral atoms have about -0.77 Z^(7/3) Hartree, light ones less
_LARGE_FORCE = 15.0  # eV/Angstrom, root mean square; about 1 at 500 K
_NET_FORCE = 0.05  # of the norm of all forces; rounding leaves 1e-5
_PAIRS, _ENOUGH = 2000, 8  # pairs of structures that are compared at most, and at least for a verdict
_SLOPES = (0.6, 1.35)  # anharmonic energies of large displacements change less than the trapezoids say, to 0.76 times
_SURE = 0.9  # correlation from which on a slope is one
_KCAL, _KJ = ase_units.kcal / ase_units.mol, ase_units.kJ / ase_units.mol
# change of the energy over the work of the forces -> what gives it
_WORK = {
    1 / ase_units.Hartree: "energies in Hartree",
    1 / _KCAL: "energies in kcal/mol",
    1 / _KJ: "energies in kJ/mol",
    ase_units.Hartree / ase_units.Bohr: "forces in Hartree/Bohr",
    _KCAL: "forces in kcal/mol/Angstrom",
    1 / ase_units.Bohr: "energies in Hartree with forces in Hartree/Bohr",
    ase_units.Bohr: "positions in Bohr",
}
# change of the energy over the change of the volume times the stress -> the mistake
_STRESS = {
    ase_units.GPa: "stress in GPa",
    1e3 * ase_units.bar: "stress in kbar",
    1 / ase_units.Hartree: "energies in Hartree",
    1 / _KCAL: "energies in kcal/mol",
}


def check_physics(structures: StructureArrays) -> list[str]:
    """Search labels for what numbers give away; neighbours in a file tell more than structures drawn from it.

    The change of the energy between two similar structures is the work of the forces, with the trapezoidal rule exact
    for a harmonic energy; between two cells it is the work of the stress. A slope that is not 1 tells of units, a
    negative one of a sign.

    Args:
        structures: The data set.

    Returns:
        A sentence for each thing that looks wrong.

    Raises:
        DataError: Forces or stress have the opposite sign.

    Source:
        Lieb and Simon 1977, doi:10.1016/0001-8708(77)90108-6, for the energy of heavy atoms.
    """
    check_structures(structures)
    checks = (_energies, _net_forces, _large_forces, _work, _stress)
    return [sentence for check in checks for sentence in check(structures)]


def check_parts(structures: StructureArrays, rows: Mapping[str, IntArray]) -> list[str]:
    """Search the parts of a split for copies, unknown species and labels that are not there.

    Args:
        structures: The data set.
        rows: Rows of "train", "val" and "test".

    Returns:
        A sentence for each thing that looks wrong.

    Raises:
        DataError: The training part has no label that a potential can be trained on.
    """
    train = check_structures(structures).take(rows["train"])
    if not {"energy", "forces", "dipole", "polarizability"} & set(train.labels):
        raise DataError(
            f"the training part of {structures.source} must have energies, forces, dipoles or polarizabilities, got "
            f"labels {list(train.labels)}. Name them with keys={{'energy': 'my_energy'}}."
        )
    said, seen = [], list(_contents(train))
    copies = len(seen) - len(set(seen))
    if copies:
        said.append(
            f"{copies} of {len(seen)} training structures are copies of others among them, to 0.0001 Angstrom: remove "
            "them, or their weight is doubled"
        )
    for name in ("val", "test"):
        if len(rows[name]) == 0:
            continue
        part = structures.take(rows[name])
        shared = sum(content in set(seen) for content in _contents(part)) if seen else 0
        if shared:
            said.append(
                f"{shared} of {len(part)} {name} structures are in the training part as well, to 0.0001 Angstrom: "
                "errors on them say nothing of new structures"
            )
        unknown = [number for number in part.species if number not in train.species]
        if unknown:
            said.append(
                f"species {symbols_of(unknown)} are in the {name} part but in none of the {len(train)} training "
                "structures: predictions for them mean nothing"
            )
    return said


def _contents(structures: StructureArrays) -> Iterator[bytes]:
    """A key of each structure: species, rounded positions and cell."""
    ends = np.cumsum(structures.n_atoms)
    pos, cell = np.round(structures.pos, 4) + 0.0, np.round(structures.cell, 4) + 0.0  # no negative zeros
    for row, (end, num) in enumerate(zip(ends.tolist(), structures.n_atoms.tolist(), strict=True)):
        atoms = slice(end - num, end)
        parts = (structures.z[atoms], pos[atoms], cell[row])
        yield hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).digest()


def check_reach(structures: StructureArrays, edges: StructureEdges) -> list[str]:
    """Say which atoms have no neighbour, in structures of more than one.

    Args:
        structures: The data set.
        edges: Its neighbour lists.

    Returns:
        A sentence, if there are such atoms.
    """
    check_structure_edges(edges, check_structures(structures))
    first = np.repeat(np.cumsum(structures.n_atoms) - structures.n_atoms, edges.n_edges)
    received = np.bincount(first + edges.local[1], minlength=len(structures.z))
    lonely = (received == 0) & (np.repeat(structures.n_atoms, structures.n_atoms) > 1)
    if not lonely.any():
        return []
    rows = np.unique(rows_of_atoms(structures.n_atoms)[lonely])
    return [
        f"{int(lonely.sum())} atoms in {len(rows)} structures, the first in row {structures.idx[rows[0]]}, have no "
        f"neighbour within {edges.cutoff:g} Angstrom, so that their forces are 0: raise the cutoff, or look at the "
        "unit of positions"
    ]


def _energies(structures: StructureArrays) -> Iterator[str]:
    numbers = rows_of_atoms(structures.n_atoms)
    bound = np.bincount(numbers, weights=1.2 * _THOMAS_FERMI * structures.z ** (7 / 3))
    beyond = np.flatnonzero(np.abs(structures.energy) > bound)  # NaN is not beyond
    if len(beyond):
        row = int(beyond[0])
        yield (
            f"{len(beyond)} energies are beyond the energies of free atoms with all their electrons, the first in row "
            f"{structures.idx[row]}, {structures.energy[row]:.6g} for {structures.n_atoms[row]} atoms: they may be in "
            "kcal/mol, kJ/mol or meV, not in eV"
        )


def _net_forces(structures: StructureArrays) -> Iterator[str]:
    open_ones = ~structures.pbc.any(axis=1) & (structures.n_atoms > 1)
    row = rows_of_atoms(structures.n_atoms)
    net = np.stack([np.bincount(row, weights=component) for component in structures.forces.T], axis=1)
    total = np.sqrt(np.bincount(row, weights=np.square(structures.forces).sum(axis=1)))
    known = open_ones & (total > 0)  # NaN is not above
    if known.any():
        share = float(np.median(np.linalg.norm(net[known], axis=1) / total[known]))
        if share > _NET_FORCE:
            yield (
                f"the forces of structures without periods do not add up to 0: their sum has {share:.2g} of the norm "
                "of all forces, in the median. Atoms may be missing, fixed or in another order than the forces"
            )


def _large_forces(structures: StructureArrays) -> Iterator[str]:
    forces = structures.forces[~np.isnan(structures.forces[:, 0])]
    size = float(np.sqrt(np.square(forces).mean())) if len(forces) else 0.0
    if size > _LARGE_FORCE:
        yield (
            f"force components have a root mean square of {size:.3g} eV/Angstrom, where 0.1 to 5 are usual: they may "
            "be in kcal/mol/Angstrom, kJ/mol/nm or meV/Angstrom"
        )


def _work(structures: StructureArrays) -> Iterator[str]:
    """Change of the energy between neighbours in the file against the work of the forces."""
    ends = np.cumsum(structures.n_atoms)
    candidates = np.flatnonzero(
        (np.diff(structures.n_atoms) == 0) & ~np.isnan(np.diff(structures.energy)) & (structures.n_atoms[1:] > 1)
    )
    work, change = [], []
    for row in candidates[:: max(1, len(candidates) // _PAIRS)].tolist():
        num = int(structures.n_atoms[row])
        before, after = slice(ends[row] - num, ends[row]), slice(ends[row], ends[row] + num)
        moved = structures.pos[after] - structures.pos[before]
        same = np.array_equal(structures.z[before], structures.z[after])
        same &= np.array_equal(structures.cell[row], structures.cell[row + 1])
        if same and 0 < np.abs(moved).max() < 1.0:  # farther ones crossed a boundary or are no neighbours
            done = (structures.forces[before] + structures.forces[after]) * moved
            work.append(-0.5 * float(np.where(moved == 0, 0.0, done).sum()))  # atoms that are held have no forces
            change.append(float(structures.energy[row + 1] - structures.energy[row]))
    yield from _slope(np.array(work), np.array(change), "forces", "the work of the forces between frames", _WORK)


def _stress(structures: StructureArrays) -> Iterator[str]:
    """Change of the energy from one cell to a larger one against the work of the stress, for the usual composition.

    What forces did on the way is taken off where there are any: in a rattled crystal it is most of the change.
    """
    known = np.flatnonzero(~np.isnan(structures.stress[:, 0, 0]) & ~np.isnan(structures.energy))
    if len(known) <= _ENOUGH:
        return
    counts = structures.counts(structures.species)[known]
    _, group, sizes = np.unique(counts, axis=0, return_inverse=True, return_counts=True)
    known = known[group.reshape(-1) == sizes.argmax()]
    volume = np.abs(np.linalg.det(structures.cell))
    order = known[np.argsort(volume[known], kind="stable")]
    ends, work, change = np.cumsum(structures.n_atoms), [], []
    pairs = np.stack([order[:-1], order[1:]], axis=1)
    for pair in pairs[:: max(1, len(pairs) // _PAIRS)].tolist():
        (cell, larger), (start, end) = (
            structures.cell[pair],
            (slice(ends[k] - structures.n_atoms[k], ends[k]) for k in pair),
        )
        grown = np.linalg.solve(cell, larger) - np.eye(3)
        if not 1e-4 < np.abs(grown).max() < 0.2:
            continue
        moved = structures.pos[end] - structures.pos[start] @ (np.eye(3) + grown)
        moved -= moved.mean(axis=0)
        by_forces = -0.5 * float(((structures.forces[start] + structures.forces[end]) * moved).sum())
        if not np.isnan(by_forces) and (np.abs(moved).max() > 1.0 or (structures.z[start] != structures.z[end]).any()):
            continue  # atoms crossed a boundary, or come in another order
        stress = 0.5 * (volume[pair, None, None] * structures.stress[pair]).sum(axis=0)
        work.append(float((stress * grown).sum()))
        change.append(float(structures.energy[pair[1]] - structures.energy[pair[0]]) - np.nan_to_num(by_forces))
    yield from _slope(np.array(work), np.array(change), "stress", "the work of the stress between cells", _STRESS)


def _slope(
    work: FloatArray, change: FloatArray, label: str, product: str, reasons: Mapping[float, str]
) -> Iterator[str]:
    """Findings from the slope of energies against work; none if they are not proportional."""
    finite = np.isfinite(work)
    work, change = work[finite], change[finite]
    size = float(np.sqrt(np.square(work).sum() * np.square(change).sum()))
    if len(work) < _ENOUGH or size == 0 or abs(float(work @ change)) < _SURE * size:
        return
    slope = float(work @ change / (work @ work))
    if slope < 0:
        raise DataError(
            f"{label} must have the sign of ASE, got the opposite: energies fall by {-slope:.3g} of {product}. Negate "
            f"them in the file; {'forces are minus the gradient' if label == 'forces' else 'name virials as such'}."
        )
    if not _SLOPES[0] < slope < _SLOPES[1]:
        likely = [reason for factor, reason in reasons.items() if _SLOPES[0] < slope / factor < _SLOPES[1]]
        hint = f", as by {', or '.join(likely)}" if likely else ""
        yield (
            f"energies change by {slope:.3g} of {product}{hint}: set units of energy and {label}, or name another "
            "energy with keys"
        )
