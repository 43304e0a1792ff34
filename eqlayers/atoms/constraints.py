"""Constraints of ASE: directions in which atoms are free to move, and atoms that are held."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import DataError


def free_directions(atoms: Any) -> NDArray[np.float64] | None:
    """Matrices ``[A, 3, 3]`` that project forces on directions in which ASE's constraints let atoms move, or None."""
    if not atoms.constraints:
        return None
    free = np.tile(np.eye(3)[:, None], (len(atoms), 1))  # by axis, contiguous, as constraints change arrays in place
    for constraint in atoms.constraints:
        if type(constraint).__name__ in ("FixAtoms", "FixCartesian", "FixedLine", "FixedPlane", "FixScaled"):
            for column in free:
                try:
                    constraint.adjust_forces(atoms, column)
                except IndexError as error:
                    raise DataError(
                        f"constraints must hold atoms of the structure, which has {len(atoms)}, got {constraint}: "
                        f"{error}. Repair the file, or remove them by atoms.set_constraint()."
                    ) from error
    return np.moveaxis(free, 0, 2)


def held_atoms(forces: NDArray[np.float64], free: NDArray[np.float64] | None) -> NDArray[np.bool_]:
    """Mask ``[A]`` of atoms that are held in some direction and whose forces in it are 0, as ASE writes them."""
    mask = np.zeros(len(forces), bool)
    if free is None:
        return mask
    for atom in np.flatnonzero((free != np.eye(3)).any(axis=(1, 2))):
        vectors, sizes, _ = np.linalg.svd(free[atom])
        held = vectors[:, sizes < 1e-6]  # null space: two planes leave forces in the second
        part = np.abs(held.T @ forces[atom]).max(initial=0.0) if held.shape[1] else np.inf
        mask[atom] = part <= 1e-7 + 1e-6 * np.abs(forces[atom]).max()
    return mask
