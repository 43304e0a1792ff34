"""After the test of a potential: errors of energies, forces and stress, `metrics.json`, the pictures and the page."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from ase.data import chemical_symbols
from lightning.pytorch import LightningModule, Trainer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from ..files import LABEL_NAMES, LABEL_SIZES
from ..models import Potential, save_potential
from ..models.committee import DEVIATION
from ..pages import Picture, Section, Table, Text, number
from ..units import unit_size
from .base import is_dry_run
from .history import write_json
from .labels import LABELS, SHOWN
from .plots import learning_curve
from .potential import PotentialModule
from .report import TestReport, kept_values
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

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the report from the values that the module kept."""
        assert isinstance(pl_module, PotentialModule)
        kinds = [f"{label}_{kind}" for label in pl_module.judged for kind in ("true", "error")]
        deviations = map(DEVIATION.format, pl_module.judged)
        values = kept_values(pl_module, ["z", "atoms", "group", "idx", "energies", *kinds, *deviations])
        if not trainer.is_global_zero:
            return
        rows = self._rows(pl_module, values)
        groups = trainer.datamodule.test_set.groups  # type: ignore[attr-defined]
        of_groups = _rows_of_groups(pl_module, values, groups) if len(groups) > 1 else []
        few = len(groups) <= MOST_GROUPS
        Console().print(_table([*rows, *of_groups] if few else rows).rich("test errors"))
        if not few:
            print(f"errors of the {len(groups)} groups: in metrics.json")
        if is_dry_run(trainer):
            return
        more = self.more(pl_module, values)
        metrics = self._facts(trainer, pl_module, [*rows, *of_groups]) | more
        write_json(self.folder / "metrics.json", metrics)
        if hasattr(pl_module.model, "options") and isinstance(pl_module.potential, Potential):
            errors = {f"{row.name}, {SHOWN[row.unit]}": row.mae for row in rows}
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            facts = {"data": data.dataset, "split": data.split, "units": "eV, Angstrom, e", "test errors (MAE)": errors}
            facts[LABEL_NAMES] = dict(data.keys)
            facts[LABEL_SIZES] = {label: unit_size(label, unit) for label, unit in data.units.items()}
            save_potential(pl_module.potential, self.folder / "potential.pt", facts)
            print(f"potential: {self.folder}/potential.pt")
        tested = potentials.Tested(values, groups)
        parity: dict[str, list[Figure]] = {}
        for label in pl_module.judged:
            row = next((row for row in rows if row.name == label), None)
            caption = "" if row is None else f"{label}: MAE {number(row.mae)} {SHOWN[row.unit]}"
            parity[label] = potentials.parity(tested, label, caption)
        figures = {f"parity_{label}": several[0] for label, several in parity.items() if several}
        history = self._history(trainer)
        shown = pl_module.main_error()[0].split("_mae")[0].replace("_", " ")
        main = next((row for row in rows if row.name == shown), None)
        if history and main is not None:
            figure = learning_curve(history, main.name, SHOWN[main.unit], {"no geometry": main.baseline}, test=main.mae)
            figures["learning_curve"] = figure
        said = {row.name: f"{row.name} {number(row.mae)} {SHOWN[row.unit]}" for row in rows}
        usual = [said[name] for name in ("energy per atom", *LABELS) if name in said and name != "energy"]
        about = f"Mean absolute errors on {len(values['atoms']):,} test structures: {', '.join(usual)}."
        sections = []
        if self.page:
            print(f"writing {self.folder}/report.html, with what `eqlayers check` finds", flush=True)
            sections = self._page(trainer, pl_module, tested, [*rows, *of_groups], parity)
        self.write(about, metrics, figures, sections)

    def _page(
        self,
        trainer: Trainer,
        module: PotentialModule,
        tested: potentials.Tested,
        rows: list[Row],
        figures: dict[str, list[Figure]],
    ) -> list[Section]:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        potential: Any = module.potential
        single = isinstance(potential, Potential)  # and no committee, whose members have reports of their own
        about = (
            "The last column is the error of a prediction that sees no geometry: the mean energy of an atom, and 0 for "
            "forces, stress and dipoles. A potential that has learned something is far below it."
        )
        facts = {"cutoff": f"{potential.cutoff:g} A", "dtype": str(potential.dtype).removeprefix("torch.")}
        several = len(tested.groups) > 1
        pictures = [
            Picture(figure, f"Predicted against true {label}{_by(label == 'forces' and not place, several)}.")
            for label, drawn in figures.items()
            for place, figure in enumerate(drawn)
        ]
        shifts = dict(zip(potential.species, potential.shifts.tolist(), strict=True)) if single else {}
        network = common.network(module.model, module.device, facts) if single else Section("Network", [])
        return [
            potentials.data(data, potential.cutoff),
            network,
            Section("Errors", [Text(about), _table(rows)]),
            Section("Predictions", pictures),
            potentials.largest_errors(tested),
            *([potentials.atomic_energies(tested, shifts), potentials.checks(potential, data)] if single else []),
        ]

    def more(self, module: PotentialModule, values: dict[str, Array]) -> dict[str, Any]:
        """Further facts of the test, from the values that the module kept."""
        return {}

    def _rows(self, module: PotentialModule, values: dict[str, Array]) -> list[Row]:
        rows, z, atoms = [], values["z"], values["atoms"]
        for label in module.judged:
            unit, factor = LABELS[label].unit, LABELS[label].factor
            true, error = values[f"{label}_true"] * factor, values[f"{label}_error"] * factor
            if not np.isfinite(error).any():
                continue
            if label == "energy":
                plain = true - np.nanmean(true / atoms) * atoms
                rows += [_row(label, unit, error, plain), _row("energy per atom", unit, error / atoms, plain / atoms)]
            else:
                rows.append(_row(label, unit, error, true))
            if label == "forces":
                known = np.unique(z[np.isfinite(error[:, 0])])
                kinds = {chemical_symbols[int(number)]: z == number for number in known}
                rows += [_row(f"forces on {name}", unit, error[at], true[at]) for name, at in kinds.items()]
        return rows

    def _facts(self, trainer: Trainer, module: PotentialModule, rows: list[Row]) -> dict[str, Any]:
        metrics: dict[str, Any] = {"labels": list(module.judged)}
        for row in rows:
            name, unit = row.name.replace(" ", "_"), row.unit
            metrics[f"test_{name}_mae_{unit}"], metrics[f"test_{name}_rmse_{unit}"] = row.mae, row.rmse
            metrics[f"baseline_{name}_mae_{unit}"] = row.baseline
        return metrics | self.run_facts(trainer, module, len(trainer.datamodule.test_set))  # type: ignore[attr-defined]


