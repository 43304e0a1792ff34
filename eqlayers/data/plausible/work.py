"""Compare energy differences of similar structures with the work of forces and stress between them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from eqlayers.data.plausible.ratios import Ratio
from eqlayers.data.structures import StructureArrays

_NEAR = 0.35  # largest displacement in Angstrom, within which the range _SLOPES holds
_PAIRS, _ENOUGH = 2000, 8  # most and fewest pairs of structures
_SLOPES = (0.55, 1.5)  # range of the ratio for right labels; anharmonic energies reach 0.74
_CHANCE, _SMALL = 6.0, 0.04  # standard errors that widen the range for few pairs; relative error of many pairs
_OF_CELLS = (0.4, 2.5)  # range of the ratio between cells
_ERRORS = 10.0  # least slope in standard errors
_SURE = 0.9  # least correlation


def work_of_forces(structures: StructureArrays) -> Ratio | None:
    """Ratio of energy differences of consecutive frames to the work of forces by the trapezoidal rule, or None."""
    rows = with_same_next(structures)
    known = ~np.isnan(structures.energy[rows + 1] - structures.energy[rows])
    rows = rows[known & (structures.cell[rows] == structures.cell[rows + 1]).all(axis=(1, 2))]
    if len(rows) < _ENOUGH:
        return None
    rows = rows[:: max(1, len(rows) // _PAIRS)]
    before, after = structures.take(rows), structures.take(rows + 1)
    moved = after.pos - before.pos
    far = np.maximum.reduceat(np.abs(moved).max(axis=1), before.starts)
    done = np.where(moved == 0, 0.0, (before.forces + after.forces) * moved).sum(axis=1)  # 0 * NaN of held atoms
    work, near = np.asarray(-0.5 * np.bincount(before.row_of_atom, done), np.float64), (far > 0) & (far < _NEAR)
    work, change = (each[near & np.isfinite(work)] for each in (work, after.energy - before.energy))
    size = float(np.sqrt(np.square(work).sum() * np.square(change).sum()))
    correlation = float(work @ change) / size if size else 0.0
    if len(work) < _ENOUGH or abs(correlation) < _SURE:
        return None
    error = math.sqrt((1 - min(correlation**2, 1.0)) / (len(work) - 1)) / abs(correlation)  # relative
    wider = 1 + _CHANCE * max(0.0, error - _SMALL)
    low, high = _SLOPES[0] / wider, _SLOPES[1] * wider
    return Ratio(
        float(work @ change / (work @ work)), low, high, "the work of the forces between frames", usual=1.4, exact=True
    )


def with_same_next(structures: StructureArrays) -> NDArray[np.int64]:
    """Indices of structures of several atoms whose next structure has the same atoms in the same order."""
    number, row = structures.n_atoms, structures.row_of_atom
    same = (number > 1) & np.append(np.diff(number) == 0, False)
    atoms = np.flatnonzero(same[row])
    unlike = structures.z[atoms] != structures.z[atoms + number[row[atoms]]]
    return np.flatnonzero(same & (np.bincount(row[atoms], unlike, len(number)) == 0))


def work_between_cells(structures: StructureArrays, power: int = 0) -> tuple[Ratio | None, Ratio | None]:
    """Ratios of energy differences between cells of increasing volume to the work of stress, and of forces.

    The stress is first multiplied by a power of the volume (Angstrom^3). Both ratios come from one regression; None if
    it does not explain the differences, or if a ratio is uncertain.
    """
    known = np.flatnonzero(~np.isnan(structures.stress[:, 0, 0]) & ~np.isnan(structures.energy))
    if len(known) <= _ENOUGH:
        return None, None
    _, group = np.unique(structures.counts(structures.species)[known], axis=0, return_inverse=True)
    volume = np.abs(np.linalg.det(structures.cell))
    sorting = np.lexsort((volume[known], group.reshape(-1)))
    order, group = known[sorting], group.reshape(-1)[sorting]
    work, change = [], []
    pairs = np.stack([order[:-1], order[1:]], axis=1)[group[:-1] == group[1:]]
    for pair in pairs[:: max(1, len(pairs) // _PAIRS)].tolist():
        (cell, larger), (start, end) = structures.cell[pair], map(structures.atoms, pair)
        grown = np.linalg.solve(cell, larger) - np.eye(3)
        if not 1e-4 < np.abs(grown).max() < 0.2:
            continue
        moved = structures.pos[end] - structures.pos[start] @ (np.eye(3) + grown)
        moved -= moved.mean(axis=0)
        by_forces = -0.5 * float(((structures.forces[start] + structures.forces[end]) * moved).sum())
        if not np.isnan(by_forces) and (np.abs(moved).max() > 1.0 or (structures.z[start] != structures.z[end]).any()):
            continue  # atoms crossed a boundary or are permuted
        stress = 0.5 * (volume[pair, None, None] ** (power + 1) * structures.stress[pair]).sum(axis=0)
        work.append((float((stress * grown).sum()), float(np.nan_to_num(by_forces))))
        change.append(float(structures.energy[pair[1]] - structures.energy[pair[0]]))
    if len(work) < _ENOUGH:
        return None, None
    both, total = np.array(work), np.array(change)
    slopes, _, rank, _ = np.linalg.lstsq(both, total, rcond=1e-9)
    left = np.linalg.norm(total - both @ slopes)
    if left > math.sqrt(1 - _SURE**2) * np.linalg.norm(total):
        return None, None
    used = np.flatnonzero(np.linalg.norm(both, axis=0) > 0)
    errors = np.full(2, np.inf)
    if rank == len(used):
        inverse = np.linalg.inv(both[:, used].T @ both[:, used])
        errors[used] = left / math.sqrt(max(len(total) - rank, 1)) * np.sqrt(np.diag(inverse))
    stress, forces = (
        Ratio(float(slope), *_OF_CELLS, f"the work of the {label} between cells", usual=1.6, exact=label == "stress")
        if abs(slope) > _ERRORS * error
        else None
        for slope, error, label in zip(slopes, errors, ("stress", "forces"), strict=True)
    )
    return stress, forces
