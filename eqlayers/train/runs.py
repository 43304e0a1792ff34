"""The facts of a run from its folder: network, data, progress and errors, as far as its files can be read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..core.checks import check_path, got
from ..core.errors import ConfigError, EqlayersError
from ..data.targets import TARGETS
from ..files import flattened, read_json, read_yaml
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


class Run:
    """One run, as far as its files can be read; what is damaged counts as missing, None, and is noted.

    ``kind`` has the error that is shown for every epoch, ``best`` its lowest value on the validation part, and
    ``errors`` are of the test part, ``kind`` first.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.label, self.folder, self.notes = label, folder, list[str]()
        self.config = flattened(self._read("config.yaml", read_yaml, "a configuration"))
        self._summary = self._read("summary.json", read_json, "the summary of a run")
        self._metrics = self._read("metrics.json", read_json, "the errors of a run")
        self.history: list[dict[str, float]] = []
        try:
            self.history = read_history(folder)
        except EqlayersError as error:
            self.notes.append(str(error))
        labelled = "labels" in self._metrics or "forces_weight" in {key.rpartition(".")[2] for key in self.config}
        task = str(self.config.get("task") or ("potential" if labelled else "property"))
        errors = self._errors(task)
        self.kind = self._kind(task, errors)
        self.errors = {name: errors[name] for name in errors if name == self.kind.quantity} | errors
        last = self.history[-1] if self.history else {}
        validated = [row["val_mae"] for row in self.history if math.isfinite(row["val_mae"])]
        self.best = min(validated, default=None)
        epochs, steps = last.get("epoch", self._number("epochs")), last.get("step", self._number("steps"))
        self.epochs = None if epochs is None else int(epochs)
        self.steps = None if steps is None else int(steps)
        self.time_s: float | None = last.get("time_s", self._number("train_time_s"))
        counts = ("num_parameters", "num_train", "num_test")
        self.num_parameters, self.num_train, self.num_test = (self._number(name) for name in counts)
        self.network, self.data = self._network(), self._data()
        self._note_state()

    @property
    def order(self) -> tuple[float, float]:
        """Sort key: the error on the test part; runs without one come last, by the error on the validation part."""
        mae = self.errors[self.kind.quantity].mae if self.kind.quantity in self.errors else math.nan
        best = math.inf if self.best is None else self.best
        return (mae if math.isfinite(mae) else math.inf, best)

    def _read(self, name: str, reader: Callable[..., Any], what: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            content = reader(path, what, FIX)
        except EqlayersError as error:
            self.notes.append(str(error))
            return {}
        if not isinstance(content, dict):
            self.notes.append(f"{path} must hold keys with values, got another content. {FIX}")
            return {}
        return content

    def _number(self, *names: str, source: dict[str, Any] | None = None) -> Any:
        """A number by the first of some names that has one."""
        for name in names:
            for facts in (self._metrics, self._summary) if source is None else (source,):
                value = facts.get(name)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    return value
                if value is not None:
                    self.notes.append(f"{name} must be a number, got {got(value)}. {FIX}")
        return None

    def _text(self, name: str) -> str | None:
        """A text of the test, or of the start of the training."""
        text = self._metrics.get(name, self._summary.get(name))
        return text if isinstance(text, str) else None

    def _errors(self, task: str) -> dict[str, Error]:
        """Errors on the test part, without the errors of single species, which the run's own report has."""
        errors = {}
        for key in self._metrics:
            match = re.fullmatch(r"test_(.+?)_mae_(.+)", key)
            mae = self._number(key, source=self._metrics) if match and "_on_" not in key else None
            if match and mae is not None:
                name, unit = match.groups()
                shown = (self._text("unit") or unit) if task == "property" else SHOWN.get(unit, unit)
                rmse = self._number(f"test_{name}_rmse_{unit}", source=self._metrics)
                plain = (f"baseline_{name}_mae_{unit}", f"baseline_composition_mae_{unit}")
                errors[name] = Error(shown, float(mae), rmse, self._number(*plain, source=self._metrics))
        return errors

    def _kind(self, task: str, errors: dict[str, Error]) -> Kind:
        """The kind of the training's own error if it is recorded; older runs tell it by their test or configuration."""
        recorded, target = self._summary.get("error"), self.config.get("data.target")
        if isinstance(recorded, str) and isinstance(self._summary.get("unit"), str):
            return Kind(task, recorded.partition("_mae")[0], self._summary["unit"])
        if errors:
            name = next((name for name in ERRORS if name in errors), next(iter(errors)))
            return Kind(task, name, errors[name].unit)
        if task == "property" and target in TARGETS:
            return Kind(task, target, TARGETS[target].report_unit)
        return Kind(task, "unknown quantity", "unit not recorded")

    def _network(self) -> str | None:
        """Class and sizes."""
        options = {name: self.config.get(f"model.model.init_args.{name}") for name in SIZES}
        sizes = [f"{name} {_short(value)}" for name, value in options.items() if value is not None]
        if self.config.get("data.cutoff") is not None:
            sizes.append(f"cutoff {_short(self.config['data.cutoff'])}")
        class_path = self.config.get("model.model.class_path")
        name = class_path.rpartition(".")[2] if isinstance(class_path, str) else self._text("network")
        return None if name is None else ", ".join([f"{name} {sizes[0]}", *sizes[1:]]) if sizes else name

    def _data(self) -> str | None:
        """Data set and split."""
        path = self._metrics.get("dataset") or self.config.get("data.path") or self.config.get("data.dataset")
        split = self._metrics.get("split") or self.config.get("data.split")
        return None if path is None else f"{path} ({split})" if split else str(path)

    def _note_state(self) -> None:
        if not self.config and not (self.folder / "config.yaml").is_file():
            self.notes.append("no config.yaml: what differs from the others is not known")
        most, tested = self.config.get("trainer.max_epochs"), self._metrics.get("epochs")
        done = f"{self.epochs} of {most}" if isinstance(most, int) and most > 0 else f"{self.epochs}"
        if not (self.folder / "metrics.json").is_file():
            self.notes.append(f"not tested; epochs done: {done if self.epochs else 'none'}")
        elif self.history and tested is None:
            self.notes.append(f"its test errors are of other weights: {self._text('checkpoint') or 'not recorded'}")
        elif self.epochs and tested is not None and tested != self.epochs:
            self.notes.append(f"tested after epoch {tested} and trained further since; epochs done: {done}")


def is_run(folder: str | Path) -> bool:
    """Whether a folder has a file that only runs have."""
    return any((Path(check_path("folder", folder)) / name).is_file() for name in FILES)


def what_is(folder: Path) -> str:
    """A description of a path that is not a run."""
    return "a folder without a run's files" if folder.is_dir() else "a file" if folder.exists() else "nothing there"


def read_run(folder: str | Path, label: str | None = None) -> Run:
    """Read what the folder of a run holds; what is damaged counts as missing and is noted."""
    folder = Path(check_path("folder", folder))
    if not is_run(folder):
        raise ConfigError(f"a run must be a folder that `eqlayers fit` wrote, got {folder}, {what_is(folder)}. {FIX}")
    return Run(folder, label or folder.resolve().name)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else re.sub(r"\s+", "", str(value))
