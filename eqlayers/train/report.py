"""The report of a test: a table against the baselines, `metrics.json`, pictures, page; the table of predictions."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, Callback
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from .. import __version__
from ..core.checks import check_flag, check_path, check_type
from ..core.files.read_write import atomic_write
from ..data.targets import Target
from ..pages import Block, Picture, Section, Table, number, save_figure, write_page
from ..pages.machine import cpu_model, source_commit
from . import page
from .base import is_dry_run, trained_module
from .history import read_history, write_json
from .module import metric_name, target_of
from .plots import histogram, learning_curve, parity_plot
from .summary import count_parameters

Array = NDArray[Any]
WORST = 12  # molecules in the table
PREDICTED = ("idx", "group", "true", "predicted")
Figures = dict[str, list[Figure]]
#: Name and unit of the main error, the same error of predictors that see no geometry, and the error of the test.
Curve = tuple[str, str, dict[str, float], float] | None
#: Predictors that see no geometry, by their key in the baselines of the data.
BASELINES = {"mean": "mean of the training part", "composition": "composition regression"}


class Errors(NamedTuple):
    """Errors of one predictor in the report unit."""

    mae: float
    rmse: float


def environment() -> dict[str, Any]:
    """Processor and versions of the packages behind a result, and the git commit of the source tree if it is one."""
    facts: dict[str, Any] = {"processor": cpu_model(), "eqlayers_version": __version__}
    facts["python_version"] = platform.python_version()
    for package in ("torch", "lightning", "e3nn", "triton"):
        try:
            facts[f"{package}_version"] = version(package)
        except PackageNotFoundError:
            facts[f"{package}_version"] = None
    return facts | {"git_commit": source_commit()}


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
        module: Any = pl_module
        kept, names = dict(module.test_values.items()), self.names(module)
        # of all processes; a metric makes a number of the only value of one structure
        values = {name: np.atleast_1d(kept[name].compute().cpu().numpy()) for name in names or kept if name in kept}
        if not trainer.is_global_zero:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        rows = self.measured(module, data, values)
        if is_dry_run(trainer):
            return
        metrics = self.metrics(module, data, rows, values) | self.run_facts(trainer, module, len(values["idx"]))
        write_json(self.folder / "metrics.json", metrics)
        about, figures, curve = self.drawn(module, data, rows, values)
        pictures, history = {name: several[0] for name, several in figures.items()}, self._history(trainer)
        if history and curve is not None:
            pictures["learning_curve"] = learning_curve(history, *curve)
        for name, figure in pictures.items():
            save_figure(figure, self.folder / f"{name}.png")
        files = ["metrics.json", *(f"{name}.png" for name in pictures)]
        if self.page:
            print(f"writing {self.folder}/report.html{self.besides}", flush=True)
            main = pictures.get("learning_curve")
            curves = None if main is None else Picture(main, "The error that decides which weights are kept.")
            data_and_network, rest = self.sections(module, data, rows, values, figures)
            middle = page.curves(self.folder, curves, read_history(self.folder))
            whole = [page.what_was_run(self.folder, metrics), *data_and_network, middle, *rest]
            write_page(self.folder / "report.html", f"Run {self.folder.name}", about, whole)
            files.insert(0, "report.html")
        print(f"report: {self.folder}/{', '.join(files)}")

    # ---- what differs between kinds of trainings --------------------------------------------------------------------

    #: Words behind the name of the page that is being written.
    besides = ""

    def names(self, module: Any) -> list[str] | None:
        """Names of the values of the test; None for all that the module kept."""
        return None

    def measured(self, module: Any, data: Any, values: dict[str, Any]) -> Any:
        """Errors of the model and of the baselines, printed as a table."""
        target, model = target_of(module), type(module.model).__name__
        true, predicted, factor = values["true"], values["predicted"], target.report_factor
        rows = {model: _errors((predicted - true) * factor)}
        if len(true) == len(data.test_set):
            baselines = data.baselines("test")
            for key, label in BASELINES.items():
                rows[label] = Errors(baselines[key] * factor, baselines[f"{key}_rmse"] * factor)
        else:
            print(f"no baselines: {len(true)} of {len(data.test_set)} test molecules were predicted")
        table = self._table(target, rows, len(true))
        Console().print(table.rich(f"test errors of {target.name} ({target.about})"))
        return rows

    def _table(self, target: Target, rows: dict[str, Errors], num_test: int) -> Table:
        """Errors of all predictors, and how many times larger than the model's, which come first, they are."""
        best, unit, cells = next(iter(rows.values())).mae, target.report_unit, []
        for place, (name, errors) in enumerate(rows.items()):
            ratio = "1" if not place else f"{errors.mae / best:.2f}" if best else "-"
            cells.append((name, number(errors.mae), number(errors.rmse), ratio))
        about = f"Errors of {target.name}, the {target.about}, on {num_test} test "
        return Table(("predictor", f"MAE ({unit})", f"RMSE ({unit})", "MAE / model's"), cells, about)

    def metrics(self, module: Any, data: Any, rows: Any, values: dict[str, Any]) -> dict[str, Any]:
        """Content of `metrics.json` besides the facts of the run."""
        target, (model, *others) = target_of(module), rows
        mae, rmse = metric_name(target, "mae"), metric_name(target, "rmse")
        unit = mae.removeprefix(f"{target.name}_mae_")
        metrics: dict[str, Any] = {f"test_{mae}": rows[model].mae, f"test_{rmse}": rows[model].rmse}
        for name in others:
            key = name.split()[0]
            metrics[f"baseline_{key}_mae_{unit}"] = rows[name].mae
            metrics[f"baseline_{key}_rmse_{unit}"] = rows[name].rmse
            metrics[f"mae_ratio_to_{key}"] = rows[model].mae / rows[name].mae if rows[name].mae else None
        validated = [row["val_mae"] for row in self._history(module.trainer) if np.isfinite(row["val_mae"])]
        return metrics | {
            f"best_val_{mae}": min(validated, default=None),
            "target": target.name,
            "unit": target.report_unit,
            **{name: module.hparams.get(name) for name in ("loss", "learning_rate")},
        }

    def drawn(self, module: Any, data: Any, rows: Any, values: dict[str, Any]) -> tuple[str, Figures, Curve]:
        """The errors in a sentence, figures by the name of the file that holds the first of them, and the curve."""
        target, (model, *others), true = target_of(module), rows, values["true"]
        about = f"{model} on {len(true)} test molecules: MAE {number(rows[model].mae)} {target.report_unit}"
        heavy = data.test_set.data.heavy[_rows_of(data.test_set, values["idx"])]
        groups = [f"{one} heavy atoms" for one in heavy.tolist()]
        parity = parity_plot(true, values["predicted"], target.name, target.unit, about, groups)
        lines = {name: rows[name].mae for name in others}
        return about, {"parity": [parity]}, (target.name, target.report_unit, lines, rows[model].mae)

    def sections(
        self, module: Any, data: Any, rows: Any, values: dict[str, Any], figures: Figures
    ) -> tuple[list[Section], list[Section]]:
        """Sections of the page: data and network, and what follows the learning curves."""
        target = target_of(module)
        network = page.network(module.model, module.device, {"cutoff": f"{data.cutoff:g} A"})
        rest = [
            Section("Errors", [self._table(target, rows, len(values["true"]))]),
            Section("Predictions", [Picture(figures["parity"][0], f"Predicted against true {target.name}.")]),
            largest_errors(data.test_set, values, target),
        ]
        return [molecules_section(data, target), network], rest

    def _history(self, trainer: Trainer) -> list[dict[str, float]]:
        """The run's history; nothing if weights from elsewhere were tested, whose history is not here."""
        path = trainer.ckpt_path
        elsewhere = path is not None and not Path(path).resolve().is_relative_to(self.folder.resolve())
        return [] if elsewhere else read_history(self.folder)

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
            **{f"{name}_trained_share": share for name, share in module.trained_share.items()},
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
        unit = trained_module(pl_module).unit()
        columns = [name for name in PREDICTED if all(name in batch for batch in predictions)]
        table = pandas.DataFrame(
            {name: [*chain.from_iterable(batch[name] for batch in predictions)] for name in columns}
        )
        text = table.assign(unit=unit).to_csv(index=False, na_rep="nan", lineterminator="\n")
        path = self.path if trainer.world_size == 1 else self.path.with_stem(f"predictions-{trainer.global_rank}")
        with atomic_write(path) as file:
            file.write(text.encode())
        print(f"predictions: {path}")


