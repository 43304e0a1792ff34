"""Checks of order: labels that belong to a neighbouring frame, permuted axes of cells, permuted shear components."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from eqlayers.data.plausible.pair_model import VOIGT, PairModel, Pairs, drawn, fitted, pairs_within_reach, uneven
from eqlayers.data.plausible.ratios import energy_over_forces, with_same_next, work_of_forces
from eqlayers.data.structures import StructureArrays

_SOME, _FEWEST = 60, 10  # most and fewest structures of a second fit
# largest share of the misfit that a better order leaves; shares of forces explained in it, and in a right order
_LEFT, _EXPLAINED, _GOOD = 0.5, 0.5, 0.75
_LEFT_BY_CELLS = 0.3  # as _LEFT for cells: by chance, wrong cells of few structures leave half of the misfit
_SURER = 5.0  # standard deviations by which the correlation of another order must be larger
_AXES = [axes for axes in itertools.permutations(range(3)) if axes != (0, 1, 2)]


def other_frames(structures: StructureArrays, model: PairModel | None, related: bool) -> Iterator[str]:
    """Yield a message if labels fit another frame; ``related``: energies agree with forces of their own frame."""
    same = with_same_next(structures)
    good = model is not None and model.explained > _GOOD
    if len(same) < _FEWEST or "forces" not in structures.labels or (good and related):
        return
    here = 0.0 if model is None else model.explained
    some = np.sort(np.random.default_rng(0).permutation(len(same))[:_SOME])
    for step, word, moved in ((-1, "after", "early"), (1, "before", "late")):
        rows = same + (step < 0)
        few, other = structures.take(rows[some]), structures.take(rows[some] + step)
        labels, reason = "", ""
        there = None if good else _model(replace(few, forces=other.forces))
        if there is not None and there.explained > _EXPLAINED and 1 - there.explained < _LEFT * (1 - here):
            labels, reason = "forces", f"a pair potential explains {there.explained:.0%} of them there, {here:.0%} here"
        elif "energy" in structures.labels and not related:
            energies = replace(structures.take(rows), energy=structures.energy[rows + step])
            fit = None if (ratio := work_of_forces(energies)) else _model(energies.take(some))
            ratio = energy_over_forces(fit) if fit is not None else ratio
            if ratio is not None and ratio.right:
                labels, reason = "energies", f"there they are {ratio.value:.3g} times {ratio.source}, here unrelated"
        if labels:
            yield (
                f"{labels} fit the positions of another frame: {reason}. The likely cause: they are labels of the "
                f"frame {word}. The fix: move them in the file, which has them one frame too {moved}"
            )
            return


def _model(structures: StructureArrays) -> PairModel | None:
    part = drawn(structures)
    return None if part is None else fitted(part, pairs_within_reach(part))


def other_axes(structures: StructureArrays, model: PairModel | None) -> Iterator[str]:
    """Yield a message if transposed cells, or cells with permuted axes, explain the forces better."""
    periodic = np.flatnonzero(structures.pbc.all(axis=1))
    if len(periodic) < _FEWEST or (model is not None and model.explained > _GOOD):
        return
    part = structures.take(periodic[:_SOME])
    orders = [("transposed: its vectors are columns", part.cell.transpose(0, 2, 1))]
    orders += [("in another order of x, y and z than positions", part.cell[:, :, axes]) for axes in _AXES]
    orders = [(text, cell) for text, cell in orders if not np.allclose(cell, part.cell, atol=1e-2)]
    for step in (3, 1):  # every third structure is enough to reject most orders
        few = part.take(np.arange(0, len(part), step))
        fits = [_model(few), *(_model(replace(few, cell=cell[::step])) for _, cell in orders)]
        here, *shares = (fit.explained if fit else 0.0 for fit in fits)
        if max(shares, default=0.0) < _EXPLAINED:
            return
        good = [share > _EXPLAINED and 1 - share < _LEFT_BY_CELLS * (1 - here) for share in shares]
        orders = list(itertools.compress(orders, good))
    for (text, _), share in zip(orders, itertools.compress(shares, good), strict=True):
        yield (
            f"a pair potential explains {here:.0%} of the forces by these cells, {share:.0%} by others. The likely "
            f"cause: the cell is {text}. The fix: correct it in the file"
        )
        return


def other_shear(part: StructureArrays | None, pairs: Pairs | None) -> Iterator[str]:
    """Yield a message if shear components of the stress of a sample ``part`` are permuted; ``pairs`` are its pairs."""
    if part is None or pairs is None:
        return
    known = ~np.isnan(part.stress[:, 0, 0]) & part.pbc.all(axis=1)
    if known.sum() < _FEWEST:
        return
    expected, part = uneven(part, pairs)[1][known], part.take(np.flatnonzero(known))
    labelled = np.stack([part.stress[:, a, b] for a, b in VOIGT[3:]], axis=1)
    labelled, expected = (x / np.maximum(np.linalg.norm(x, axis=1), 1e-300)[:, None] for x in (labelled, expected))
    scale = np.sqrt(np.square(expected).mean(axis=0)) * np.sqrt(np.square(labelled).mean(axis=0))[:, None]
    if not scale.all():
        return
    alike = labelled.T @ expected / len(part) / scale
    alike *= np.sign(alike.flat[np.abs(alike).argmax()])
    best = max(_AXES, key=lambda axes: alike[range(3), axes].sum())
    means = np.trace(alike) / 3, alike[range(3), best].mean()
    if means[1] > _EXPLAINED and means[1] - means[0] > _SURER / np.sqrt(3 * len(part)):
        names = ("yz", "xz", "xy")
        yield (
            f"components of the stress follow the shear of cells and bonds in another order, with a correlation of "
            f"{means[1]:.2f} in place of {means[0]:.2f}. The likely cause: yz, xz and xy of the file are "
            f"{', '.join(names[axis] for axis in best)}. The fix: write them as yz, xz, xy, or all nine numbers"
        )
