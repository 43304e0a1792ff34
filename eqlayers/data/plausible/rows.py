"""Outliers within one label, and placeholders such as 0 for labels that were not computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ase.data import covalent_radii

from eqlayers.atoms.periodic import BoolArray, FloatArray, IntArray
from eqlayers.data.plausible.pair_model import UNEVEN, VOIGT, PairModel, drawn, pairs_within_reach, rescaled, uneven
from eqlayers.data.structures import StructureArrays

_FEW = 3  # fewest structures that a message needs
_DIGITS = 50.0  # a label is not rounded to 0 if typical values exceed this multiple of its last digit
_FEWEST, _FITTED = 10, 500  # fewest energies for a spread; most energies for a fit of atomic energies
_DRAWS = 150  # random subsets from which the robust fit starts
_OVER, _TO_TELL = 6, 5.5  # energies per fitted atomic energy: for the limit LIKE, and at least
_SPREADS = 15.0  # outliers deviate by more than this many median deviations
#: eV an atom: largest differences of energies of one composition, with similar and with any coordination.
LIKE, BOUND = 1.0, 12.0
_SAME_COORDINATION = 0.25  # relative difference of bonds per atom
_ALIKE, _POOR, _FACTOR = 0.75, 0.4, 8.0  # correlations with a pair potential; factor between forces


def named(structures: StructureArrays, rows: IntArray, most: int = 8) -> str:
    """Format files and row numbers of structures for messages, at most ``most`` of each file."""
    parts = []
    for file in dict.fromkeys(structures.file[rows].tolist()):
        idx = structures.idx[rows][structures.file[rows] == file]
        more = f" and {len(idx) - most} more" if len(idx) > most else ""
        parts.append(f"{file} row{'s' * (len(idx) > 1)} {', '.join(map(str, idx[:most]))}{more}")
    return "; ".join(parts)


def forces_of(structures: StructureArrays) -> FloatArray:
    """Root mean square norm of the known forces of each structure, `[N]`; NaN without forces."""
    squares = np.square(structures.forces).sum(axis=1)
    number = np.bincount(structures.row_of_atom, ~np.isnan(squares))
    sums = np.bincount(structures.row_of_atom, np.nan_to_num(squares))
    return np.asarray(np.sqrt(sums / np.where(number > 0, number, np.nan)))


def _digit(values: FloatArray) -> float:
    """Size of the last decimal digit if values have few digits, otherwise about 0."""
    largest = float(np.abs(values).max(initial=0.0))
    steps = np.diff(np.unique(np.round(values / largest, 12))) if largest else np.empty(0)
    return float(steps.min(initial=1.0)) * largest


def repeated_energies(structures: StructureArrays) -> Iterator[str]:
    """Yield a message if structures of different composition or forces share exactly one energy."""
    rows = np.flatnonzero(~np.isnan(structures.energy) & (structures.n_atoms > 1))
    if len(rows) < _FEW:
        return
    values, which, number = np.unique(structures.energy[rows], return_inverse=True, return_counts=True)
    same = rows[which == number.argmax()]
    forces = np.round(np.log(np.nan_to_num(forces_of(structures)[same]) + 1e-3), 1)  # equal for symmetric copies
    unlike = np.unique(np.column_stack([structures.counts(structures.species)[same], forces]), axis=0)
    by_chance = len(rows) * _digit(values - values[0]) / max(np.ptp(values), 1e-300) if len(values) > 1 else 0.0
    if len(unlike) >= _FEW and len(same) > _FEW + 4 * by_chance:
        yield (
            f"{len(same)} of {len(rows)} energies are exactly {values[number.argmax()] + 0.0:g} eV, though "
            f"compositions or forces differ: {named(structures, same)}. Did calculations fail?"
        )


def zero_forces(structures: StructureArrays) -> Iterator[str]:
    """Yield a message if forces are exactly 0 in structures without the symmetry for it."""
    size = forces_of(structures)
    zero, other = np.flatnonzero((size == 0) & (structures.n_atoms > 1)), size[size > 0]
    part = drawn(structures.take(zero)) if len(zero) >= _FEW else None
    if part is None:
        return
    digit = _digit(np.abs(structures.forces[~np.isnan(structures.forces)]))
    force = np.linalg.norm(uneven(part, pairs_within_reach(part))[0], axis=1)
    rows = np.unique(part.row_of_atom[force > 30 * UNEVEN])
    if len(rows) >= _FEW and (not len(other) or np.median(other) > _DIGITS * digit):
        yield (
            f"all forces are 0 in {len(zero)} of {len(size)} structures, and symmetry asks for it in {len(part)} of "
            f"them in {len(part) - len(rows)} alone: {named(part, rows)}. Were they computed? Else leave them out"
        )


def poor_stress(structures: StructureArrays) -> Iterator[str]:
    """Yield a message if stress is 0, or diagonal in sheared structures."""
    rows = np.flatnonzero(~np.isnan(structures.stress[:, 0, 0]) & structures.pbc.all(axis=1))
    if len(rows) < _FEW:
        return
    voigt = np.abs(np.stack([structures.stress[rows, a, b] for a, b in VOIGT], axis=1))
    digit = _digit(voigt)
    zero = ~voigt.any(axis=1)
    if zero.sum() >= _FEW and (zero.all() or np.median(voigt[~zero].max(axis=1)) > _DIGITS * digit):
        yield (
            f"stress is 0 in {zero.sum()} of {len(rows)} periodic structures: {named(structures, rows[zero])}. Was it "
            "computed? Else set data.keys: {stress: null}, or leave it out of these"
        )
        return
    if voigt[:, 3:].any() or np.median(voigt.max(axis=1)) < _DIGITS * digit:
        return
    if (part := drawn(structures.take(rows))) is not None:
        sheared = np.flatnonzero(np.abs(uneven(part, pairs_within_reach(part))[1]).max(axis=1) > UNEVEN)
        if len(sheared) >= _FEW:
            yield (
                f"stress is diagonal in all {len(rows)} structures, though atoms or cells are sheared: "
                f"{named(part, sheared)}. Its components yz, xz and xy are missing"
            )


def per_atom(structures: StructureArrays) -> Iterator[str]:
    """Yield a message if energies do not grow with the number of atoms."""
    rows = np.flatnonzero(~np.isnan(structures.energy) & (structures.n_atoms > 1))
    atoms, counts = structures.n_atoms[rows], structures.counts(structures.species)[rows].astype(np.float64)
    if len(rows) < _FEWEST or len(rows) < 3 * counts.shape[1] or atoms.max() < 1.5 * atoms.min():
        return
    energy, both = structures.energy[rows], (counts, counts / atoms[:, None])
    left = (energy - columns @ _robust_fit(columns, energy, 0) for columns in both)
    whole, shares = (float(np.median(np.abs(rest))) for rest in left)
    if 5 * shares < whole:
        yield (
            f"energies do not grow with the number of atoms: compositions explain them to {shares:.3g} eV as energies "
            f"per atom, to {whole:.3g} eV as energies of {atoms.min()} to {atoms.max()} atoms. The likely cause: they "
            "are divided by the number of atoms. The fix: multiply them by it in the file"
        )


def _robust_fit(columns: FloatArray, label: FloatArray, draws: int = _DRAWS) -> FloatArray:
    """Robust regression (least trimmed squares): coefficients that fit half of the labels best, from random starts."""
    draw, (num, size) = np.random.default_rng(0), columns.shape
    order = np.argsort(label - columns @ np.linalg.lstsq(columns, label, rcond=1e-6)[0])
    starts = [order, order[: num // 2], order[num // 2 :], *(draw.permutation(num)[: size + 1] for _ in range(draws))]
    best, least = np.zeros(size), np.inf
    for rows in starts:
        coefficients: FloatArray = np.linalg.lstsq(columns[rows], label[rows], rcond=1e-6)[0]
        for _ in range(2):  # refit the nearest half
            left = np.abs(label - columns @ coefficients)
            half = left <= np.median(left)
            coefficients = np.linalg.lstsq(columns[half], label[half], rcond=1e-6)[0]
        if (spread := float(np.quantile(np.abs(label - columns @ coefficients), 0.4))) < least:
            best, least = coefficients, spread
    return best


def far_energies(structures: StructureArrays) -> Iterator[str]:
    """Yield a message if energies are outliers with respect to their composition."""
    rows = np.flatnonzero(~np.isnan(structures.energy) & (structures.n_atoms > 1))
    if len(rows) < _FEWEST:
        return
    atoms = structures.n_atoms[rows].astype(np.float64)
    columns, label = structures.counts(structures.species)[rows] / atoms[:, None], structures.energy[rows] / atoms
    plain, _, rank, _ = np.linalg.lstsq(columns, label, rcond=1e-6)
    some = np.random.default_rng(0).permutation(len(rows))[:_FITTED]
    few = len(some) < _OVER * rank
    if len(some) < _TO_TELL * rank or np.abs(label - columns @ plain).max() < LIKE / 4:  # no outliers
        return
    left = label - columns @ _robust_fit(columns[some], label[some])
    order = np.argsort(left)
    cut = int(np.diff(left[order]).argmax()) + 1  # split at the widest gap; the majority is normal
    most = order[cut:] if 2 * cut <= len(rows) else order[:cut]
    left -= np.median(left[most])
    size = forces_of(structures)[rows]
    allowed = np.maximum(np.fmax(size, np.nanmedian(size)) if np.isfinite(size).any() else 0.0, BOUND if few else LIKE)
    far = np.abs(left) > np.maximum(allowed, _SPREADS * np.median(np.abs(left[most])))
    there = columns > 0
    far &= ~there[:, there.sum(axis=0) < 2 * _FEW].any(axis=1)  # atomic energies of rare species are uncertain
    if not far.any() or 2 * far.sum() > len(rows):
        return
    far[far] &= (np.abs(left[far]) > BOUND) | _is_like(structures, rows[far], rows[~far])
    if far.any():
        off = left[far]
        yield (
            f"{far.sum()} of {len(rows)} energies are far from the others of their composition, the farthest by "
            f"{off[np.abs(off).argmax()]:+.3g} eV per atom, where forces and bonds allow {allowed.min():.2g}: "
            f"{named(structures, rows[far])}. Look for another method, settings or units, or calculations that did not "
            "converge"
        )


def _is_like(structures: StructureArrays, rows: IntArray, others: IntArray) -> BoolArray:
    """Mask of structures with about as many bonds per atom as ``others``."""
    draw = np.random.default_rng(0).permutation(others)[:100]
    part = structures.take(np.concatenate([rows, draw]))
    first, second, vector = pairs_within_reach(part)
    bonded = np.linalg.norm(vector, axis=1) < 1.3 * (covalent_radii[part.z[first]] + covalent_radii[part.z[second]])
    bonds = np.bincount(part.row_of_atom[first][bonded], minlength=len(part)) / part.n_atoms
    usual = np.median(bonds[len(rows) :])
    like: BoolArray = np.abs(bonds[: len(rows)] - usual) <= _SAME_COORDINATION * usual
    return like


def unlike_forces(model: PairModel) -> Iterator[str]:
    """Yield a message if forces of a minority differ in sign or size from one pair potential for all."""
    row, num = model.structures.row_of_atom, len(model.structures)
    forces = np.nan_to_num(model.structures.forces)
    if model.explained < _POOR and (other := rescaled(model)) is not None:
        model = other
    pairs = ((forces, model.forces), (forces, forces), (model.forces, model.forces))
    both, labelled, theirs = (np.bincount(row, (a * b).sum(axis=1), num) for a, b in pairs)
    correlation = both / np.sqrt(np.maximum(labelled * theirs, 1e-300))
    least = 1e-4 * np.median(theirs)
    real = (model.structures.n_atoms > 2) & (theirs > least) & (1e4 * labelled > least)
    clear = np.flatnonzero(real & (np.abs(correlation) > _ALIKE))
    if 4 * len(clear) < 3 * num or len(clear) < _FEWEST:
        return
    size = 0.5 * np.log(labelled[clear] / theirs[clear])
    order = np.argsort(size)
    steps = np.diff(size[order])
    sized = np.isin(np.arange(len(clear)), order[: int(steps.argmax()) + 1])
    for split, limit in ((correlation[clear] < 0, 0.0), (sized, np.log(_FACTOR))):
        few = split if 2 * split.sum() <= len(clear) else ~split
        ratio = float(np.median(size[few]) - np.median(size[~few])) if few.any() else 0.0
        if limit and steps.max() > max(limit, 3 * np.std(size[~few])):
            what = f"are {np.exp(ratio):.3g} times the forces of the others"
        elif few.any() and not limit and abs(ratio) < np.log(_FACTOR):
            what = "point against the forces of the others"
        else:
            continue
        yield (
            f"forces of {few.sum()} of {len(clear)} structures {what}, beside what one pair potential gives for all: "
            f"{named(model.structures, clear[few])}. They come from another unit, sign or program"
        )
        return