def _rows_of(dataset: Any, idx: Array) -> Array:
    """Rows of molecules in the arrays, by their numbers in the source."""
    rows = np.asarray(dataset.rows)
    known = dataset.data.idx[rows]
    if np.array_equal(known, idx):  # several files have the same numbers
        return rows
    order = np.argsort(known)
    return rows[order[np.searchsorted(known, idx.astype(int), sorter=order)]]


def molecules_section(module: Any, target: Target) -> Section:
    """Sizes of the parts, and distributions of the property and of distances."""
    shifts, taken = module.statistics.shifts, page.taken_parts(module)
    free = np.array(list(shifts.values()))
    rest = {name: part.y - part.counts(tuple(shifts)) @ free for name, part in taken.items()}
    less = " less the shifts of the atoms" if target.extensive else ""
    rows = []
    for name, part in taken.items():
        spread = (number(rest[name].mean()), number(rest[name].std()))
        rows.append((name, f"{len(part):,}", f"{part.n_atoms.sum():,}", page.span(part.n_atoms), *spread))
    headings = ("part", "molecules", "atoms", "atoms each", f"mean, {target.unit}", f"deviation, {target.unit}")
    figure = histogram(rest, f"{target.name} ({target.unit})", "molecules")
    near = page.distances(module.train_set, module.cutoff)
    caption = f"Mean and standard deviation are of {target.name}{less}." if less else ""
    blocks: list[Block] = [Table(headings, rows, caption)]
    blocks.append(Picture(figure, f"The {target.about}{less}, by part."))
    return Section("Data", blocks if near is None else [*blocks, near])


def largest_errors(dataset: Any, values: Mapping[str, Array], target: Target) -> Section:
    """Molecules with the largest errors."""
    errors = (values["predicted"] - values["true"]) * target.report_factor
    order = np.argsort(-np.abs(errors), kind="stable")[:WORST]
    rows = []
    for place, row in zip(order, _rows_of(dataset, values["idx"])[order], strict=True):
        made_of = page.formula(dataset.data.take(np.array([row])).z)
        numbers = (values["true"][place], values["predicted"][place])
        shown = [f"{float(one):.6g}" for one in numbers]
        rows.append((str(int(values["idx"][place])), made_of, *shown, number(errors[place])))
    units = (f"true, {target.unit}", f"predicted, {target.unit}", f"error, {target.report_unit}")
    return Section("Largest errors", [Table(("number", "molecule", *units), rows, left=2)])
