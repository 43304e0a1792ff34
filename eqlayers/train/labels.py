"""Labels that potentials are trained on: units of their errors, what is logged, and losses."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ERRORS", "LABELS", "LOSSES", "SHOWN", "unit_of"]

#: label -> (unit of errors, factor from eV, Angstrom and elementary charges)
LABELS = {
    "energy": ("meV", 1e3),
    "forces": ("meV_A", 1e3),
    "stress": ("meV_A3", 1e3),
    "dipole": ("me_A", 1e3),
    "polarizability": ("A3", 1.0),
}
SHOWN = {"meV": "meV", "meV_A": "meV/A", "meV_A3": "meV/A^3", "me_A": "me A", "A3": "A^3"}
#: What errors are logged of; the first that the data have is the main one.
ERRORS = ("forces", "energy_per_atom", "dipole", "polarizability", "energy", "stress")


def _absolute(error: Tensor) -> Tensor:
    return error.norm(dim=-1)


def _huber(error: Tensor) -> Tensor:
    size = error.norm(dim=-1)
    return torch.where(size < 1, 0.5 * size**2, size - 0.5)


def _square(error: Tensor) -> Tensor:
    return error.square().mean(-1)


#: Of the rows of an error in units of the scale.
LOSSES = {"l1": _absolute, "huber": _huber, "mse": _square}


def unit_of(name: str) -> str:
    """Of an error, as names of metrics have it.

    Example:
        >>> unit_of("energy_per_atom"), unit_of("dipole")
        ('meV', 'me_A')
    """
    return LABELS["energy" if name.startswith("energy") else name][0]
