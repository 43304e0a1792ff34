"""Labels whose size alone is wrong, whatever the other labels are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ase import units as ase_units
from ase.data import covalent_radii

from eqlayers.data.plausible.pair_model import Pairs
from eqlayers.data.plausible.ratios import Ratio
from eqlayers.data.structures import StructureArrays

# Hartree over powers of the atomic number: energies of neutral atoms with all electrons, to 1 % but for the lightest
_ATOM = {7 / 3: -0.768745, 2.0: 0.5, 5 / 3: -0.269900}
_LARGE_FORCE = 15.0  # eV/Angstrom, root mean square in the median structure; about 1 at 500 K
_NET_FORCE = 0.05  # of the norm of all forces; rounding leaves 1e-5
_BOUND, _SPREAD = (0.97, 1.1), 0.04  # energies of molecules over the energies of their atoms, and their differences
_COMPOSITIONS = 3  # a single one may have such an energy by chance
_KNOWN_UNITS = (ase_units.Hartree, ase_units.kcal / ase_units.mol, ase_units.kJ / ase_units.mol)
_NOBLE, _IN_BOHR = (2, 10, 18, 36, 54, 86), (1.55, 2.3)
_HEAVIEST = 36  # atomic number, from which on relativity and effective cores count


def all_electrons(structures: StructureArrays) -> Ratio | None:
    """Energies over the energies of free atoms with all electrons, if they are such energies in a usual unit.

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
    alike = float(np.mean(np.abs(ratios - value) < _SPREAD * abs(value)))
    if alike < 0.9 or not any(_BOUND[0] < value * unit < _BOUND[1] for unit in (1.0, *_KNOWN_UNITS)):
        return None
    return Ratio(value, *_BOUND, "the energies of free atoms with all electrons", usual=1.05)


def large_energies(structures: StructureArrays) -> Iterator[str]:
    """Energies that no structure can have.

    Source:
        Lieb and Simon 1977, doi:10.1016/0001-8708(77)90108-6, for the energy of heavy atoms.
    """
    numbers = structures.row_of_atom
    bound = -1.2 * ase_units.Hartree * _ATOM[7 / 3] * np.bincount(numbers, structures.z ** (7 / 3))
    beyond = np.flatnonzero(np.abs(structures.energy) > bound)  # NaN is not beyond
    if len(beyond):
        row = int(beyond[0])
        yield (
            f"{len(beyond)} energies are beyond the energies of free atoms with all their electrons, the first in row "
            f"{structures.idx[row]}, {structures.energy[row]:.6g} for {structures.n_atoms[row]} atoms: they may be in "
            "kcal/mol, kJ/mol or meV, not in eV. Set data.units: {energy: ...}"
        )


def net_forces(structures: StructureArrays) -> Iterator[str]:
    """Forces that move a molecule as a whole."""
    open_ones = ~structures.pbc.any(axis=1) & (structures.n_atoms > 1)
    row = structures.row_of_atom
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


def large_forces(structures: StructureArrays) -> Iterator[str]:
    """Forces that no training set should have."""
    row, known = structures.row_of_atom, ~np.isnan(structures.forces[:, 0])
    number = np.bincount(row, known)
    if not number.any():
        return
    squares = np.bincount(row[known], np.square(structures.forces[known]).mean(axis=1), minlength=len(number))
    size = float(np.sqrt(np.median(squares[number > 0] / number[number > 0])))
    if size > _LARGE_FORCE:
        yield (
            f"force components have a root mean square of {size:.3g} eV/Angstrom in the median structure, where 0.1 to "
            "5 are usual: they may be in kcal/mol/Angstrom, kJ/mol/nm or meV/Angstrom. Set data.units: {forces: ...}"
        )


def far_neighbors(structures: StructureArrays, pairs: Pairs) -> Iterator[str]:
    """Positions in Bohr: the nearest atoms are all about twice as far as their covalent radii reach."""
    radii = covalent_radii[structures.z]
    nearest = np.full(len(radii), 100.0)  # beyond reach
    np.minimum.at(
        nearest, pairs.first, np.linalg.norm(pairs.vector, axis=1) / (radii[pairs.first] + radii[pairs.second])
    )
    nearest = nearest[~np.isin(structures.z, _NOBLE)]
    if len(nearest) and _IN_BOHR[0] < np.quantile(nearest, 0.1) and np.quantile(nearest, 0.9) < _IN_BOHR[1]:
        yield (
            f"the nearest atoms are {np.median(nearest):.3g} times as far as in bonds. The likely cause: positions are "
            "in Bohr. The fix: set data.units: {pos: Bohr}."
        )
