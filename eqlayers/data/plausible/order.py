"""Labels that fit other frames, cells with other axes, and shear in another order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from eqlayers.data.plausible.pair_model import VOIGT, PairModel, drawn, fitted, pairs_within_reach, uneven
from eqlayers.data.plausible.ratios import energy_over_forces
from eqlayers.data.plausible.work import work_of_forces
from eqlayers.data.structures import StructureArrays

FloatArray = NDArray[np.float64]

_SOME, _FEWEST = 60, 10  # structures that are fitted again
_LEFT, _EXPLAINED, _GOOD = 0.5, 0.5, 0.75  # of the misfit in a better order; share explained there, and by a right one
_LEFT_BY_CELLS = 0.3  # of the misfit: right cells of few structures are explained by others to a half by chance
_SURER = 5.0  # standard deviations by which another order must correlate better
_AXES = [axes for axes in itertools.permutations(range(3)) if axes != (0, 1, 2)]


def other_frames(structures: StructureArrays, model: PairModel | None) -> Iterator[str]:
    """Labels of the frame before or after."""
    numbers = np.split(structures.z, structures.starts[1:])
    same = np.array([len(a) > 1 and np.array_equal(a, b) for a, b in itertools.pairwise(numbers)], dtype=bool)
    good = model is not None and model.explained > _GOOD
    if same.sum() < _FEWEST or "forces" not in structures.labels:
        return
    here = 0.0 if model is None else model.explained
    related = work_of_forces(structures) or (None if model is None else energy_over_forces(model))
    for step, word, moved in ((-1, "after", "early"), (1, "before", "late")):
        rows = np.flatnonzero(same) + (step < 0)
        as_filed, other = structures.take(rows), structures.take(rows + step)
        labels, said = "", ""
        few = np.sort(np.random.default_rng(0).permutation(len(as_filed))[:_SOME])
        there = None if good else _model(replace(as_filed, forces=other.forces).take(few))
        if there is not None and there.explained > _EXPLAINED and 1 - there.explained < _LEFT * (1 - here):
            labels, said = "forces", f"a pair potential explains {there.explained:.0%} of them there, {here:.0%} here"
        elif "energy" in structures.labels and related is None:
            energies = replace(as_filed, energy=other.energy)
            fit = None if (ratio := work_of_forces(energies)) else _model(energies.take(few))
            ratio = energy_over_forces(fit) if fit is not None else ratio
            if ratio is not None and ratio.right:
                labels, said = "energies", f"there they are {ratio.value:.3g} times {ratio.source}, here unrelated"
        if labels:
            yield (
                f"{labels} fit the positions of another frame: {said}. The likely cause: they are labels of the frame "
                f"{word}. The fix: move them in the file, which has them one frame too {moved}"
            )
            return


def _model(structures: StructureArrays) -> PairModel | None:
    part = drawn(structures)
    return None if part is None else fitted(part, pairs_within_reach(part))


def other_axes(structures: StructureArrays, model: PairModel | None) -> Iterator[str]:
    """Cells that are transposed, or whose components are in another order than the axes of positions."""
    periodic = np.flatnonzero(structures.pbc.all(axis=1))
    if len(periodic) < _FEWEST or (model is not None and model.explained > _GOOD):
        return
    part = structures.take(periodic[:_SOME])
    orders = [("transposed: its vectors are columns", part.cell.transpose(0, 2, 1))]
    orders += [("in another order of x, y and z than positions", part.cell[:, :, axes]) for axes in _AXES]
    as_filed = _model(part)
    for said, cell in orders:
        other = None if np.allclose(cell, part.cell, atol=1e-2) else _model(replace(part, cell=cell))
        share, here = (each.explained if each else 0.0 for each in (other, as_filed))
        if share > _EXPLAINED and 1 - share < _LEFT_BY_CELLS * (1 - here):
            yield (
                f"a pair potential explains {here:.0%} of the forces by these cells, {share:.0%} by others. The likely "
                f"cause: the cell is {said}. The fix: correct it in the file"
            )
            return


def other_shear(structures: StructureArrays) -> Iterator[str]:
    """Components of stress in the order of another program."""
    known = np.flatnonzero(~np.isnan(structures.stress[:, 0, 0]) & structures.pbc.all(axis=1))
    part = drawn(structures.take(known)) if len(known) >= _FEWEST else None
    if part is None:
        return
    expected = uneven(part, pairs_within_reach(part))[1]
    labelled = np.stack([part.stress[:, a, b] for a, b in VOIGT[3:]], axis=1)
    labelled, expected = (
        each / np.maximum(np.linalg.norm(each, axis=1), 1e-300)[:, None] for each in (labelled, expected)
    )
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
            f"{', '.join(names[one] for one in best)}. The fix: write them as yz, xz, xy, or all nine numbers"
        )
