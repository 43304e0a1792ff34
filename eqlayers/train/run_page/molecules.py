"""The page about the run of a property of molecules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.targets import Target
from ...pages import Block, Picture, Section, Table, number
from ..plots import histogram
from .common import distances, formula, span, taken_parts

Array = NDArray[Any]
WORST = 12  # molecules in the table


def heavy_atoms(dataset: Any, idx: Array) -> list[str]:
    """How many atoms but hydrogen each molecule has."""
    heavy = dataset.data.heavy[_rows(dataset, idx)]
    return [f"{one} heavy atoms" for one in heavy.tolist()]


def _rows(dataset: Any, idx: Array) -> Array:
    """Rows of molecules in the arrays, by their numbers in the source."""
    known = dataset.data.idx
    order = np.argsort(known)
    return order[np.searchsorted(known, idx.astype(int), sorter=order)]


def data(module: Any, target: Target) -> Section:
    """Sizes of the parts, and distributions of the property and of distances."""
    shifts, taken = module.statistics.shifts, taken_parts(module)
    free = np.array(list(shifts.values()))
    rest = {name: part.y - part.counts(tuple(shifts)) @ free for name, part in taken.items()}
    less = " less the shifts of the atoms" if target.extensive else ""
    rows = []
    for name, part in taken.items():
        spread = (number(rest[name].mean()), number(rest[name].std()))
        rows.append((name, f"{len(part):,}", f"{part.n_atoms.sum():,}", span(part.n_atoms), *spread))
    headings = ("part", "molecules", "atoms", "atoms each", f"mean, {target.unit}", f"deviation, {target.unit}")
    figure = histogram(rest, f"{target.name} ({target.unit})", "molecules")
    near = distances(module.train_set, module.cutoff)
    caption = f"Mean and standard deviation are of {target.name}{less}." if less else ""
    blocks: list[Block] = [Table(headings, rows, caption)]
    blocks.append(Picture(figure, f"The {target.about}{less}, by part."))
    return Section("Data", blocks if near is None else [*blocks, near])


def largest_errors(dataset: Any, values: Mapping[str, Array], target: Target) -> Section:
    """Molecules with the largest errors."""
    errors = (values["predicted"] - values["true"]) * target.report_factor
    order = np.argsort(-np.abs(errors), kind="stable")[:WORST]
    rows = []
    for place, row in zip(order, _rows(dataset, values["idx"][order]), strict=True):
        made_of = formula(dataset.data.take(np.array([row])).z)
        numbers = (values["true"][place], values["predicted"][place])
        shown = [f"{float(one):.6g}" for one in numbers]
        rows.append((str(int(values["idx"][place])), made_of, *shown, number(errors[place])))
    units = (f"true, {target.unit}", f"predicted, {target.unit}", f"error, {target.report_unit}")
    return Section("Largest errors", [Table(("number", "molecule", *units), rows, left=2)])
