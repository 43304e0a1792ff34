"""Units of energies and forces that are guessed where the usual ones cannot be right and others leave no doubt."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

import numpy as np
from ase import units as ase_units

from ...core.errors import DataError
from ...data.plausible import check_physics
from ...data.structures import StructureArrays
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
            other = dataclasses.replace(
                structures, energy=structures.energy * sizes[0], forces=structures.forces * sizes[1]
            )
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
