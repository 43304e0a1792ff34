"""A linear pair potential fitted to forces, which predicts energies, forces and stress for comparison with labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from ase.data import covalent_radii

from eqlayers.atoms.periodic import BoolArray, FloatArray, IntArray, structure_neighbors
from eqlayers.data.structures import StructureArrays

#: Indices of the components of a symmetric matrix in Voigt order.
VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
# Angstrom: distances minus the sum of the covalent radii; the last is the spacing of knots
_NEAREST, _BONDED, _REACH, _KNOT = -1.0, 0.4, 2.0, 0.25
_CELLS = round((_REACH - _NEAREST) / _KNOT)
_PAIR_TYPES = 12  # pairs of species with separate potentials; rare pairs share the last one
_STRUCTURES, _ATOMS, _LARGEST = 500, 8000, 20000  # limits of a sample: structures, atoms, atoms of a structure
_ROUNDS, _RESCALED = 10, 0.7  # number of fits, and share of the forces that the last one must explain
_ATOM_VOLUME = 1.0  # Angstrom^3: least volume of an atom in matter at any pressure
_RIDGE = 1e-3  # ridge regularisation, relative to the squared norm of each column
#: Threshold of `uneven`, above which a force or shear is not zero by symmetry.
UNEVEN = 2e-3


class Pairs(NamedTuple):
    """Ordered pairs of atoms: indices `[E]` of both, and the vector from first to second in Angstrom, `[E, 3]`."""

    first: IntArray
    second: IntArray
    vector: FloatArray


@dataclass(frozen=True)
class PairModel:
    """A pair potential fitted to forces: its energies, forces and virials, and the pairs of the fit."""

    structures: StructureArrays  # N structures with A atoms, whose forces were fitted
    energy: FloatArray  # [N], without energies of atoms
    forces: FloatArray  # [A, 3]
    virial: FloatArray  # stress times volume, [N, 6]
    bonds: FloatArray  # bonded pairs of each two species, [N, K]
    first: IntArray  # atoms of E ordered pairs, [E]
    second: IntArray
    distance: FloatArray  # Angstrom, [E]
    bonded: BoolArray  # [E]
    pair_type: IntArray  # index of the pair of species, [E]
    slope: FloatArray  # derivative of the potential at each distance, [E]
    explained: float  # explained share of the squared forces, adjusted for the number of coefficients


def drawn(structures: StructureArrays) -> StructureArrays | None:
    """A reproducible sample of up to 500 structures and 8,000 atoms, with forces if any structure has them.

    They have more than one atom each; None without any.
    """
    usable = (structures.n_atoms > 1) & (structures.n_atoms <= _LARGEST) & is_loose(structures)
    if "forces" in structures.labels:
        known = ~np.isnan(structures.forces[:, 0])
        usable &= np.bincount(structures.row_of_atom, known, minlength=len(structures)) > 0
    order = np.random.default_rng(0).permutation(np.flatnonzero(usable))[:_STRUCTURES]
    order = order[np.cumsum(structures.n_atoms[order]) <= max(_ATOMS, structures.n_atoms[order[:1]].sum())]
    return structures.take(np.sort(order)) if len(order) else None


def is_loose(structures: StructureArrays) -> BoolArray:
    """Mask `[N]` of structures with at least 1 Angstrom^3 per atom; denser ones would have too many pairs."""
    low, high = (extreme.reduceat(structures.pos, structures.starts) for extreme in (np.minimum, np.maximum))
    cell = np.abs(np.linalg.det(structures.cell))
    volume = np.where(structures.pbc.all(axis=1), cell, np.prod(high - low + _REACH, axis=1))
    loose: BoolArray = volume > _ATOM_VOLUME * structures.n_atoms
    return loose


def fitted(structures: StructureArrays, pairs: Pairs) -> PairModel | None:
    """A pair potential fitted to forces by least squares, with splines of the distance for each pair of species.

    Structures are weighted by the inverse of the sum of their own and the median size of forces. None without pairs,
    or if all forces are 0 or zero by symmetry.
    """
    first, second, vector = pairs
    unlike = np.linalg.norm(uneven(structures, pairs)[0], axis=1) > UNEVEN
    if not unlike.any():
        return None
    distance = np.linalg.norm(vector, axis=1)
    beyond = distance - covalent_radii[structures.z[first]] - covalent_radii[structures.z[second]]
    pair_type, types = _pair_types(structures.z[first], structures.z[second])
    row = structures.row_of_atom
    values, slopes, column, columns = _splines(beyond, pair_type, types)
    forces = _forces(second, vector / distance[:, None], slopes, column, (len(row), columns))
    known = ~np.isnan(structures.forces[:, 0]) & unlike
    coefficients, explained = _least_squares(structures, row, known, forces)
    if coefficients is None:
        return None
    value, slope = ((part * coefficients[column]).sum(axis=1) for part in (values, slopes))
    outer = np.stack([vector[:, a] * vector[:, b] / distance for a, b in VOIGT], axis=1)
    of, bonded = row[first], beyond < _BONDED
    energy = np.asarray(0.5 * np.bincount(of, weights=value, minlength=len(structures)), dtype=np.float64)
    num = len(structures)
    return PairModel(
        structures,
        energy=energy,
        forces=forces @ coefficients,
        virial=np.stack([0.5 * np.bincount(of, weights=slope * part, minlength=num) for part in outer.T], axis=1),
        bonds=np.stack([0.5 * np.bincount(of[bonded & (pair_type == k)], minlength=num) for k in range(types)], axis=1),
        first=first,
        second=second,
        distance=distance,
        bonded=bonded,
        pair_type=pair_type,
        slope=slope,
        explained=explained,
    )


def rescaled(model: PairModel) -> PairModel | None:
    """Refit with an unknown factor (of any sign) on the forces of each structure; None if it does not explain them."""
    structures, pairs = model.structures, pairs_within_reach(model.structures)
    row, forces = structures.row_of_atom, np.nan_to_num(structures.forces)
    best = model
    for step in range(_ROUNDS):
        both, labelled = (np.bincount(row, (forces * each).sum(axis=1)) for each in (best.forces, forces))
        size = np.abs(both) if step > _ROUNDS - 3 else np.sqrt(labelled)  # the first rounds fit signs only
        factor = np.sign(both) * size / np.where(labelled > 0, labelled, np.inf)
        factor /= np.median(np.abs(factor)) + 1e-300
        if (other := fitted(replace(structures, forces=factor[row, None] * structures.forces), pairs)) is None:
            return None
        best = other
    return replace(best, structures=structures) if best.explained > _RESCALED else None


def pairs_within_reach(structures: StructureArrays) -> Pairs:
    """Ordered pairs up to 2 Angstrom beyond the sum of radii; none in structures with coinciding atoms."""
    radii, pos, cell = covalent_radii[structures.z], structures.pos, structures.cell
    reach = 2 * np.maximum.reduceat(radii, structures.starts) + _REACH
    parts = []
    for rows, (src, dst), shifts, _ in structure_neighbors(pos, structures.n_atoms, cell, structures.pbc, reach):
        vector = pos[dst] - pos[src] + shifts @ cell[rows[0]]  # several rows have no shifts
        near = np.linalg.norm(vector, axis=1) < radii[src] + radii[dst] + _REACH
        parts.append((src[near], dst[near], vector[near]))
    return Pairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def uneven(structures: StructureArrays, pairs: Pairs) -> tuple[FloatArray, FloatArray]:
    """Dimensionless forces `[A, 3]` and shear `[N, 3]` of a soft pair potential, which are zero only by symmetry."""
    first, second, vector = pairs
    z, length = structures.z, np.linalg.norm(vector, axis=1)
    reach = np.clip(covalent_radii[z[first]] + covalent_radii[z[second]] + _REACH - length, 0.0, None)
    size = (1 + 0.1 * z[first]) * (1 + 0.1 * z[second]) * reach**2 / 10  # different for each pair of elements
    unit = vector / length[:, None]
    force: FloatArray = np.stack([np.bincount(second, size * unit[:, a], len(z)) for a in range(3)], axis=1)
    row, num = structures.row_of_atom[first], len(structures)
    scale = np.maximum(np.bincount(row, size, num), 1e-300)
    shear = np.stack([np.bincount(row, size * unit[:, a] * unit[:, b], num) / scale for a, b in VOIGT[3:]], axis=1)
    return force, shear


def _pair_types(first: IntArray, second: IntArray) -> tuple[IntArray, int]:
    """Index of the pair of species for each pair of atoms, by descending frequency, and the number of indices."""
    code = 128 * np.minimum(first, second) + np.maximum(first, second)
    _, codes, sizes = np.unique(code, return_inverse=True, return_counts=True)
    rank = np.empty_like(sizes)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return np.minimum(rank[codes.reshape(-1)], _PAIR_TYPES - 1), min(len(sizes), _PAIR_TYPES)


def _splines(beyond: FloatArray, pair_type: IntArray, types: int) -> tuple[FloatArray, FloatArray, IntArray, int]:
    """Nonzero B-splines at each distance: values, slopes, columns `[E, 4]`; number of columns, the last for others."""
    position = np.clip((beyond - _NEAREST) / _KNOT, 0.0, _CELLS - 1e-9)
    cell = position.astype(np.int64)
    x = position - cell
    values = np.stack([(1 - x) ** 3, 3 * x**3 - 6 * x**2 + 4, -3 * x**3 + 3 * x**2 + 3 * x + 1, x**3], axis=1) / 6
    slopes = np.stack([-((1 - x) ** 2), 3 * x**2 - 4 * x, -3 * x**2 + 2 * x + 1, x**2], axis=1) / (2 * _KNOT)
    index = cell[:, None] + np.arange(4)
    last = types * _CELLS
    column = np.where(index < _CELLS, pair_type[:, None] * _CELLS + index, last)
    return np.where(index < _CELLS, values, 0.0), np.where(index < _CELLS, slopes, 0.0), column, last + 1


def _forces(
    second: IntArray, unit: FloatArray, slopes: FloatArray, column: IntArray, shape: tuple[int, int]
) -> FloatArray:
    """Derivative of all forces by the coefficients, `[A, 3, columns]`."""
    forces = np.zeros((3, shape[0] * shape[1]))
    for spline in range(4):
        index = second * shape[1] + column[:, spline]
        for axis in range(3):
            weights = -slopes[:, spline] * unit[:, axis]
            forces[axis] += np.bincount(index, weights=weights, minlength=shape[0] * shape[1])
    return forces.reshape(3, *shape).transpose(1, 0, 2)


def _least_squares(
    structures: StructureArrays, row: IntArray, known: BoolArray, forces: FloatArray
) -> tuple[FloatArray | None, float]:
    """Coefficients, and the share of the squared known forces that they explain."""
    target = np.where(known[:, None], structures.forces, 0.0)
    number = np.maximum(np.bincount(row, weights=known, minlength=len(structures)), 1)
    size = np.sqrt(np.bincount(row, weights=np.square(target).sum(axis=1)) / number)
    if not size.any():
        return None, 0.0
    usual = size + np.median(size)
    weight = (known / np.where(usual > 0, usual, np.inf)[row])[:, None]
    y = (target * weight).reshape(-1)
    matrix = (forces * weight[..., None]).reshape(len(y), -1)
    square = matrix.T @ matrix
    scale = np.sqrt(np.diag(square))
    used = scale > 1e-8 * scale.max()
    normal = square[np.ix_(used, used)] / np.outer(scale[used], scale[used]) + _RIDGE * np.eye(int(used.sum()))
    coefficients = np.zeros(len(scale))
    coefficients[used] = np.linalg.solve(normal, (matrix.T @ y)[used] / scale[used]) / scale[used]
    left = y - matrix @ coefficients
    free = 3 * int(known.sum()) - int(used.sum())
    share = float(left @ left) / float(y @ y) * 3 * float(known.sum()) / free if free > 0 else 1.0
    return coefficients, 1.0 - share
