"""After a test: the table against the baselines, `metrics.json`, the pictures and the page."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure
from rich.console import Console

from .. import __version__
from ..core.checks import check_flag, check_path, check_type
from ..data.targets import Target
from ..files import cpu_model, source_commit
from ..pages import Picture, Section, Table, number, save_figure, write_page
from .base import is_dry_run
from .history import read_history, write_json
from .module import metric_name, target_of
from .plots import learning_curve, parity_plot
from .run_page import common, molecules
from .summary import count_parameters


@dataclass(frozen=True)
class Errors:
    """Errors of one predictor in the report unit; None where it was not measured."""

    mae: float
    rmse: float | None


def environment() -> dict[str, Any]:
    """Processor and versions of the packages behind a result, and the git commit of the source tree if it is one.

    Example:
        >>> environment()["eqlayers_version"] == __version__
        True
    """
    facts: dict[str, Any] = {"processor": cpu_model(), "eqlayers_version": __version__}
    facts["python_version"] = platform.python_version()
    for package in ("torch", "lightning", "e3nn", "triton"):
        try:
            facts[f"{package}_version"] = version(package)
        except PackageNotFoundError:
            facts[f"{package}_version"] = None
    return facts | {"git_commit": source_commit()}


def report_table(target: Target, rows: dict[str, Errors], model: str, caption: str) -> Table:
    """Errors of all predictors, and how many times larger than the model's they are."""
    cells = []
    for name, errors in rows.items():
        rmse = "-" if errors.rmse is None else number(errors.rmse)
        ratio = "1" if name == model else f"{errors.mae / rows[model].mae:.2f}" if rows[model].mae else "-"
        cells.append((name, number(errors.mae), rmse, ratio))
    unit = target.report_unit
    return Table(("predictor", f"MAE ({unit})", f"RMSE ({unit})", "MAE / model's"), cells, caption)


