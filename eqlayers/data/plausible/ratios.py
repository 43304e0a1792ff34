"""Each label over the same label as other labels, or chemistry, give it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eqlayers.data.plausible.pair_model import VOIGT, PairModel
from eqlayers.data.structures import StructureArrays

FloatArray = NDArray[np.float64]

_SURE = 4.5  # standard deviations of a correlation
_CORRELATED, _FREE = 0.35, 8  # correlations and degrees of freedom from which on a ratio is one
_FACTOR = 3.0  # by which a pair potential may be wrong
_OUTLIER = 6.0  # times the median
_LEAST_VIRIAL = 0.03  # Angstrom, of all forces: less is of second order, of which a pair potential knows nothing
_NONMETALS = (1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 32, 33, 34, 35, 53)
_STIFFNESS = 45.0  # eV Angstrom^2: over the fourth power of the length, the force constant of a bond of nonmetals
_OF_HYDROGEN, _OF_MOLECULES = 4.0, 7.0  # factors between which force constants lie
_BONDS, _SPREAD, _AGREED = 40, 0.025, 0.8  # number of bonds, Angstrom, share of them with one sign
_ENERGY_EXPLAINED, _BONDS_EXPLAINED = 0.5, 0.65  # of the forces: near the minima all are small, for other reasons


@dataclass(frozen=True)
class Ratio:
    """A label over the same label from another source."""

    value: float  # negative where the sign differs
    low: float  # of ratios of right labels
    high: float
    source: str  # the other one, a noun
    usual: float = 2.0  # a factor by which ratios of right labels may well differ from 1
    exact: bool = False  # whether this is physics, not statistics

    def fits(self, expected: float) -> bool:
        """Whether the ratio may be this number."""
        return self.low < self.value / expected < self.high

    @property
    def right(self) -> bool:
        """Whether the ratio may be 1."""
        return self.fits(1.0)


def energy_over_forces(model: PairModel) -> Ratio | None:
    """Energies over the energies of the pair potential, beside composition, bonds and volume; None if uncertain."""
    structures = model.structures
    known = ~np.isnan(structures.energy)
    if model.explained < _ENERGY_EXPLAINED:
        return None
    others = _beside(model, volumes=True)
    weight = 1 / np.sqrt(structures.n_atoms[known, None])
    energy, expected = structures.energy[known, None], model.energy[known, None]
    return _ratio(others[known] * weight, expected * weight, energy * weight, "energies")


def stress_over_forces(model: PairModel, power: int = 0) -> Ratio | None:
    """Stress, times a power of the volume in Angstrom^3, over the stress of the pair potential; None if uncertain.

    Pressures do not count: they depend on the density in ways that no pair potential has.
    """
    structures = model.structures
    volume = np.abs(np.linalg.det(structures.cell))
    known = ~np.isnan(structures.stress[:, 0, 0]) & structures.pbc.all(axis=1)
    size = np.bincount(structures.row_of_atom, np.linalg.norm(np.nan_to_num(structures.forces), axis=1))
    known &= np.linalg.norm(_without_trace(model.virial), axis=1) > _LEAST_VIRIAL * size
    others = _beside(model, volumes=False)
    virial = np.stack([structures.stress[known, a, b] * volume[known] ** (power + 1) for a, b in VOIGT], axis=1)
    weight = 1 / np.sqrt(structures.n_atoms[known, None])
    wanted, expected = (_without_trace(matrix) * weight for matrix in (virial, model.virial[known]))
    return _ratio(others[known] * weight, expected, wanted, "stress")


def _without_trace(virial: FloatArray) -> FloatArray:
    trace = virial[:, :3].mean(axis=1, keepdims=True)
    return np.concatenate([virial[:, :3] - trace, math.sqrt(2.0) * virial[:, 3:]], axis=1)


def stiffness(model: PairModel) -> Ratio | None:
    """Force constants of bonds of nonmetals over the usual ones; None without such bonds.

    At the length r the usual one is about 45 eV Angstrom^2 / r^4. Bonds of hydrogen go before other bonds, which count
    in molecules alone: in crystals of nonmetals a pair potential has no say in single force constants.
    """
    if model.explained < _BONDS_EXPLAINED:
        return None
    z = model.structures.z
    periodic: NDArray[np.bool_] = np.any(model.structures.pbc, axis=1)
    one, other = np.minimum(z[model.first], z[model.second]), np.maximum(z[model.first], z[model.second])
    known = model.bonded & np.isin(one, _NONMETALS) & np.isin(other, _NONMETALS) & (model.first < model.second)
    hydrogen = known & (one == 1) & (other > 1)
    molecules = known & ~periodic[model.structures.row_of_atom[model.first]] & (one > 1)
    for bonds, factor in ((hydrogen, _OF_HYDROGEN), (molecules, _OF_MOLECULES)):
        kinds = (bonds & (model.kind == kind) for kind in np.unique(model.kind[bonds]))
        constants_of_kinds = [constant for of_kind in kinds if (constant := _constant(model, of_kind))]
        if constants_of_kinds:
            constants, numbers = (np.array(column) for column in zip(*sorted(constants_of_kinds), strict=True))
            value = float(constants[np.searchsorted(np.cumsum(numbers), 0.5 * numbers.sum())])
            if numbers[constants * value > 0].sum() < _AGREED * numbers.sum():
                return None
            return Ratio(value, 1 / factor, factor, "the forces of usual bonds")
    return None


def _constant(model: PairModel, bonds: NDArray[np.bool_]) -> tuple[float, int] | None:
    """Force constant of bonds of one kind over the usual one, and their number; None where lengths hardly differ."""
    lengths = model.distance[bonds]
    off = lengths - lengths.mean()
    if len(off) < _BONDS or np.square(off).mean() < _SPREAD**2:
        return None
    return float(off @ model.slope[bonds] / (off @ off) * lengths.mean() ** 4 / _STIFFNESS), len(off)


def _beside(model: PairModel, volumes: bool) -> FloatArray:
    """Columns that energies depend on besides, `[N, columns]`: composition, or each one by itself, bonds and volume."""
    structures = model.structures
    counts = structures.counts(structures.species).astype(np.float64)
    groups, group = np.unique(counts / structures.n_atoms[:, None], axis=0, return_inverse=True)
    group = group.reshape(-1)
    if 3 * len(groups) <= len(structures):
        counts = np.eye(len(groups))[group] * structures.n_atoms[:, None]
    else:
        group = np.zeros_like(group)
    return np.concatenate([counts, model.bonds, *(_volumes(structures, group) if volumes else ())], axis=1)


def _volumes(structures: StructureArrays, group: NDArray[np.int64]) -> list[FloatArray]:
    """Number of atoms times a measure of the volume and its square, for each group of periodic structures."""
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
    """Ratio of a label to its expectation, after others are taken off both; None if uncertain.

    The slope of the label by the expectation is too small by the noise of the expectation, and the inverse of the
    other slope too large. The truth is between both, which are the ratio of the deviations times and over the
    correlation.
    """
    if len(others) <= _FREE:
        return None
    near = ~(_is_far(_left(others, expected)) | _is_far(_left(others, label)))
    others, expected, label = others[near], expected[near], label[near]
    free = len(others) - int(np.linalg.matrix_rank(others)) - 1 if len(others) else 0
    if free < _FREE:
        return None
    x, y = _left(others, expected), _left(others, label)
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


def _is_far(left: FloatArray) -> NDArray[np.bool_]:
    """Rows so large that they would decide alone."""
    sizes = np.linalg.norm(left, axis=1)
    far: NDArray[np.bool_] = sizes > _OUTLIER * np.median(sizes)
    return far


def _left(others: FloatArray, of: FloatArray) -> FloatArray:
    """The part of the columns that others do not explain; 0 if the part is rounding."""
    left: FloatArray = of - others @ np.linalg.lstsq(others, of, rcond=1e-9)[0]
    return left if np.linalg.norm(left) > 1e-9 * np.linalg.norm(of) else np.zeros_like(of)
