"""Labels that potentials are trained on: units of their errors, what is logged, and losses."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor


class Label(NamedTuple):
    """Name of a label; units of values, and of errors in tables and in names of metrics, with the factor to it."""

    name: str
    values: str
    errors: str
    unit: str
    factor: float


#: What a test keeps of each structure, and of each label, of a committee deviations as well.
TESTED = ("z", "atoms", "group", "idx", "energies")
OF_LABELS = ("true", "error", "deviation")
LABELS = {
    label.name: label
    for label in (
        Label("energy", "eV", "meV", "meV", 1e3),
        Label("forces", "eV/A", "meV/A", "meV_A", 1e3),
        Label("stress", "eV/A^3", "meV/A^3", "meV_A3", 1e3),
        Label("dipole", "e A", "me A", "me_A", 1e3),
        Label("polarizability", "A^3", "A^3", "A3", 1.0),
    )
}
#: Unit in names of metrics -> as people have it.
SHOWN = {label.unit: label.errors for label in LABELS.values()}
#: Quantities whose errors are logged; the first that the data have is the main one.
ERRORS = ("forces", "energy_per_atom", "dipole", "polarizability", "energy", "stress")


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


def unit_of(name: str) -> str:
    """The unit of an error, as names of metrics have it."""
    return LABELS["energy" if name.startswith("energy") else name].unit
