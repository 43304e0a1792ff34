"""The report of a tested potential: errors of energies, forces and stress, `metrics.json`, pictures and page."""

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
from rich.console import Console

from ..atoms.labels import LABEL_NAMES, LABEL_UNITS
from ..core.errors import EqlayersError
from ..data.statistics import regression
from ..data.structure_dataset import StructureDataset
from ..models import Committee, Potential, save_potential
from ..models.committee import DEVIATION
from ..pages import Block, Picture, Section, Table, Text, number
from ..testing import check_potential
from . import page
from .fine_tuning import energies_of
from .labels import LABELS, SHOWN
from .plots import histogram, parity_plot
from .potential import PotentialModule
from .report import Curve, Figures, TestReport

Array = NDArray[np.float64]
MOST_GROUPS = 20  # of structures in a table
MOST_POINTS = 20_000  # of a parity plot
WORST = 8  # structures in a table
MOST_ATOMS = 64  # of the structures that laws are checked on


class Row(NamedTuple):
    """Errors of one quantity in a unit as names of metrics have it, and of the predictor that sees no geometry."""

    name: str
    unit: str
    mae: float
    rmse: float
    largest: float
    baseline: float


class PotentialTestReport(TestReport):
    """Prints the table of errors, and writes `metrics.json`, `parity_*.png`, `learning_curve.png` and `report.html`."""

    besides = ", with what `eqlayers check` finds"

    def names(self, module: Any) -> list[str]:
        """Labels and errors that count, and what tells their structures apart."""
        kinds = [f"{label}_{kind}" for label in module.judged for kind in ("true", "error")]
        return ["z", "atoms", "group", "idx", "energies", *kinds, *map(DEVIATION.format, module.judged)]

    def measured(self, module: Any, data: Any, values: dict[str, Array]) -> list[Row]:
        """Errors of each quantity, then of each group of structures, printed as a table."""
        fit = Composition.of(data.train_set)
        rows, groups = _rows(module, values, fit), data.test_set.groups
        named = enumerate(groups) if len(groups) > 1 else ()
        of_groups = [
            row for place, group in named for row in _rows(module, values, fit, place, f" of {group or 'others'}")
        ]
        if "energy" in module.judged and len(data.lone_set):
            rows += _lone_rows(module.potential, data, fit)
        few = len(groups) <= MOST_GROUPS
        Console().print(_table([*rows, *of_groups] if few else rows).rich("test errors"))
        if not few:
            print(f"errors of the {len(groups)} groups: in metrics.json")
        return [*rows, *of_groups]

    def metrics(self, module: Any, data: Any, rows: list[Row], values: dict[str, Array]) -> dict[str, Any]:
        """Content of `metrics.json` besides the facts of the run; writes `potential.pt` as well."""
        metrics: dict[str, Any] = {"labels": list(module.judged)}
        for row in rows:
            name, unit = row.name.replace(" ", "_"), row.unit
            metrics[f"test_{name}_mae_{unit}"], metrics[f"test_{name}_rmse_{unit}"] = row.mae, row.rmse
            metrics[f"baseline_{name}_mae_{unit}"] = row.baseline
        if hasattr(module.model, "options") and isinstance(module.potential, Potential):
            errors = {f"{row.name}, {SHOWN[row.unit]}": row.mae for row in rows if " of " not in row.name}
            facts = {"data": data.dataset, "split": data.split, "units": "eV, Angstrom, e", "test errors (MAE)": errors}
            facts[LABEL_NAMES] = dict(data.keys)
            facts[LABEL_UNITS] = data.units
            save_potential(module.potential, self.folder / "potential.pt", facts)
            print(f"potential: {self.folder}/potential.pt")
        return metrics | self.more(module, values)

    def drawn(self, module: Any, data: Any, rows: list[Row], values: dict[str, Array]) -> tuple[str, Figures, Curve]:
        """The errors in a sentence, predictions against labels, and the curve of the main error."""
        by_name = {row.name: row for row in reversed(rows)}
        said = {name: f"{name} {number(row.mae)} {SHOWN[row.unit]}" for name, row in by_name.items()}
        tested = Tested(values, data.test_set.groups)
        figures = {}
        for label in module.judged:
            caption = "" if label not in by_name else said[label].replace(label, f"{label}: MAE", 1)
            if drawn := parity(tested, label, caption):
                figures[f"parity_{label}"] = drawn
        main = by_name.get(module.main_error()[0].split("_mae")[0].replace("_", " "))
        curve = main and (main.name, SHOWN[main.unit], {"no geometry": main.baseline}, main.mae)
        usual = [said[name] for name in ("energy per atom", *LABELS) if name in said and name != "energy"]
        about = f"Mean absolute errors on {len(values['atoms']):,} test structures: {', '.join(usual)}."
        return about, figures, curve

    def sections(
        self, module: Any, data: Any, rows: list[Row], values: dict[str, Array], figures: Figures
    ) -> tuple[list[Section], list[Section]]:
        """Sections of the page: data and network, and what follows the learning curves."""
        potential, tested = module.potential, Tested(values, data.test_set.groups)
        single = isinstance(potential, Potential)  # and no committee, whose members have reports of their own
        about = (
            "The last column is the error of a prediction that sees no geometry: a least-squares fit of the energies "
            "of the training part by the numbers of atoms of each element, and 0 for forces, stress and dipoles. A "
            "potential that has learned something is far below it. Energies of lone atoms are shifts, not trained."
        )
        facts = {"cutoff": f"{potential.cutoff:g} A", "dtype": str(potential.dtype).removeprefix("torch.")}
        several = len(tested.groups) > 1
        pictures = []
        for name, drawn in figures.items():
            label = name.removeprefix("parity_")
            for place, figure in enumerate(drawn):
                by = "element" if label == "forces" and not place else "config_type" if several else ""
                pictures.append(Picture(figure, f"Predicted against true {label}{by and f', by {by}'}."))
        shifts = dict(zip(potential.species, potential.shifts.tolist(), strict=True)) if single else {}
        network = page.network(module.model, module.device, facts) if single else Section("Network", [])
        return [structures_section(data, potential.cutoff), network], [
            Section("Errors", [Text(about), _table(rows)]),
            Section("Predictions", pictures),
            largest_errors(tested),
            *([atomic_energies(tested, shifts), checks(potential, data)] if single else []),
        ]

    def more(self, module: PotentialModule, values: dict[str, Array]) -> dict[str, Any]:
        """Further facts of the test, from the values that the module kept."""
        return {}