class TestReport(Callback):
    """Prints the table, and writes `metrics.json`, `parity.png`, `learning_curve.png` and `report.html`.

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
        values = kept_values(pl_module)
        if not trainer.is_global_zero:
            return
        target, data = target_of(pl_module), trainer.datamodule  # type: ignore[attr-defined]
        factor, unit = target.report_factor, target.report_unit
        true, predicted = values["true"], values["predicted"]
        model = type(pl_module.model).__name__
        rows = {model: _errors((predicted - true) * factor)}
        if len(true) == len(data.test_set):
            rows |= _baselines(data, factor)
        else:
            print(f"no baselines: {len(true)} of {len(data.test_set)} test molecules were predicted")
        about = f"Errors of {target.name}, the {target.about}, on {len(true)} test molecules."
        table = report_table(target, rows, model, about)
        Console().print(table.rich(f"test errors of {target.name} ({target.about})"))
        if is_dry_run(trainer):
            return
        metrics = self._metrics(trainer, pl_module, target, rows, len(true))
        write_json(self.folder / "metrics.json", metrics)
        caption = f"{model} on {len(true)} test molecules: MAE {number(rows[model].mae)} {unit}"
        groups = molecules.heavy_atoms(data.test_set, values["idx"])
        figures = {"parity": parity_plot(true, predicted, target.name, target.unit, caption, groups)}
        history = self._history(trainer)
        if history:
            lines = {name: errors.mae for name, errors in rows.items() if name != model}
            figure = learning_curve(history, target.name, unit, lines, test=rows[model].mae)
            figures["learning_curve"] = figure
        sections = []
        if self.page:
            print(f"writing {self.folder}/report.html", flush=True)
            sections = self._sections(pl_module, data, table, values, figures["parity"])
        self.write(caption, metrics, figures, sections)

    def _sections(
        self, module: LightningModule, data: Any, table: Table, values: dict[str, Any], parity: Figure
    ) -> list[Section]:
        target = target_of(module)
        return [
            molecules.data(data, target),
            common.network(module.model, module.device, {"cutoff": f"{data.cutoff:g} A"}),  # type: ignore[arg-type]
            Section("Errors", [table]),
            Section("Predictions", [Picture(parity, f"Predicted against true {target.name}.")]),
            molecules.largest_errors(data.test_set, values, target),
        ]

    def write(self, about: str, metrics: dict[str, Any], figures: dict[str, Figure], sections: list[Section]) -> None:
        """Write the pictures and, if there are sections, the page; say where they are.

        Args:
            about: The errors in a sentence.
            metrics: Of `metrics.json`.
            figures: By the name of their file; `learning_curve` goes into the page.
            sections: Of the page, besides the first, what was run, and the curves.
        """
        for name, figure in figures.items():
            save_figure(figure, self.folder / f"{name}.png")
        files = ["metrics.json", *(f"{name}.png" for name in figures)]
        if sections:
            curve = figures.get("learning_curve")
            main = None if curve is None else Picture(curve, "The error that decides which weights are kept.")
            first = common.what_was_run(self.folder, metrics)
            whole = [first, *sections[:2], common.curves(self.folder, main, read_history(self.folder)), *sections[2:]]
            write_page(self.folder / "report.html", f"Run {self.folder.name}", about, whole)
            files.insert(0, "report.html")
        print(f"report: {self.folder}/{', '.join(files)}")

    def _history(self, trainer: Trainer) -> list[dict[str, float]]:
        """The run's history; nothing if weights from elsewhere were tested, whose history is not here."""
        path = trainer.ckpt_path
        elsewhere = path is not None and not Path(path).resolve().is_relative_to(self.folder.resolve())
        return [] if elsewhere else read_history(self.folder)

    def _metrics(
        self, trainer: Trainer, module: LightningModule, target: Target, rows: dict[str, Errors], num_test: int
    ) -> dict[str, Any]:
        model, *others = rows
        mae, rmse = metric_name(target, "mae"), metric_name(target, "rmse")
        unit = mae.removeprefix(f"{target.name}_mae_")
        metrics: dict[str, Any] = {f"test_{mae}": rows[model].mae, f"test_{rmse}": rows[model].rmse}
        for name in others:
            key = name.split()[0]
            metrics[f"baseline_{key}_mae_{unit}"] = rows[name].mae
            if rows[name].rmse is not None:
                metrics[f"baseline_{key}_rmse_{unit}"] = rows[name].rmse
            metrics[f"mae_ratio_to_{key}"] = rows[model].mae / rows[name].mae if rows[name].mae else None
        validated = [row["val_mae"] for row in self._history(trainer) if np.isfinite(row["val_mae"])]
        hparams: Any = module.hparams
        return metrics | {
            f"best_val_{mae}": min(validated, default=None),
            "target": target.name,
            "unit": target.report_unit,
            **{name: hparams.get(name) for name in ("loss", "learning_rate")},
            **self.run_facts(trainer, module, num_test),
        }

    def run_facts(self, trainer: Trainer, module: Any, num_test: int) -> dict[str, Any]:
        """Network, data, machine and length of the training, which every `metrics.json` has."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        last = next(iter(self._history(trainer)[-1:]), {})
        return {
            "train_time_s": last.get("time_s"),
            "epochs": last.get("epoch"),
            "steps": last.get("step"),
            "num_parameters": count_parameters(module),
            "num_train": data.statistics.num_train,
            "num_test": num_test,
            "checkpoint": None if trainer.ckpt_path is None else str(trainer.ckpt_path),
            "network": type(module.model).__name__,
            **{name: getattr(data, name, None) for name in ("dataset", "split")},
            "device": torch.cuda.get_device_name() if module.device.type == "cuda" else module.device.type,
            **self.facts,
            **environment(),
        }


def _errors(residual: np.ndarray[Any, np.dtype[np.float64]]) -> Errors:
    return Errors(mae=float(np.abs(residual).mean()), rmse=float(np.sqrt((residual**2).mean())))


def kept_values(module: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Values of a test by name, of all processes; a metric makes a number of the only value of one structure."""
    kept = dict(module.test_values.items())
    chosen = kept if names is None else [name for name in names if name in kept]
    return {name: np.atleast_1d(kept[name].compute().cpu().numpy()) for name in chosen}


LABELS = {"mean": "mean of the training part", "composition": "composition regression"}


def _baselines(data: Any, factor: float) -> dict[str, Errors]:
    """The data's baselines on the test part; keys of mean squared kind end in `_rmse`."""
    values: dict[str, float] = data.baselines("test")
    return {
        label: Errors(values[key] * factor, values[f"{key}_rmse"] * factor if f"{key}_rmse" in values else None)
        for key, label in LABELS.items()
        if key in values
    }
