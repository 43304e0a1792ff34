"""Errors of a test by label, beside the errors of predictions that see no geometry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from ase.data import chemical_symbols
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from ..data.batches import collated
from ..data.datamodule import auxiliaries
from ..data.statistics import regression
from ..data.structures import Label, plain
from ..models import Committee, Potential, Structures
from ..models.committee import calibration
from ..pages.page import Table, number
from .steps import LABELS

Array = NDArray[Any]


class Errors(NamedTuple):
    """Errors of one predictor in the unit of reports."""

    mae: float
    rmse: float
    largest: float

    @classmethod
    def of(cls, error: Array) -> Errors:
        """Errors of the components that are finite."""
        size = np.abs(error[np.isfinite(error)])
        return cls(float(size.mean()), float(np.sqrt(np.square(size).mean())), float(size.max()))


class Baseline(NamedTuple):
    """A prediction without geometry: its name in `metrics.json` and in tables, and errors."""

    key: str
    name: str
    errors: Errors


class Row(NamedTuple):
    """Errors of a label, or of a part of it such as " on H"."""

    label: Label
    part: str
    errors: Errors
    baselines: list[Baseline]

    @property
    def name(self) -> str:
        """The name in tables."""
        return self.label.name + self.part

    @property
    def key(self) -> str:
        """The name in `metrics.json`."""
        return plain(self.label.name) + self.part.replace(" ", "_")

    def metrics(self) -> dict[str, float | None]:
        """The errors by their names in `metrics.json`."""
        unit, (mae, rmse, _) = self.label.unit, self.errors
        metrics: dict[str, float | None] = {f"test_{self.key}_mae_{unit}": mae, f"test_{self.key}_rmse_{unit}": rmse}
        for key, _, errors in self.baselines:
            name = key + self.part.replace(" ", "_")
            metrics[f"baseline_{name}_mae_{unit}"] = errors.mae
            if len(self.baselines) > 1:
                metrics[f"baseline_{name}_rmse_{unit}"] = errors.rmse
                metrics[f"mae_ratio_to_{name}"] = mae / errors.mae if errors.mae else None
        return metrics


class Composition(NamedTuple):
    """Values by the numbers of atoms of each species and a constant, fitted to the labels of a training part."""

    species: tuple[int, ...]
    values: Array
    constant: float = 0.0

    @classmethod
    def of(cls, part: Any, label: str, constant: bool) -> Composition:
        """The least-squares fit to a dataset."""
        structures = part.taken
        values = getattr(structures, label)
        counts, known = structures.counts(structures.species), ~np.isnan(values)
        fit = regression(counts[known], values[known], intercept=constant)
        return cls(structures.species, fit[: counts.shape[1]], float(fit[counts.shape[1] :].sum()))

    def __call__(self, z: Array, atoms: Array) -> Array:
        """Values of structures `[N]` of ``atoms`` atoms each."""
        by_number = np.zeros(len(chemical_symbols))
        by_number[list(self.species)] = self.values
        return np.asarray(np.add.reduceat(by_number[z], np.cumsum(atoms) - atoms)) + self.constant


@dataclass
class Predictions:
    """Labels and predictions on the test part.

    Attributes:
        labels: By their name in the data.
        values: By name, of the structures `[N]` or atoms `[A]`: what the module kept.
        groups: Names of the groups of structures, which ``values["group"]`` counts.
        data: The data module, whose training part baselines are fitted to.
    """

    labels: Mapping[str, Label]
    values: Mapping[str, Array]
    groups: Sequence[str] = ("",)
    data: Any = None

    def __post_init__(self) -> None:
        self.z, self.atoms, self.group = (self.values[name].astype(int) for name in ("z", "atoms", "group"))

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first atom of each structure `[N]`."""
        return np.asarray(np.cumsum(self.atoms) - self.atoms)

    def group_names(self, per_atom: bool) -> Array:
        """The group of each structure, or of each atom."""
        names = np.asarray([group or "no config_type" for group in self.groups])[self.group]
        return np.repeat(names, self.atoms) if per_atom else names

    def residuals(self, label: str) -> list[tuple[str, str, Array]]:
        """Key and name of each baseline, and the label less its predictions."""
        true = self.values[f"{label}_true"]
        if (further := auxiliaries(self.data).get(label)) is not None:
            name, (shifts, _) = further.label.name, self.data.statistics.auxiliary[further.label.name]
            by_species = Composition(tuple(shifts), np.array([*shifts.values()]))
            if further.pooling != "vector":
                sizes = np.ones_like(self.z) if further.label.axis == "A" else self.atoms
                true = true - by_species(self.z, sizes) / (self.atoms if further.pooling == "mean" else 1)
            return [(plain(name), "no geometry", true)]
        if label not in ("energy", "y"):
            return [(label, "no geometry", true)]
        part = self.data.train_set
        fit = Composition.of(part, label, label == "y" and not self.data.target.extensive)
        rest = true - fit(self.z, self.atoms)
        if label == "energy":
            return [(label, "no geometry", rest)]
        mean = true - (known := part.taken.y)[~np.isnan(known)].mean()
        return [("mean", "mean of the training part", mean), ("composition", "composition regression", rest)]

    def rows(self) -> tuple[list[Row], list[Row]]:
        """Errors of each label on the whole part, per atom and by element as well; and on each group of several."""
        whole: list[Row] = []
        of_groups: list[Row] = []
        for name in self.labels:
            residuals, of_atoms = self.residuals(name), self.labels[name].axis == "A"
            whole += self._row(name, residuals)
            if name == "energy":
                whole += self._row(name, residuals, " per atom", size=self.atoms)
            finite = np.isfinite(self.values[f"{name}_error"]).reshape(len(self.values[f"{name}_error"]), -1)[:, 0]
            for z in np.unique(self.z[finite]) if of_atoms else ():
                whole += self._row(name, residuals, f" on {chemical_symbols[z]}", self.z == z)
            group = np.repeat(self.group, self.atoms) if of_atoms else self.group
            for index, group_name in enumerate(self.groups) if len(self.groups) > 1 else ():
                of_groups += self._row(name, residuals, f" of {group_name or 'others'}", group == index)
        return whole, of_groups

    def _row(
        self, name: str, residuals: list[tuple[str, str, Array]], part: str = "", members: Any = ..., size: Any = 1
    ) -> list[Row]:
        label, error = self.labels[name], self.values[f"{name}_error"][members]
        if not np.isfinite(error).any():
            return []
        factor = label.factor / size
        baselines = [Baseline(key, shown, Errors.of(factor * rest[members])) for key, shown, rest in residuals]
        return [Row(label, part, Errors.of(factor * error), baselines)]

    def deviations(self) -> dict[str, Any]:
        """Mean deviations of a committee, their correlation with the errors, and the errors over them; printed."""
        facts: dict[str, Any] = {}
        for name, label in self.labels.items():
            if f"{name}_deviation" not in self.values:
                continue
            size = self.atoms if name == "energy" else 1
            deviations = self.values[f"{name}_deviation"] * label.factor / size
            errors = self.values[f"{name}_error"] * label.factor
            errors = np.linalg.norm(errors.reshape(len(errors), -1), axis=1) / size
            there = np.isfinite(deviations) & np.isfinite(errors)
            if not there.any():
                continue
            key, mean = "energy_per_atom" if name == "energy" else name, float(deviations[there].mean())
            facts[f"test_{key}_deviation_{label.unit}"] = mean
            text = f"deviation of {key.replace('_', ' ')}: mean {number(mean)} {label.errors}"
            if fit := calibration(deviations[there], errors[there]):
                correlation, larger = fit
                facts[f"test_{key}_deviation_correlation"], facts[f"test_{key}_error_by_deviation"] = fit
                text += f", correlation with the error {correlation:.2f}, errors are {larger:.1f} times as large"
            print(text)
        return facts