class Composition(NamedTuple):
    """Energies by the numbers of atoms of each species, fitted to a training part, in eV."""

    species: tuple[int, ...]
    energies: Array

    @classmethod
    def of(cls, part: StructureDataset) -> Composition:
        """The least-squares fit to a part."""
        structures = part.structures.take(np.asarray(part.rows))
        counts, known = structures.counts(structures.species), ~np.isnan(structures.energy)
        return cls(structures.species, regression(counts[known], structures.energy[known], intercept=False))

    def __call__(self, z: Array, atoms: Array) -> Array:
        """Energies of structures `[N]` of ``atoms`` atoms each."""
        by_number = np.zeros(len(chemical_symbols))
        by_number[list(self.species)] = self.energies
        return np.asarray(np.add.reduceat(by_number[z.astype(int)], np.cumsum(atoms.astype(int)) - atoms.astype(int)))


def _lone_rows(potential: Potential | Committee, data: Any, fit: Composition) -> list[Row]:
    """Errors of free atoms, which are in no part."""
    part = data.lone_set.structures.take(np.asarray(data.lone_set.rows))
    unit, factor = LABELS["energy"].unit, LABELS["energy"].factor
    error = energies_of(potential, data.lone_set, data.eval_size(data.lone_set)) - part.energy
    plain = fit(part.z, part.n_atoms) - part.energy
    return [_row("energy of lone atoms", unit, factor * error, factor * plain)]


def _rows(
    module: PotentialModule, values: dict[str, Array], fit: Composition, place: int | None = None, of: str = ""
) -> list[Row]:
    """Errors of each label; on the whole test part, and not on one group of it, per atom and by element as well."""
    rows, z, atoms = [], values["z"], values["atoms"]
    members = np.ones(len(atoms), dtype=bool) if place is None else values["group"] == place
    for label in module.judged:
        unit, factor = LABELS[label].unit, LABELS[label].factor
        mine = np.repeat(members, atoms.astype(int)) if label == "forces" else members
        true, error = (values[f"{label}_{kind}"][mine] * factor for kind in ("true", "error"))
        if not np.isfinite(error).any():
            continue
        plain = true - factor * fit(z, atoms)[members] if label == "energy" else true
        rows.append(_row(f"{label}{of}", unit, error, plain))
        if label == "energy" and place is None:
            rows.append(_row("energy per atom", unit, error / atoms, plain / atoms))
        if label == "forces" and place is None:
            known = np.unique(z[np.isfinite(error[:, 0])])
            kinds = {chemical_symbols[int(number)]: z == number for number in known}
            rows += [_row(f"forces on {name}", unit, error[at], true[at]) for name, at in kinds.items()]
    return rows


def _row(name: str, unit: str, error: Array, baseline: Array) -> Row:
    size, baseline = np.abs(error[np.isfinite(error)]), baseline[np.isfinite(baseline)]
    root = np.sqrt(np.square(size).mean())
    return Row(name, unit, float(size.mean()), float(root), float(size.max()), float(np.abs(baseline).mean()))


def _table(rows: list[Row]) -> Table:
    headings = ("quantity", "unit", "MAE", "RMSE", "largest", "no geometry, MAE")
    cells = [(row.name, SHOWN[row.unit], *map(number, (row.mae, row.rmse, row.largest, row.baseline))) for row in rows]
    return Table(headings, cells, left=2)


class Tested(NamedTuple):
    """Labels and predictions on the test part.

    Attributes:
        values: By name, of the structures `[N]` or atoms `[A]`: what the module kept.
        groups: Names of the groups of structures, of which ``values["group"]`` are places.
    """

    values: Mapping[str, Array]
    groups: Sequence[str]

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first atom of each structure `[N]`."""
        atoms = self.values["atoms"].astype(int)
        return np.cumsum(atoms) - atoms

    def named(self, per_atom: bool) -> list[str]:
        """The group of each structure, or of each atom."""
        names = np.asarray([group or "no config_type" for group in self.groups])[self.values["group"].astype(int)]
        return (np.repeat(names, self.values["atoms"].astype(int)) if per_atom else names).tolist()


def structures_section(module: Any, cutoff: float) -> Section:
    """The data: files, split, findings of the checks, and distributions."""
    taken = page.taken_parts(module)
    rows = [
        (
            name,
            shares(part.z),
            ", ".join(part.labels),
            f"{len(part):,}",
            f"{len(part.z):,}",
            page.span(part.n_atoms),
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
    near = page.distances(module.train_set, cutoff)
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
    kinds = [page.of_elements(values["z"].astype(int))] if per_atom else []
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
                page.formula(values["z"][starts[place] : starts[place] + atoms[place]]),
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
    names = [f"{page.formula(a.numbers)} (row {part.idx[p]})" for p, a in zip(kinds.values(), structures, strict=True)]
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
