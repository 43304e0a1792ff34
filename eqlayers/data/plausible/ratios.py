"""Ratios of labels to estimates of them: by a pair potential, by usual bonds, and by the work of forces and stress."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eqlayers.atoms.periodic import BoolArray, FloatArray, IntArray
from eqlayers.data.plausible.pair_model import VOIGT, PairModel
from eqlayers.data.structures import StructureArrays

_SURE = 4.5  # least correlation in standard deviations
_CORRELATED, _FREE = 0.35, 8  # least correlation, and least degrees of freedom, of a ratio
_FACTOR = 3.0  # error factor of a pair potential
_OUTLIER = 6.0  # a row is an outlier beyond this multiple of the median
_LEAST_VIRIAL = 0.03  # Angstrom times all forces: a pair potential does not describe smaller virials
_NONMETALS = (1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 32, 33, 34, 35, 53)
_STIFFNESS = 45.0  # eV Angstrom^2: force constant of a bond of nonmetals times the fourth power of its length
_OF_HYDROGEN, _OF_MOLECULES = 4.0, 7.0  # factors within which force constants agree with this
_BONDS, _SPREAD, _AGREED = 40, 0.025, 0.8  # fewest bonds, least spread in Angstrom, share with one sign
_ENERGY_EXPLAINED, _BONDS_EXPLAINED = 0.5, 0.65  # least explained share of the forces


@dataclass(frozen=True)
class Ratio:
    """Ratio of a label to an estimate of it from another source."""

    value: float  # negative if signs differ
    low: float  # range of the ratio for right labels
    high: float
    source: str  # the estimate, a noun
    usual: float = 2.0  # typical factor by which ratios of right labels differ from 1
    exact: bool = False  # whether the relation is a physical law

    def fits(self, expected: float) -> bool:
        """Whether the ratio is consistent with an expected value."""
        return self.low < self.value / expected < self.high

    @property
    def right(self) -> bool:
        """Whether the ratio is consistent with 1."""
        return self.fits(1.0)


def energy_over_forces(model: PairModel) -> Ratio | None:
    """Ratio of energies to energies of the pair potential, beyond composition, bonds and volume; None if uncertain."""
    structures = model.structures
    known = ~np.isnan(structures.energy)
    if model.explained < _ENERGY_EXPLAINED:
        return None
    others = _regressors(model, volumes=True)
    weight = 1 / np.sqrt(structures.n_atoms[known, None])
    energy, expected = structures.energy[known, None], model.energy[known, None]
    return _ratio(others[known] * weight, expected * weight, energy * weight, "energies")


def stress_over_forces(model: PairModel, power: int = 0) -> Ratio | None:
    """Ratio of deviatoric stress times a power of the volume to the stress of the pair potential; None if uncertain."""
    structures = model.structures
    volume = np.abs(np.linalg.det(structures.cell))
    known = ~np.isnan(structures.stress[:, 0, 0]) & structures.pbc.all(axis=1)
    size = np.bincount(structures.row_of_atom, np.linalg.norm(np.nan_to_num(structures.forces), axis=1))
    known &= np.linalg.norm(_deviator(model.virial), axis=1) > _LEAST_VIRIAL * size
    others = _regressors(model, volumes=False)
    virial = np.stack([structures.stress[known, a, b] * volume[known] ** (power + 1) for a, b in VOIGT], axis=1)
    weight = 1 / np.sqrt(structures.n_atoms[known, None])
    label, expected = (_deviator(matrix) * weight for matrix in (virial, model.virial[known]))
    return _ratio(others[known] * weight, expected, label, "stress")


def _deviator(virial: FloatArray) -> FloatArray:
    """Traceless part of Voigt vectors, scaled to the norm of the matrix."""
    trace = virial[:, :3].mean(axis=1, keepdims=True)
    return np.concatenate([virial[:, :3] - trace, math.sqrt(2.0) * virial[:, 3:]], axis=1)


def stiffness(model: PairModel) -> Ratio | None:
    """Ratio of force constants of bonds of nonmetals to usual ones, 45 eV Angstrom^2 / r^4; None without such bonds.

    Bonds of hydrogen are used if there are any, otherwise bonds in molecules: in crystals of nonmetals, a pair
    potential does not determine single force constants.
    """
    if model.explained < _BONDS_EXPLAINED:
        return None
    z = model.structures.z
    periodic: BoolArray = np.any(model.structures.pbc, axis=1)
    light, heavy = np.minimum(z[model.first], z[model.second]), np.maximum(z[model.first], z[model.second])
    known = model.bonded & np.isin(light, _NONMETALS) & np.isin(heavy, _NONMETALS) & (model.first < model.second)
    hydrogen = known & (light == 1) & (heavy > 1)
    molecules = known & ~periodic[model.structures.row_of_atom[model.first]] & (light > 1)
    for bonds, factor in ((hydrogen, _OF_HYDROGEN), (molecules, _OF_MOLECULES)):
        masks = (bonds & (model.pair_type == pair_type) for pair_type in np.unique(model.pair_type[bonds]))
        by_type = [constant for mask in masks if (constant := _constant(model, mask))]
        if by_type:
            constants, numbers = (np.array(column) for column in zip(*sorted(by_type), strict=True))
            value = float(constants[np.searchsorted(np.cumsum(numbers), 0.5 * numbers.sum())])
            if numbers[constants * value > 0].sum() < _AGREED * numbers.sum():
                return None
            return Ratio(value, 1 / factor, factor, "the forces of usual bonds")
    return None


def _constant(model: PairModel, bonds: BoolArray) -> tuple[float, int] | None:
    """Ratio of the force constant of some bonds to the usual one, and their number; None if lengths are too similar."""
    lengths = model.distance[bonds]
    off = lengths - lengths.mean()
    if len(off) < _BONDS or np.square(off).mean() < _SPREAD**2:
        return None
    return float(off @ model.slope[bonds] / (off @ off) * lengths.mean() ** 4 / _STIFFNESS), len(off)


def _regressors(model: PairModel, volumes: bool) -> FloatArray:
    """Regressors of energies besides the pair potential, `[N, columns]`: composition, bonds and optionally volume."""
    structures = model.structures
    counts = structures.counts(structures.species).astype(np.float64)
    groups, group = np.unique(counts / structures.n_atoms[:, None], axis=0, return_inverse=True)
    group = group.reshape(-1)
    if 3 * len(groups) <= len(structures):
        counts = np.eye(len(groups))[group] * structures.n_atoms[:, None]
    else:
        group = np.zeros_like(group)
    return np.concatenate([counts, model.bonds, *(_volumes(structures, group) if volumes else ())], axis=1)


def _volumes(structures: StructureArrays, group: IntArray) -> list[FloatArray]:
    """Regressors for each group of periodic structures: atoms times relative excess volume, and its square."""
    periodic = structures.pbc.all(axis=1)
    if not periodic.any():
        return []
    counts = structures.counts(structures.species).astype(np.float64)
    volume = np.where(periodic, np.abs(np.linalg.det(structures.cell)), 0.0)
    usual = counts @ np.linalg.lstsq(counts[periodic], volume[periodic], rcond=None)[0]
    columns = []
    for each in np.unique(group[periodic]).tolist():
        members = (group == each) & periodic & (usual > 0)
        x = np.where(members, volume / np.where(members, usual, 1.0) - 1.0, 0.0)
        if np.abs(x).max() > 1e-3:
            columns.append(structures.n_atoms[:, None] * np.stack([x, x**2], axis=1))
    return columns


def _ratio(others: FloatArray, expected: FloatArray, label: FloatArray, noun: str) -> Ratio | None:
    """Ratio of a label to its expectation, after regression of both on ``others``; None if uncertain.

    It is the ratio of the standard deviations, with the sign of the correlation: noise makes one regression slope too
    small, and the inverse of the other too large, by the correlation.
    """
    if len(others) <= _FREE:
        return None
    near = ~(_is_far(_residual(others, expected)) | _is_far(_residual(others, label)))
    others, expected, label = others[near], expected[near], label[near]
    free = len(others) - int(np.linalg.matrix_rank(others)) - 1 if len(others) else 0
    if free < _FREE:
        return None
    x, y = _residual(others, expected), _residual(others, label)
    if not x.any() or not y.any():
        return None
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    correlation = float((x * y).sum()) / size
    sure = abs(correlation) * math.sqrt(free / max(1 - correlation**2, 1e-12))
    if sure < _SURE or abs(correlation) < _CORRELATED:
        return None
    value = math.copysign(float(np.linalg.norm(y) / np.linalg.norm(x)), correlation)
    width = _FACTOR / abs(correlation)
    source = f"the {noun} of a pair potential fitted to the forces of {len(x):,} structures"
    return Ratio(value, 1 / width, width, source)


def _is_far(left: FloatArray) -> BoolArray:
    """Mask of outlier rows."""
    sizes = np.linalg.norm(left, axis=1)
    far: BoolArray = sizes > _OUTLIER * np.median(sizes)
    return far


def _residual(others: FloatArray, of: FloatArray) -> FloatArray:
    """Residual of columns after regression on ``others``; exactly 0 if it is rounding."""
    left: FloatArray = of - others @ np.linalg.lstsq(others, of, rcond=1e-9)[0]
    return left if np.linalg.norm(left) > 1e-9 * np.linalg.norm(of) else np.zeros_like(of)


_NEAR = 0.35  # largest displacement in Angstrom, within which the range _SLOPES holds
_PAIRS, _ENOUGH = 2000, 8  # most and fewest pairs of structures
_SLOPES = (0.55, 1.5)  # range of the ratio for right labels; anharmonic energies reach 0.74
_CHANCE, _SMALL = 6.0, 0.04  # standard errors that widen the range for few pairs; relative error of many pairs
_OF_CELLS = (0.4, 2.5)  # range of the ratio between cells
_ERRORS = 10.0  # least slope in standard errors
_RELATED = 0.9  # least correlation


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
    if len(work) < _ENOUGH or abs(correlation) < _RELATED:
        return None
    error = math.sqrt((1 - min(correlation**2, 1.0)) / (len(work) - 1)) / abs(correlation)  # relative
    wider = 1 + _CHANCE * max(0.0, error - _SMALL)
    low, high = _SLOPES[0] / wider, _SLOPES[1] * wider
    slope = float(work @ change / (work @ work))
    return Ratio(slope, low, high, "the work of the forces between frames", usual=1.4, exact=True)


def with_same_next(structures: StructureArrays) -> IntArray:
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
    if left > math.sqrt(1 - _RELATED**2) * np.linalg.norm(total):
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