@torch.no_grad()
def energies_of(potential: Potential | Committee, part: Dataset[Any], size: int) -> NDArray[np.float64]:
    """``[N]`` eV: predictions for the structures of a dataset, ``size`` at once."""
    training, energies = potential.training, []
    potential.eval()
    for batch in DataLoader(part, size, collate_fn=collated, generator=torch.Generator()):  # not the global state
        known = Structures.of(batch.to(potential.device))
        cell = None if known.cell is None else known.cell.to(potential.dtype)
        energies.append(potential(known._replace(pos=known.pos.to(potential.dtype), cell=cell), ("energy",))["energy"])
    potential.train(training)
    return torch.cat(energies).cpu().numpy()


def lone_row(potential: Potential | Committee, data: Any) -> Row:
    """Errors of the energies of free atoms, which are in no part."""
    part = data.lone_set.taken
    error = energies_of(potential, data.lone_set, data.eval_size(data.lone_set)) - part.energy
    rest = Composition.of(data.train_set, "energy", False)(part.z, part.n_atoms) - part.energy
    label = LABELS["energy"]
    baseline = Baseline("energy", "no geometry", Errors.of(label.factor * rest))
    return Row(label, " of lone atoms", Errors.of(label.factor * error), [baseline])


def table(rows: Sequence[Row]) -> Table:
    """Errors of each quantity; a baseline has a column, and each of several a line with the ratio of the errors."""
    several = any(len(row.baselines) > 1 for row in rows)
    headings = ("quantity", "unit", "MAE", "RMSE", "largest", "MAE / model's" if several else "no geometry, MAE")
    cells = []
    for row in rows:
        unit, mae = row.label.errors, row.errors.mae
        baseline = "1" if several else number(row.baselines[0].errors.mae)
        cells.append((row.name, unit, *map(number, row.errors), baseline))
        for _, name, errors in row.baselines if several else ():
            cells.append((name, unit, *map(number, errors), f"{errors.mae / mae:.2f}" if mae else "-"))
    return Table(headings, cells, left=2)
