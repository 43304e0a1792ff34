"""Checks of the size of single labels, of neighbours, and of the parts of a split."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from ase import units as ase_units
from ase.data import covalent_radii

from eqlayers.atoms.elements import symbols_of
from eqlayers.atoms.periodic import IntArray
from eqlayers.data.neighbors import Edges, check_edges
from eqlayers.data.plausible.pair_model import Pairs, is_loose
from eqlayers.data.plausible.ratios import Ratio
from eqlayers.data.plausible.rows import BOUND, forces_of, named
from eqlayers.data.structures import StructureArrays, check_structures

from ...core.errors import DataError

# exponent -> coefficient in Hartree: total energy of a neutral atom as powers of Z, to 1 % except the lightest
_ATOM = {7 / 3: -0.768745, 2.0: 0.5, 5 / 3: -0.269900}
_LARGE_FORCE = 15.0  # eV/Angstrom, root mean square in the median structure; about 1 at 500 K
_LARGEST = 30.0  # eV/Angstrom on one atom, above which a structure is reported
_NET_FORCE = 0.05  # largest net force, relative to the norm of all forces; rounding gives 1e-5
_BOUND, _SPREAD = (0.97, 1.1), 0.04  # total energy of a molecule relative to its free atoms: range, spread
_COMPOSITIONS = 3  # fewest distinct compositions: a single one may match by chance
_KNOWN_UNITS = (ase_units.Hartree, ase_units.kcal / ase_units.mol, ase_units.kJ / ase_units.mol)
_NOBLE, _IN_BOHR, _IN_NM = (2, 10, 18, 36, 54, 86), (1.55, 2.3), (0.06, 0.2)
_NEAREST = 0.3  # distance below which atoms are too near, relative to the length of a bond
_HEAVIEST = 36  # largest atomic number without relativistic effects and effective cores


def all_electrons(structures: StructureArrays) -> Ratio | None:
    """Ratio of energies to total all-electron energies of free atoms; None if energies are not of this type.

    Source:
        Englert and Schwinger 1985, doi:10.1103/PhysRevA.32.47, for the atoms.
    """
    numbers = structures.row_of_atom
    z = structures.z.astype(np.float64)
    atoms = np.bincount(numbers, ase_units.Hartree * sum(factor * z**power for power, factor in _ATOM.items()))
    usable = ~np.isnan(structures.energy) & (structures.n_atoms > 1)
    usable &= np.bincount(numbers, structures.z > _HEAVIEST) == 0
    shares = structures.counts(structures.species)[usable] / structures.n_atoms[usable, None]
    if len(np.unique(shares, axis=0)) < _COMPOSITIONS:
        return None
    ratios = structures.energy[usable] / atoms[usable]
    value = float(np.median(ratios))
    share_near = float(np.mean(np.abs(ratios - value) < _SPREAD * abs(value)))
    if share_near < 0.9 or not any(_BOUND[0] < value * unit < _BOUND[1] for unit in (1.0, *_KNOWN_UNITS)):
        return None
    return Ratio(value, *_BOUND, "the energies of free atoms with all electrons", usual=1.05)


def large_energies(structures: StructureArrays) -> Iterator[str]:
    """Yield a message if energies exceed the total energies of all electrons.

    Source:
        Lieb and Simon 1977, doi:10.1016/0001-8708(77)90108-6, for the energy of heavy atoms.
    """
    numbers = structures.row_of_atom
    bound = -1.2 * ase_units.Hartree * _ATOM[7 / 3] * np.bincount(numbers, structures.z ** (7 / 3))
    beyond = np.flatnonzero(np.abs(structures.energy) > bound)  # false for NaN
    if len(beyond):
        row = int(beyond[0])
        yield (
            f"{len(beyond)} energies are beyond the energies of free atoms with all their electrons, the first in row "
            f"{structures.idx[row]}, {structures.energy[row]:.6g} for {structures.n_atoms[row]} atoms: they may be in "
            "kcal/mol, kJ/mol or meV, not in eV. Set data.units: {energy: ...}"
        )


def net_forces(structures: StructureArrays) -> Iterator[str]:
    """Yield a message if forces of isolated molecules do not sum to zero."""
    isolated = ~structures.pbc.any(axis=1) & (structures.n_atoms > 1)
    row = structures.row_of_atom
    net = np.stack([np.bincount(row, weights=component) for component in structures.forces.T], axis=1)
    total = np.sqrt(np.bincount(row, weights=np.square(structures.forces).sum(axis=1)))
    known = isolated & (total > 0)  # false for NaN
    if known.any():
        share = float(np.median(np.linalg.norm(net[known], axis=1) / total[known]))
        if share > _NET_FORCE:
            yield (
                f"the forces of structures without periods do not add up to 0: their sum has {share:.2g} of the norm "
                "of all forces, in the median. Atoms may be missing, fixed or in another order than the forces"
            )


def large_forces(structures: StructureArrays) -> Iterator[str]:
    """Yield a remark if typical forces are very large, as in hot or compressed matter."""
    size = forces_of(structures) / math.sqrt(3.0)
    if np.isfinite(size).any() and (middle := float(np.nanmedian(size))) > _LARGE_FORCE:
        yield (
            f"remark: force components have a root mean square of {middle:.3g} eV/Angstrom in the median structure, "
            "where 0.1 to 5 are usual. Hot or compressed matter has such forces; else look at data.units"
        )


def check_sizes(structures: StructureArrays) -> list[str]:
    """Messages about structures with very large forces, if they are a minority."""
    largest = np.zeros(len(structures))
    np.maximum.at(largest, structures.row_of_atom, np.nan_to_num(np.linalg.norm(structures.forces, axis=1)))
    beyond = np.flatnonzero(largest > _LARGEST)
    if 0 < 2 * len(beyond) <= len(structures):
        rows = beyond[np.argsort(-largest[beyond])]
        return [
            f"{len(beyond)} structures have a force above {_LARGEST:g} eV/Angstrom, the largest {largest.max():.3g}: "
            f"{named(structures, rows)}. They weigh most in the training; look at them"
        ]
    return []


def far_neighbors(structures: StructureArrays, part: StructureArrays | None, pairs: Pairs | None) -> Iterator[str]:
    """Yield messages if neighbours (``pairs`` of a random sample ``part``) are too far or near, as in another unit."""
    if len(dense := np.flatnonzero(~is_loose(structures) & (structures.n_atoms > 2))):
        dense_one = structures.take(dense[:1])
        pos, z = dense_one.pos[:500], dense_one.z[:500]
        distances = np.linalg.norm(pos[:, None] - pos, axis=2) + 100.0 * np.eye(len(z))
        size = float(np.median(distances.min(axis=1) / (2 * covalent_radii[z])))
        yield _too_near(structures, dense, "less than 1 Angstrom^3 for an atom", size)
        return
    if part is None or pairs is None:
        return
    first, second, vector = pairs
    radii = covalent_radii[part.z]
    nearest = np.full(len(radii), 100.0)  # beyond reach
    np.minimum.at(nearest, first, np.linalg.norm(vector, axis=1) / (radii[first] + radii[second]))
    near = np.flatnonzero((np.maximum.reduceat(nearest, part.starts) < _NEAREST) & (part.n_atoms > 2))
    if len(near):
        size = float(np.median(nearest[np.isin(part.row_of_atom, near)]))
        yield _too_near(part, near, f"all atoms at {size:.2g} times the length of bonds", size)
    nearest = nearest[~np.isin(part.z, _NOBLE)]
    if len(nearest) and _IN_BOHR[0] < np.quantile(nearest, 0.1) and np.quantile(nearest, 0.9) < _IN_BOHR[1]:
        yield (
            f"the nearest atoms are {np.median(nearest):.3g} times as far as in bonds. The likely cause: positions are "
            "in Bohr. The fix: set data.units: {pos: Bohr}."
        )


def _too_near(structures: StructureArrays, rows: IntArray, what: str, size: float) -> str:
    """Message about structures with atoms too near, with the likely unit of positions."""
    cause = "are in nm, or relative to the cell" if _IN_NM[0] < size < _IN_NM[1] else "are in another unit"
    fix = "The fix: set data.units: {pos: nm}, or write Angstrom." if len(rows) == len(structures) else "Look at them."
    return (
        f"{len(rows)} of {len(structures)} structures have {what}, nearer than nuclei come: {named(structures, rows)}. "
        f"The likely cause: positions {cause}. {fix}"
    )


def check_parts(structures: StructureArrays, rows: Mapping[str, IntArray]) -> list[str]:
    """Messages about copies, species that training lacks, and missing labels in the parts of a split."""
    train = check_structures(structures).take(rows["train"])
    if not {"energy", "forces", "dipole", "polarizability", "y"} & set(train.labels):
        raise DataError(
            f"the training part of {structures.source} must have energies, forces, dipoles or polarizabilities, got "
            f"labels {list(train.labels)}. Name them with keys={{'energy': 'my_energy'}}."
        )
    messages = list(_missing(structures))
    first: dict[int, int] = {}
    contents = zip(rows["train"].tolist(), train.identities.tolist(), strict=True)
    if copies := [row for row, content in contents if first.setdefault(content, row) != row]:
        messages.append(
            f"{len(copies)} of {len(train)} training structures are copies of others among them, to 0.0001 Angstrom: "
            f"{named(structures, np.array(copies))}. Remove them, or their weight is doubled"
        )
    for name in ("val", "test"):
        if len(rows[name]) == 0:
            continue
        part = structures.take(rows[name])
        keys = part.identities.tolist()
        pairs = [(row, first[key]) for row, key in zip(rows[name], keys, strict=True) if key in first]
        if pairs:
            theirs, ours = (np.array(column) for column in zip(*pairs, strict=True))
            messages.append(
                f"{len(pairs)} of {len(part)} {name} structures are in the training part as well, to 0.0001 Angstrom: "
                f"{named(structures, theirs)} as {named(structures, ours)}. Errors on them say nothing of new ones"
            )
        unknown = [number for number in part.species if number not in train.species]
        if unknown:
            messages.append(
                f"species {symbols_of(unknown)} are in the {name} part but in none of the {len(train)} training "
                "structures: predictions for them mean nothing"
            )
    return messages


def _missing(structures: StructureArrays) -> Iterator[str]:
    """Yield messages about labels that less than half of the structures lack, in files that have the label."""
    of_atoms = structures.count(~np.isnan(structures.forces[:, 0])) == 0  # forces of held atoms may be missing
    for label, absent in (("energy", np.isnan(structures.energy)), ("forces", of_atoms)):
        rows = np.flatnonzero(absent & (structures.n_atoms > 1) & np.isin(structures.file, structures.file[~absent]))
        if 0 < 2 * len(rows) < len(structures):
            yield f"{label} of {len(rows)} structures are NaN or missing: {named(structures, rows)}"


def check_shifts(structures: StructureArrays, shifts: Mapping[int, float]) -> list[str]:
    """Message if energies of free atoms (e0s) are inconsistent with the energies of structures."""
    atoms = np.bincount(structures.row_of_atom, [shifts.get(number, 0.0) for number in structures.z.tolist()])
    left = ((structures.energy - atoms) / structures.n_atoms)[structures.n_atoms > 1]
    known, forces = ~np.isnan(left), np.nan_to_num(forces_of(structures))
    if not known.any() or abs(middle := float(np.median(left[known]))) < BOUND + 3.0 * float(np.median(forces)):
        return []
    return [
        f"energies less the energies of free atoms (e0s) are {middle:+.4g} eV per atom in the median, where bonds "
        "give -9 to 0: e0s are of another method, or in another unit, than the energies. Set e0s: fit, or "
        "compute both alike"
    ]


def check_reach(structures: StructureArrays, edges: Edges) -> list[str]:
    """Message about atoms without neighbours in structures of several atoms."""
    check_edges(edges, check_structures(structures))
    first = np.repeat(structures.starts, edges.n_edges)
    received = np.bincount(first + edges.local[1], minlength=len(structures.z))
    lonely = (received == 0) & (np.repeat(structures.n_atoms, structures.n_atoms) > 1)
    if not lonely.any():
        return []
    rows = np.unique(structures.row_of_atom[lonely])
    return [
        f"{int(lonely.sum())} atoms in {len(rows)} structures, {named(structures, rows)}, have no "
        f"neighbour within {edges.cutoff:g} Angstrom, so that their forces are 0: raise the cutoff, or look at the "
        "unit of positions"
    ]
