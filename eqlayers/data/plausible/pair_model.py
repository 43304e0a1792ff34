"""A pair potential for any structures, linear in its coefficients, by which labels of one kind foretell the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray

from eqlayers.atoms.periodic import structure_neighbors
from eqlayers.data.structures import StructureArrays

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

#: Components of symmetric matrices, in the order of Voigt.
VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
_NEAREST, _BONDED, _REACH, _KNOT = -1.0, 0.4, 2.0, 0.25  # Angstrom beyond the sum of the covalent radii; of knots
_CELLS = round((_REACH - _NEAREST) / _KNOT)
_KINDS = 12  # pairs of species with a potential of their own; the rare ones share the last
_STRUCTURES, _ATOMS, _LARGEST = 500, 8000, 20000  # that are drawn at most
_ROUNDS, _RESCALED = 10, 0.7  # of fits; share of the forces that the last one must explain
_ROOM = 1.0  # Angstrom^3 of an atom
_RIDGE = 1e-3  # of the square of each column
#: What `uneven` gives at least where symmetry leaves a force or shear that is more than noise.
UNEVEN = 2e-3


class Pairs(NamedTuple):
    """Two atoms, `[E]` each, and the vector in Angstrom from the first to the second, `[E, 3]`."""

    first: IntArray
    second: IntArray
    vector: FloatArray


@dataclass(frozen=True)
class PairModel:
    """Energies, forces and virials of a pair potential fitted to forces, and the pairs that it was fitted to."""

    structures: StructureArrays  # N with A atoms, to whose forces it was fitted
    energy: FloatArray  # [N], without energies of atoms
    forces: FloatArray  # [A, 3]
    virial: FloatArray  # stress times volume, [N, 6]
    bonds: FloatArray  # bonded pairs of each two species, [N, K]
    first: IntArray  # atoms of E ordered pairs, [E]
    second: IntArray
    distance: FloatArray  # Angstrom, [E]
    bonded: NDArray[np.bool_]  # [E]
    kind: IntArray  # which two species, [E]
    slope: FloatArray  # derivative of the potential at each distance, [E]
    explained: float  # share of the squares of the forces, for the number of coefficients


def drawn(structures: StructureArrays) -> StructureArrays | None:
    """Up to 500 structures with up to 8,000 atoms together, the same ones at each call; with forces, if any have them.

    Returns:
        Structures of more than one atom each; None without any.
    """
    usable = (structures.n_atoms > 1) & (structures.n_atoms <= _LARGEST) & is_loose(structures)
    if "forces" in structures.labels:
        known = ~np.isnan(structures.forces[:, 0])
        usable &= np.bincount(structures.row_of_atom, known, minlength=len(structures)) > 0
    order = np.random.default_rng(0).permutation(np.flatnonzero(usable))[:_STRUCTURES]
    order = order[np.cumsum(structures.n_atoms[order]) <= max(_ATOMS, structures.n_atoms[order[:1]].sum())]
    return structures.take(np.sort(order)) if len(order) else None


def is_loose(structures: StructureArrays) -> NDArray[np.bool_]:
    """Whether atoms have the volume that matter has at any pressure, `[N]`; elsewhere there would be too many pairs."""
    low, high = (extreme.reduceat(structures.pos, structures.starts) for extreme in (np.minimum, np.maximum))
    cell = np.abs(np.linalg.det(structures.cell))
    room = np.where(structures.pbc.all(axis=1), cell, np.prod(high - low + _REACH, axis=1))
    loose: NDArray[np.bool_] = room > _ROOM * structures.n_atoms
    return loose


def fitted(structures: StructureArrays, pairs: Pairs) -> PairModel | None:
    """The pair potential of least squares of the forces, in splines of the distance for each pair of species.

    A structure counts by one over its own and the median size of forces, so that no structure decides alone.

    Returns:
        The fit; None where no two atoms are near each other, or all forces are 0, perhaps by symmetry but for noise.
    """
    first, second, vector = pairs
    unlike = _norm(uneven(structures, pairs)[0]) > UNEVEN
    if not unlike.any():
        return None
    distance = _norm(vector)
    beyond = distance - covalent_radii[structures.z[first]] - covalent_radii[structures.z[second]]
    kind, kinds = _kinds(structures.z[first], structures.z[second])
    row = structures.row_of_atom
    values, slopes, column, columns = _splines(beyond, kind, kinds)
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
        bonds=np.stack([0.5 * np.bincount(of[bonded & (kind == k)], minlength=num) for k in range(kinds)], axis=1),
        first=first,
        second=second,
        distance=distance,
        bonded=bonded,
        kind=kind,
        slope=slope,
        explained=explained,
    )


def rescaled(model: PairModel) -> PairModel | None:
    """The fit to forces of which each structure's have a factor of their own, perhaps negative, if it explains them."""
    structures, pairs = model.structures, pairs_within_reach(model.structures)
    row, forces = structures.row_of_atom, np.nan_to_num(structures.forces)
    best = model
    for step in range(_ROUNDS):
        both, labelled = (np.bincount(row, (forces * each).sum(axis=1)) for each in (best.forces, forces))
        size = np.abs(both) if step > _ROUNDS - 3 else np.sqrt(labelled)  # at first, signs of forces of one size
        factor = np.sign(both) * size / np.where(labelled > 0, labelled, np.inf)
        factor /= np.median(np.abs(factor)) + 1e-300
        if (other := fitted(replace(structures, forces=factor[row, None] * structures.forces), pairs)) is None:
            return None
        best = other
    return replace(best, structures=structures) if best.explained > _RESCALED else None