def _by(elements: bool, several: bool) -> str:
    return ", by element" if elements else ", by config_type" if several else ""


def _rows_of_groups(module: PotentialModule, values: dict[str, Array], groups: tuple[str, ...]) -> list[Row]:
    """Errors of each group of test structures, such as one file, in the labels that it has."""
    rows, atoms = [], values["atoms"]
    for place, group in enumerate(groups):
        members = values["group"] == place
        for label in module.judged:
            unit, factor = LABELS[label].unit, LABELS[label].factor
            mine = np.repeat(members, atoms.astype(int)) if label == "forces" else members
            true, error = values[f"{label}_true"][mine] * factor, values[f"{label}_error"][mine] * factor
            if np.isfinite(error).any():
                base = true - np.nanmean(true / atoms[members]) * atoms[members] if label == "energy" else true
                rows.append(_row(f"{label} of {group or 'others'}", unit, error, base))
    return rows


def _row(name: str, unit: str, error: Array, baseline: Array) -> Row:
    error, baseline = error[np.isfinite(error)], baseline[np.isfinite(baseline)]
    size = np.abs(error)
    return Row(
        name,
        unit,
        float(size.mean()),
        float(np.sqrt(np.square(error).mean())),
        float(size.max()),
        float(np.abs(baseline).mean()),
    )


def _table(rows: list[Row]) -> Table:
    headings = ("quantity", "unit", "MAE", "RMSE", "largest", "no geometry, MAE")
    cells = [(row.name, SHOWN[row.unit], *map(number, (row.mae, row.rmse, row.largest, row.baseline))) for row in rows]
    return Table(headings, cells, left=2)
