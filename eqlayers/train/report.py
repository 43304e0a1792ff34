"""The report of a test: `metrics.json`, a table of errors, pictures and a page; the table of predictions."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, Callback
from rich.console import Console

from .. import __version__
from ..atoms.units import LABEL_NAMES, LABEL_UNITS
from ..cli.arguments import version_of
from ..core.checks import check_flag, check_path, check_type
from ..core.files.read_write import atomic_write
from ..core.machine import cpu_model, source_commit
from ..models import Committee, Potential, save_potential
from ..pages.page import Picture, Section, Text, number, save_figure, write_page
from . import page
from .base import is_dry_run, trained_module
from .history import read_history, write_json
from .predictions import Predictions, Row, lone_row, table
from .steps import LABELS, OF_LABELS, TESTED
from .summary import count_parameters

Pictures = dict[str, list[Picture]]
PREDICTED = ("idx", "group", "true", "predicted")
ABOUT_ERRORS = (
    "A prediction without geometry is a least-squares fit of the labels of the training part by the numbers of atoms "
    "of each element, the mean of the labels, or 0 for forces, stress and dipoles. A network that has learned "
    "something has far smaller errors. Energies of lone atoms are shifts, not trained."
)


class TestReport(Callback):
    """Prints a table of errors by label, and writes `metrics.json`, `parity*.png`, `learning_curve.png`, `report.html`.

    Of a potential it writes `potential.pt` as well.

    Args:
        folder: The run's folder.
        facts: What to record besides, e.g. seed and thread count.
        page: Whether to write `report.html`, one file with everything about the run, for a browser.
    """

    __test__ = False  # its name would make pytest collect it

    def __init__(self, folder: str | Path, facts: dict[str, Any] | None = None, page: bool = True) -> None:
        self.folder = Path(check_path("folder", folder))
        self.page = check_flag("page", page)
        self.facts = {} if facts is None else check_type("facts", facts, dict, "a dict, or None", "Pass a dict.")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the report from the values that the module kept."""
        module: Any = trained_module(pl_module)
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        labels, stored = module.labels_of_test(), module.test_values
        names = [*TESTED, *(f"{label}_{what}" for label in labels for what in OF_LABELS)]
        # of all processes; a metric makes a number of the only value of one structure
        values = {n: np.atleast_1d(stored[n].compute().cpu().numpy()) for n in names if stored[n].update_called}
        if not trainer.is_global_zero:
            return
        tested = Predictions(labels, values, data.test_set.groups, data)
        rows, of_groups = tested.rows()
        if "energy" in labels and len(data.lone_set):
            rows.append(lone_row(module.potential, data))
        few = len(tested.groups) <= page.MOST_GROUPS
        Console().print(table([*rows, *of_groups] if few else rows).rich("test errors"))
        if not few:
            print(f"errors of the {len(tested.groups)} groups: in metrics.json")
        if is_dry_run(trainer):
            return
        metrics: dict[str, Any] = {} if "y" in labels else {"labels": list(labels)}
        if "y" in labels:
            metrics |= {"target": labels["y"].name, "unit": labels["y"].errors}
            metrics |= {name: module.hparams.get(name) for name in ("loss", "learning_rate")}
        for row in [*rows, *of_groups]:
            metrics |= row.metrics()
        path, main = trainer.ckpt_path, module.main_error()[0]
        elsewhere = path is not None and not Path(path).resolve().is_relative_to(self.folder.resolve())
        history = [] if elsewhere else read_history(self.folder)  # of this run, if its weights are tested
        validated = [row["val_mae"] for row in history if np.isfinite(row["val_mae"])]
        metrics |= {f"best_val_{main}": min(validated, default=None), **tested.deviations()}
        facts = self.run_facts(trainer, module, len(tested.atoms), history[-1] if history else {})
        metrics |= facts
        write_json(self.folder / "metrics.json", metrics)
        potential = getattr(module, "potential", None)
        single = potential if isinstance(potential, Potential) else None  # and no committee
        if single is not None and hasattr(module.model, "options"):
            self._save(single, data, rows)
        pictures = page.predictions(tested, rows)
        deciding = [row for row in rows if f"{row.key}_mae_{row.label.unit}" == main]
        if history and deciding:
            pictures["learning_curve"] = page.curves(self.folder, history, deciding[0])
        for name, several in pictures.items():
            save_figure(several[0].figure, self.folder / f"{name}.png")
        files = ["metrics.json", *(f"{name}.png" for name in pictures)]
        if self.page:
            more = ", with what `eqlayers check` finds" if single else ""
            print(f"writing {self.folder}/report.html{more}", flush=True)
            self._write_page(module, data, tested, [*rows, *of_groups], facts, pictures)
            files.insert(0, "report.html")
        print(f"report: {self.folder}/{', '.join(files)}")

    def _write_page(
        self, module: Any, data: Any, tested: Predictions, rows: Sequence[Row], facts: Any, pictures: Pictures
    ) -> None:
        potential = getattr(module, "potential", None)
        curves = pictures.pop("learning_curve", [])
        sections = [
            page.what_was_run(self.folder, facts),
            page.data(data, tested.labels),
            Section("Learning curves", curves),
            Section("Errors", [Text(ABOUT_ERRORS), table(rows)]),
            Section("Predictions", [*chain(*pictures.values())]),
            page.largest_errors(tested),
        ]
        if not isinstance(potential, Committee):  # whose members have reports of their own
            network = {"cutoff": f"{data.cutoff:g} A", "dtype": str(module.dtype).removeprefix("torch.")}
            sections.insert(2, page.network(module.model, module.device, network))
        if isinstance(potential, Potential):
            sections += [page.atomic_energies(tested, potential), page.checks(potential, data)]
        shown = [row for row in rows if row.part == " per atom" or (not row.part and row.label.name != "energy")]
        errors = [f"{row.name} {number(row.errors.mae)} {row.label.errors}" for row in shown]
        about = f"Mean absolute errors on {len(tested.atoms):,} test structures: {', '.join(errors)}."
        write_page(self.folder / "report.html", f"Run {self.folder.name}", about, sections)

    def _save(self, potential: Potential, data: Any, rows: Sequence[Row]) -> None:
        """Write `potential.pt`."""
        errors = {f"{row.name}, {row.label.errors}": row.errors.mae for row in rows if " of " not in row.name}
        facts = {"data": data.dataset, "split": data.split, "units": "eV, Angstrom, e", "test errors (MAE)": errors}
        facts |= {LABEL_NAMES: dict(data.keys), LABEL_UNITS: data.units}
        save_potential(potential, self.folder / "potential.pt", facts)
        print(f"potential: {self.folder}/potential.pt")

    def run_facts(self, trainer: Trainer, module: Any, num_test: int, last: dict[str, float]) -> dict[str, Any]:
        """Network, data, machine, packages and length of the training, which every `metrics.json` has."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        return {
            "train_time_s": last.get("time_s"),
            "epochs": last.get("epoch"),
            "steps": last.get("step"),
            "num_parameters": count_parameters(module),
            "num_train": data.statistics.num_train,
            **{f"{name}_trained_share": share for name, share in module.trained_share.items()},
            "num_test": num_test,
            "checkpoint": None if trainer.ckpt_path is None else str(trainer.ckpt_path),
            "network": type(module.model).__name__,
            **{name: getattr(data, name, None) for name in ("dataset", "split")},
            "device": torch.cuda.get_device_name() if module.device.type == "cuda" else module.device.type,
            **self.facts,
            "processor": cpu_model(),
            "eqlayers_version": __version__,
            "python_version": platform.python_version(),
            **{f"{package}_version": version_of(package) for package in ("torch", "lightning", "e3nn", "triton")},
            "git_commit": source_commit(),
        }


class PredictionTable(BasePredictionWriter):
    """Writes `predictions.csv`: `idx`, `group` and `true` where the data have them, `predicted`, `unit`.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(write_interval="epoch")
        self.path = Path(check_path("folder", folder)) / "predictions.csv"

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write the predictions of all batches, in their order; each process of several writes its own file."""
        unit = trained_module(pl_module).labels_of_test().get("y", LABELS["energy"]).values
        names = [name for name in PREDICTED if all(name in batch for batch in predictions)]
        columns = {name: [*chain.from_iterable(batch[name] for batch in predictions)] for name in names}
        text = pandas.DataFrame(columns).assign(unit=unit).to_csv(index=False, na_rep="nan", lineterminator="\n")
        path = self.path if trainer.world_size == 1 else self.path.with_stem(f"predictions-{trainer.global_rank}")
        with atomic_write(path) as file:
            file.write(text.encode())
        print(f"predictions: {path}")
