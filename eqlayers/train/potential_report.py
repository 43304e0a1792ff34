"""After the test of a potential: errors of energies, forces and stress, `metrics.json`, the pictures and the page."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray
from rich.console import Console

from ..files import LABEL_NAMES, LABEL_SIZES
from ..models import Potential, save_potential
from ..models.committee import DEVIATION
from ..pages import Picture, Section, Table, Text, number
from ..units import unit_size
from .labels import LABELS, SHOWN
from .potential import PotentialModule
from .report import Curve, Figures, TestReport
from .run_page import common, potentials

Array = NDArray[np.float64]
MOST_GROUPS = 20  # of test structures in the table


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
        rows, groups = _rows(module, values), data.test_set.groups
        named = enumerate(groups) if len(groups) > 1 else ()
        of_groups = [row for place, group in named for row in _rows(module, values, place, f" of {group or 'others'}")]
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
            facts[LABEL_SIZES] = {label: unit_size(label, unit) for label, unit in data.units.items()}
            save_potential(module.potential, self.folder / "potential.pt", facts)
            print(f"potential: {self.folder}/potential.pt")
        return metrics | self.more(module, values)

    def drawn(self, module: Any, data: Any, rows: list[Row], values: dict[str, Array]) -> tuple[str, Figures, Curve]:
        """The errors in a sentence, predictions against labels, and the curve of the main error."""
        by_name = {row.name: row for row in reversed(rows)}
        said = {name: f"{name} {number(row.mae)} {SHOWN[row.unit]}" for name, row in by_name.items()}
        tested = potentials.Tested(values, data.test_set.groups)
        figures = {}
        for label in module.judged:
            caption = "" if label not in by_name else said[label].replace(label, f"{label}: MAE", 1)
            if drawn := potentials.parity(tested, label, caption):
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
        potential, tested = module.potential, potentials.Tested(values, data.test_set.groups)
        single = isinstance(potential, Potential)  # and no committee, whose members have reports of their own
        about = (
            "The last column is the error of a prediction that sees no geometry: the mean energy of an atom, and 0 for "
            "forces, stress and dipoles. A potential that has learned something is far below it."
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
        network = common.network(module.model, module.device, facts) if single else Section("Network", [])
        return [potentials.data(data, potential.cutoff), network], [
            Section("Errors", [Text(about), _table(rows)]),
            Section("Predictions", pictures),
            potentials.largest_errors(tested),
            *([potentials.atomic_energies(tested, shifts), potentials.checks(potential, data)] if single else []),
        ]

    def more(self, module: PotentialModule, values: dict[str, Array]) -> dict[str, Any]:
        """Further facts of the test, from the values that the module kept."""
        return {}


def _rows(module: PotentialModule, values: dict[str, Array], place: int | None = None, of: str = "") -> list[Row]:
    """Errors of each label; on the whole test part, and not on one group of it, per atom and by element as well."""
    rows, z, atoms = [], values["z"], values["atoms"]
    members = np.ones(len(atoms), dtype=bool) if place is None else values["group"] == place
    sizes = atoms[members]
    for label in module.judged:
        unit, factor = LABELS[label].unit, LABELS[label].factor
        mine = np.repeat(members, atoms.astype(int)) if label == "forces" else members
        true, error = (values[f"{label}_{kind}"][mine] * factor for kind in ("true", "error"))
        if not np.isfinite(error).any():
            continue
        plain = true - np.nanmean(true / sizes) * sizes if label == "energy" else true
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