def pairs_within_reach(structures: StructureArrays) -> Pairs:
    """Ordered pairs of atoms up to 2 Angstrom beyond the sum of their covalent radii.

    A structure with atoms at one place has no pairs: it is an error of the structures that are used.
    """
    radii, pos, cell = covalent_radii[structures.z], structures.pos, structures.cell
    reach = 2 * np.maximum.reduceat(radii, structures.starts) + _REACH
    parts = []
    for rows, (src, dst), shifts, _ in structure_neighbors(pos, structures.n_atoms, cell, structures.pbc, reach):
        vector = pos[dst] - pos[src] + shifts @ cell[rows[0]]  # all shifts are 0 where there are several rows
        near = np.linalg.norm(vector, axis=1) < radii[src] + radii[dst] + _REACH
        parts.append((src[near], dst[near], vector[near]))
    return Pairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def uneven(structures: StructureArrays, pairs: Pairs) -> tuple[FloatArray, FloatArray]:
    """Force on each atom, `[A, 3]`, and shear, `[N, 3]`, of one soft pair potential: 0 where symmetry makes them so.

    Both are without unit; displacements by 0.01 Angstrom make some 0.005 of a force.
    """
    first, second, vector = pairs
    z, length = structures.z, _norm(vector)
    reach = np.clip(covalent_radii[z[first]] + covalent_radii[z[second]] + _REACH - length, 0.0, None)
    size = (1 + 0.1 * z[first]) * (1 + 0.1 * z[second]) * reach**2 / 10  # another one for each two elements
    unit = vector / length[:, None]
    force: FloatArray = np.stack([np.bincount(second, size * unit[:, a], len(z)) for a in range(3)], axis=1)
    row, num = structures.row_of_atom[first], len(structures)
    scale = np.maximum(np.bincount(row, size, num), 1e-300)
    shear = np.stack([np.bincount(row, size * unit[:, a] * unit[:, b], num) / scale for a, b in VOIGT[3:]], axis=1)
    return force, shear


def _norm(vectors: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.norm(vectors, axis=1))


def _kinds(first: IntArray, second: IntArray) -> tuple[IntArray, int]:
    """Pair of species of each pair, the most frequent ones first, and how many there are."""
    code = 128 * np.minimum(first, second) + np.maximum(first, second)
    _, kind, sizes = np.unique(code, return_inverse=True, return_counts=True)
    rank = np.empty_like(sizes)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return np.minimum(rank[kind.reshape(-1)], _KINDS - 1), min(len(sizes), _KINDS)


def _splines(beyond: FloatArray, kind: IntArray, kinds: int) -> tuple[FloatArray, FloatArray, IntArray, int]:
    """The four cubic B-splines at a distance: values and slopes `[E, 4]`, columns `[E, 4]`, and their number.

    The last column gathers the splines that the potential does not have.
    """
    place = np.clip((beyond - _NEAREST) / _KNOT, 0.0, _CELLS - 1e-9)
    cell = place.astype(np.int64)
    x = place - cell
    values = np.stack([(1 - x) ** 3, 3 * x**3 - 6 * x**2 + 4, -3 * x**3 + 3 * x**2 + 3 * x + 1, x**3], axis=1) / 6
    slopes = np.stack([-((1 - x) ** 2), 3 * x**2 - 4 * x, -3 * x**2 + 2 * x + 1, x**2], axis=1) / (2 * _KNOT)
    index = cell[:, None] + np.arange(4)
    last = kinds * _CELLS
    column = np.where(index < _CELLS, kind[:, None] * _CELLS + index, last)
    return np.where(index < _CELLS, values, 0.0), np.where(index < _CELLS, slopes, 0.0), column, last + 1


def _forces(
    second: IntArray, unit: FloatArray, slopes: FloatArray, column: IntArray, shape: tuple[int, int]
) -> FloatArray:
    """Forces by coefficient, `[A, 3, columns]`."""
    forces = np.zeros((3, shape[0] * shape[1]))
    for spline in range(4):
        place = second * shape[1] + column[:, spline]
        for axis in range(3):
            weights = -slopes[:, spline] * unit[:, axis]
            forces[axis] += np.bincount(place, weights=weights, minlength=shape[0] * shape[1])
    return forces.reshape(3, *shape).transpose(1, 0, 2)


def _least_squares(
    structures: StructureArrays, row: IntArray, known: NDArray[np.bool_], forces: FloatArray
) -> tuple[FloatArray | None, float]:
    """Coefficients, and the share of the squares of known forces that they explain."""
    wanted = np.where(known[:, None], structures.forces, 0.0)
    number = np.maximum(np.bincount(row, weights=known, minlength=len(structures)), 1)
    size = np.sqrt(np.bincount(row, weights=np.square(wanted).sum(axis=1)) / number)
    if not size.any():
        return None, 0.0
    usual = size + np.median(size)
    weight = (known / np.where(usual > 0, usual, np.inf)[row])[:, None]
    y = (wanted * weight).reshape(-1)
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
