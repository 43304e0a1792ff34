"""Labels of a training: names of their errors, quantities that are logged, and losses."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from ..data import LABELS as ALL
from ..data.structures import Label
from ..data.targets import Target

#: What a test keeps of each structure, and of each label, of a committee deviations as well.
TESTED = ("z", "atoms", "group", "idx", "energies")
OF_LABELS = ("true", "error", "deviation")
#: Labels of potentials.
LABELS = {name: label for name, label in ALL.items() if name != "y"}
#: Unit in names of metrics -> as people have it.
SHOWN = {label.unit: label.errors for label in LABELS.values()}
#: Quantities whose errors are logged, with their labels; the first that the data have is the main one.
ERRORS = {
    name: LABELS[name.removesuffix("_per_atom")]
    for name in ("forces", "energy_per_atom", "dipole", "polarizability", "energy", "stress")
}


def _absolute(error: Tensor) -> Tensor:
    return error.norm(dim=-1)


def _huber(error: Tensor) -> Tensor:
    size = error.norm(dim=-1)
    return torch.where(size < 1, 0.5 * size**2, size - 0.5)


def _square(error: Tensor) -> Tensor:
    return error.square().mean(-1)


#: Losses of the rows of an error, in units of the scale.
LOSSES = {"l1": _absolute, "huber": _huber, "mse": _square}


def plain(text: str) -> str:
    """A name or unit with letters, digits and underscores alone, as names of metrics have them."""
    return re.sub("[^A-Za-z0-9]+", "_", text).strip("_")


def metric(label: Label, kind: str, part: str = "") -> str:
    """Name of an error in logs and files: label, kind and unit.

    Example:
        >>> metric(LABELS["energy"], "mae", "_per_atom")
        'energy_per_atom_mae_meV'
    """
    return f"{plain(label.name)}{part}_{kind}_{label.unit}"


def label_of(target: Target) -> Label:
    """The label ``y`` with name and units of a property."""
    unit, factor = target.report_unit, target.report_factor
    return ALL["y"]._replace(name=target.name, values=target.unit, errors=unit, unit=plain(unit), factor=factor)
