"""The page about the run of a potential."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ...core.errors import EqlayersError
from ...models import Potential
from ...pages import Block, Picture, Section, Table, Text, number
from ...testing import check_potential
from ..labels import LABELS
from ..plots import histogram, parity_plot
from .common import distances, formula, of_elements, span, taken_parts

Array = NDArray[Any]
MOST_POINTS = 20_000  # of a parity plot
MOST_GROUPS = 20  # in a table
WORST = 8  # structures in a table
MOST_ATOMS = 64  # of the structures that laws are checked on


class Tested(NamedTuple):
    """Labels and predictions on the test part.

    Attributes:
        values: By name, of the structures `[N]` or atoms `[A]`: what the module kept.
        groups: Names of the groups of structures, of which ``values["group"]`` are places.
    """

    values: Mapping[str, Array]
    groups: Sequence[str]

    @property
    def starts(self) -> Array:
        """The first atom of each structure `[N]`."""
        atoms = self.values["atoms"].astype(int)
        return np.cumsum(atoms) - atoms

    def named(self, per_atom: bool) -> list[str]:
        """The group of each structure, or of each atom."""
        names = np.asarray([group or "no config_type" for group in self.groups])[self.values["group"].astype(int)]
        return (np.repeat(names, self.values["atoms"].astype(int)) if per_atom else names).tolist()


def data(module: Any, cutoff: float) -> Section:
    """The data: files, split, findings of the checks, and distributions."""
    taken = taken_parts(module)
    rows = [
        (
            name,
            shares(part.z),
            ", ".join(part.labels),
            f"{len(part):,}",
            f"{len(part.z):,}",
            span(part.n_atoms),
            f"{int(part.pbc.any(1).sum()):,}",
        )
        for name, part in taken.items()
    ]
    headings = ("part", "elements", "labels", "structures", "atoms", "atoms each", "periodic")
    blocks: list[Block] = [Table(headings, rows, left=3)]
    names = sorted({name for part in taken.values() for name in part.config_type.tolist()})
    if 1 < len(names) <= MOST_GROUPS:
        counts = [[str(int((part.config_type == name).sum())) for part in taken.values()] for name in names]
        each = [(name or "none", *row) for name, row in zip(names, counts, strict=True)]
        blocks.append(Table(("config_type", *taken), each, "Structures of each kind."))
    blocks += [Text(sentence, warning=True) for sentence in module.findings]
    if not module.findings:
        blocks.append(Text("The checks of units, signs, copies and neighbours found nothing."))
    blocks.append(Text("\n".join(module.report)))
    return Section("Data", [*blocks, *_distributions(module, taken, cutoff)])


def shares(z: Array) -> str:
    """The elements, with their share of the atoms."""
    kinds, counts = np.unique(z, return_counts=True)
    return ", ".join(f"{chemical_symbols[k]} {100 * n / len(z):.3g}%" for k, n in zip(kinds, counts, strict=True))


def _distributions(module: Any, taken: Mapping[str, Any], cutoff: float) -> list[Picture]:
    shifts = module.statistics.shifts
    energies, forces = {}, {}
    for name, part in taken.items():
        free = part.counts(tuple(shifts)) @ np.array(list(shifts.values()))
        each = (part.energy - free) / part.n_atoms
        energies[name] = each[np.isfinite(each)]
    train = taken["training"]
    sizes = np.linalg.norm(train.forces, axis=1)
    for kind in train.species:
        lengths = sizes[train.z == kind]
        forces[chemical_symbols[kind]] = lengths[np.isfinite(lengths)]
    pictures = []
    if any(len(values) for values in energies.values()):
        about = "Energies less the shifts of the atoms. Where no training structure is, a network extrapolates."
        pictures.append(Picture(histogram(energies, "energy per atom (eV)", "structures"), about))
    if any(len(values) for values in forces.values()):
        figure = histogram(forces, "length of the force (eV/A)", "atoms")
        pictures.append(Picture(figure, "Forces in the training part, by element."))
    near = distances(module.train_set, cutoff)
    return pictures if near is None else [*pictures, near]


# ---- what was tested ------------------------------------------------------------------------------------------------


def parity(tested: Tested, label: str, caption: str) -> list[Figure]:
    """Predictions against labels, forces by element; where there are groups of structures, by them as well."""
    values, per_atom = tested.values, label == "forces"
    true = values[f"{label}_true"]
    columns = 1 if true.ndim == 1 else int(np.prod(true.shape[1:]))
    predicted = (true + values[f"{label}_error"]).ravel()
    true = true.ravel()
    there = np.flatnonzero(np.isfinite(true))
    there = there[:: len(there) // MOST_POINTS + 1]
    if not len(there):  # the training part has labels that the test part lacks
        return []
    kinds = [of_elements(values["z"].astype(int))] if per_atom else []
    if len(tested.groups) > 1 or not kinds:
        kinds.append(tested.named(per_atom))
    rows = there // columns
    return [
        parity_plot(
            true[there], predicted[there], label, LABELS[label].values, caption, np.asarray(names)[rows].tolist()
        )
        for names in kinds
    ]


def largest_errors(tested: Tested) -> Section:
    """Structures with the largest errors of energies and of forces."""
    values = tested.values
    atoms, starts = values["atoms"].astype(int), tested.starts
    measured: dict[str, Array] = {}
    if "energy_error" in values:
        measured["energy, meV/atom"] = 1e3 * values["energy_error"] / atoms
    if "forces_error" in values:
        measured["largest force, meV/A"] = 1e3 * np.maximum.reduceat(
            np.linalg.norm(values["forces_error"], axis=1), starts
        )
    blocks: list[Block] = []
    names, several = tested.named(per_atom=False), len(tested.groups) > 1
    for heading, errors in measured.items():
        order = np.argsort(-np.nan_to_num(np.abs(errors), nan=-1.0), kind="stable")[:WORST]
        rows = [
            (
                str(int(values["idx"][place])),
                formula(values["z"][starts[place] : starts[place] + atoms[place]]),
                *([names[place]] if several else []),
                *(number(one[place]) for one in measured.values()),
            )
            for place in order
            if np.isfinite(errors[place])
        ]
        columns = ("row in the file", "structure", *(["config_type"] if several else []), *measured)
        if rows:
            caption = f"By the error of {heading.split(',')[0].replace('largest force', 'the worst force')}."
            blocks.append(Table(columns, rows, caption, left=3 if several else 2))
    return Section("Largest errors", blocks)


def atomic_energies(tested: Tested, shifts: Mapping[int, float]) -> Section:
    """The energy of each atom from the network, beyond the shift of its element."""
    values = tested.values
    if "energies" not in values or not len(values["energies"]):
        return Section("Energies of atoms", [])
    z = values["z"].astype(int)
    series, rows = {}, []
    for kind in np.unique(z).tolist():
        each = values["energies"][z == kind] - shifts[kind]
        series[chemical_symbols[kind]] = each
        numbers = (each.mean(), each.std(), each.min(), each.max())
        rows.append((chemical_symbols[kind], f"{len(each):,}", f"{shifts[kind]:.6g}", *(f"{x:.3f}" for x in numbers)))
    headings = ("element", "atoms", "shift", "mean", "deviation", "least", "greatest")
    about = (
        "Energies that the network gives the atoms of the test part, less the shift of the element. Only their sums "
        "are trained, so compare atoms of one element with each other."
    )
    figure = histogram(series, "energy (eV)", "atoms", logarithmic=False)
    table = Table(headings, rows, "In eV.")
    return Section("Energies of atoms", [Text(about), table, Picture(figure, "Energies by element.")])


def checks(potential: Potential, module: Any) -> Section:
    """The result of `eqlayers check` on the smallest test structures, one with periods and one without.

    The checks run on the CPU, as a GPU would first compile kernels in float64 for a minute.
    """
    title = "eqlayers check"
    part = module.test_set.structures.take(np.asarray(module.test_set.rows))
    order = np.argsort(part.n_atoms, kind="stable")
    near = [int(place) for place in order if 1 < part.n_atoms[place] <= MOST_ATOMS]
    kinds = {bool(part.pbc[place].any()): place for place in reversed(near)}
    if not kinds:
        return Section(title, [Text(f"No test structure has from 2 to {MOST_ATOMS} atoms, so nothing was checked.")])
    structures = []
    for place in kinds.values():
        atoms = part.atoms(place)
        structures.append(Atoms(part.z[atoms], part.pos[atoms], cell=part.cell[place], pbc=part.pbc[place]))
    names = [f"{formula(a.numbers)} (row {part.idx[p]})" for p, a in zip(kinds.values(), structures, strict=True)]
    about = (
        f"Laws that every potential obeys, measured in float64 on the CPU, on {' and '.join(names)} of the test part"
    )
    try:
        with torch.enable_grad():
            report = check_potential(copy.deepcopy(potential).cpu(), structures)
    except EqlayersError as error:
        return Section(title, [Text(f"{about}: this failed. {error}", warning=True)])
    failed = len(report.failures)
    said = f"{failed} of {len(report.rows)} are broken" if failed else f"all {len(report.rows)} hold"
    rows = [
        ("holds" if row.ok else "BROKEN", row.name, row.unit, f"{row.measured:.1e}", f"{row.bound:.1e}")
        for row in report.rows
    ]
    headings = ("", "law", "unit", "deviation", "by rounding, at most")
    return Section(title, [Text(f"{about}: {said}.", bool(failed)), Table(headings, rows, left=3)])
