"""The facts of a run from its folder: network, data, progress and errors, as far as its files can be read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..core.checks import check_path, got
from ..core.errors import ConfigError, EqlayersError
from ..data.targets import TARGETS
from ..files import read_json, read_yaml
from .history import read_history
from .labels import ERRORS, SHOWN

#: Files of which a run has at least one.
FILES = ("config.yaml", "summary.json", "history.json", "metrics.json")
#: Options of a network that say how large it is.
SIZES = ("hidden", "channels", "width", "correlation", "lmax", "layers")
FIX = "Train again, or leave it out."


class Error(NamedTuple):
    """Errors of one quantity on the test part; None for what an older run did not record."""

    unit: str
    mae: float
    rmse: float | None
    baseline: float | None


class Kind(NamedTuple):
    """Runs of one kind can be sorted: what they learn, and the error that counts."""

    task: str
    quantity: str
    unit: str

    def __str__(self) -> str:
        return f"{self.quantity} ({self.unit})"


@dataclass(frozen=True)
class Run:
    """One run; None for what is not known.

    Attributes:
        label: How tables name it.
        folder: Where it is.
        kind: Task, quantity and unit of the error that is shown for every epoch.
        network: Class and sizes.
        data: Data set and split.
        num_parameters: Learned numbers.
        num_train: Structures or molecules of the training part.
        num_test: Of the test part.
        epochs, steps, time_s: Done so far; seconds of training.
        errors: On the test part, by quantity, ``kind`` first.
        best: Lowest validation error, in the unit of ``kind``.
        history: The epochs.
        config: The configuration, flat; empty if it cannot be read.
        notes: What is missing, damaged or unfinished.
    """

    label: str
    folder: Path
    kind: Kind
    network: str | None
    data: str | None
    num_parameters: int | None
    num_train: int | None
    num_test: int | None
    epochs: int | None
    steps: int | None
    time_s: float | None
    errors: dict[str, Error]
    best: float | None
    history: list[dict[str, float]]
    config: dict[str, Any]
    notes: list[str]

    @property
    def order(self) -> tuple[float, float]:
        """Sort key: the error on the test part; runs without one come last, by the error on the validation part."""
        mae = self.errors[self.kind.quantity].mae if self.kind.quantity in self.errors else math.nan
        best = math.inf if self.best is None else self.best
        return (mae if math.isfinite(mae) else math.inf, best)


def is_run(folder: str | Path) -> bool:
    """Whether a folder has a file that only runs have.

    Example:
        >>> is_run("no/such/run")
        False
    """
    return any((Path(check_path("folder", folder)) / name).is_file() for name in FILES)


def what_is(folder: Path) -> str:
    """A description of a path that is not a run.

    Example:
        >>> what_is(Path("no/such/run"))
        'nothing there'
    """
    return "a folder without a run's files" if folder.is_dir() else "a file" if folder.exists() else "nothing there"


def flattened(value: Any, prefix: str = "") -> dict[str, Any]:
    """The keys of nested mappings joined by dots.

    Example:
        >>> flattened({"model": {"loss": "l1", "betas": [0.9, 0.999]}, "seed": 1})
        {'model.loss': 'l1', 'model.betas': [0.9, 0.999], 'seed': 1}
    """
    if not isinstance(value, dict) or not value:
        return {prefix: value} if prefix else {}
    inner = [flattened(item, f"{prefix}.{key}" if prefix else str(key)) for key, item in value.items()]
    return {key: item for part in inner for key, item in part.items()}


def read_run(folder: str | Path, label: str | None = None) -> Run:
    """Read what the folder of a run holds; what is damaged counts as missing and is noted.

    Example:
        >>> read_run("no/such/run")
        Traceback (most recent call last):
        ...
        eqlayers.errors.ConfigError: a run must be a folder that `eqlayers fit` wrote, got no/such/run, ...
    """
    folder = Path(check_path("folder", folder))
    if not is_run(folder):
        raise ConfigError(f"a run must be a folder that `eqlayers fit` wrote, got {folder}, {what_is(folder)}. {FIX}")
    return _Reader(folder).run(label or folder.resolve().name)


class _Reader:
    """The files of a run, and what was wrong with them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes = folder, list[str]()
        config = self._read("config.yaml", lambda path: read_yaml(path, "a configuration", FIX))
        self.config = flattened(config)
        self.class_path = self.config.get("model.model.class_path")
        self.summary = self._read("summary.json", lambda path: read_json(path, "the summary of a run", FIX))
        self.metrics = self._read("metrics.json", lambda path: read_json(path, "the errors of a run", FIX))
        self.history: list[dict[str, float]] = []
        try:
            self.history = read_history(folder)
        except EqlayersError as error:
            self.notes.append(str(error))

    def _read(self, name: str, reader: Any) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            content = reader(path)
        except EqlayersError as error:
            self.notes.append(str(error))
            return {}
        if not isinstance(content, dict):
            self.notes.append(f"{path} must hold keys with values, got another content. {FIX}")
            return {}
        return content

    def number(self, *names: str, source: dict[str, Any] | None = None) -> Any:
        """A number by the first of some names that has one."""
        for name in names:
            for facts in (self.metrics, self.summary) if source is None else (source,):
                value = facts.get(name)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    return value
                if value is not None:
                    self.notes.append(f"{name} must be a number, got {got(value)}. {FIX}")
        return None

    def text(self, name: str) -> str | None:
        """A text of the test, or of the start of the training."""
        text = self.metrics.get(name, self.summary.get(name))
        return text if isinstance(text, str) else None

    def errors(self, task: str) -> dict[str, Error]:
        """Errors on the test part, without the errors of single species, which the run's own report has."""
        errors = {}
        for key in self.metrics:
            match = re.fullmatch(r"test_(.+?)_mae_(.+)", key)
            mae = self.number(key, source=self.metrics) if match and "_on_" not in key else None
            if match and mae is not None:
                name, unit = match.groups()
                shown = (self.text("unit") or unit) if task == "property" else SHOWN.get(unit, unit)
                rmse = self.number(f"test_{name}_rmse_{unit}", source=self.metrics)
                plain = (f"baseline_{name}_mae_{unit}", f"baseline_composition_mae_{unit}")
                errors[name] = Error(shown, float(mae), rmse, self.number(*plain, source=self.metrics))
        return errors

    def kind(self, task: str, errors: dict[str, Error]) -> Kind:
        """The kind of the training's own error if it is recorded; older runs tell it by their test or configuration."""
        recorded, target = self.summary.get("error"), self.config.get("data.target")
        if isinstance(recorded, str) and isinstance(self.summary.get("unit"), str):
            return Kind(task, recorded.partition("_mae")[0], self.summary["unit"])
        if errors:
            name = next((name for name in ERRORS if name in errors), next(iter(errors)))
            return Kind(task, name, errors[name].unit)
        if task == "property" and target in TARGETS:
            return Kind(task, target, TARGETS[target].report_unit)
        return Kind(task, "unknown quantity", "unit not recorded")

    def network(self) -> str | None:
        """Class and sizes."""
        options = {name: self.config.get(f"model.model.init_args.{name}") for name in SIZES}
        sizes = [f"{name} {_short(value)}" for name, value in options.items() if value is not None]
        if self.config.get("data.cutoff") is not None:
            sizes.append(f"cutoff {_short(self.config['data.cutoff'])}")
        name = self.class_path.rpartition(".")[2] if isinstance(self.class_path, str) else self.text("network")
        return None if name is None else ", ".join([f"{name} {sizes[0]}", *sizes[1:]]) if sizes else name

    def data(self) -> str | None:
        """Data set and split."""
        path = self.metrics.get("dataset") or self.config.get("data.path") or self.config.get("data.dataset")
        split = self.metrics.get("split") or self.config.get("data.split")
        return None if path is None else f"{path} ({split})" if split else str(path)

    def run(self, label: str) -> Run:
        """All of it."""
        labelled = "labels" in self.metrics or "forces_weight" in {key.rpartition(".")[2] for key in self.config}
        task = str(self.config.get("task") or ("potential" if labelled else "property"))
        errors = self.errors(task)
        kind = self.kind(task, errors)
        last = self.history[-1] if self.history else {}
        validated = [row["val_mae"] for row in self.history if math.isfinite(row["val_mae"])]
        epochs, steps = last.get("epoch", self.number("epochs")), last.get("step", self.number("steps"))
        first = {name: error for name, error in errors.items() if name == kind.quantity}
        run = Run(
            label=label,
            folder=self.folder,
            kind=kind,
            network=self.network(),
            data=self.data(),
            num_parameters=self.number("num_parameters"),
            num_train=self.number("num_train"),
            num_test=self.number("num_test"),
            epochs=None if epochs is None else int(epochs),
            steps=None if steps is None else int(steps),
            time_s=last.get("time_s", self.number("train_time_s")),
            errors=first | errors,
            best=min(validated, default=None),
            history=self.history,
            config=self.config,
            notes=self.notes,
        )
        self._state(run)
        return run

    def _state(self, run: Run) -> None:
        if not self.config and not (self.folder / "config.yaml").is_file():
            self.notes.append("no config.yaml: what differs from the others is not known")
        most, tested = self.config.get("trainer.max_epochs"), self.metrics.get("epochs")
        done = f"{run.epochs} of {most}" if isinstance(most, int) and most > 0 else f"{run.epochs}"
        if not (self.folder / "metrics.json").is_file():
            self.notes.append(f"not tested; epochs done: {done if run.epochs else 'none'}")
        elif run.history and tested is None:
            self.notes.append(f"its test errors are of other weights: {self.text('checkpoint') or 'not recorded'}")
        elif run.epochs and tested is not None and tested != run.epochs:
            self.notes.append(f"tested after epoch {tested} and trained further since; epochs done: {done}")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else re.sub(r"\s+", "", str(value))
