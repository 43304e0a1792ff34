"""The subject of a measurement: a network and atoms for it, the same for all packages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import Potential
from .atoms import Place

Evaluate = Callable[[torch.nn.Module, bool], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Subject:
    """A network, and atoms for it.

    Attributes:
        name: What it is, in a few words.
        place: The atoms.
        make: The network in a dtype, on the CPU; the same numbers in every dtype and every call.
        evaluate: Energies ``[G]`` eV and forces ``[A, 3]`` eV/Angstrom of the atoms, from a network in its dtype and on
            its device; with the graph of the forces if the second argument says so.
        peer: The package that it is from; '' for this one.
        compiled: The same, compiled by torch; None where the package has no way to do so.
        native: Makes a potential of this package of a network; None where there is none.
    """

    name: str
    place: Place
    make: Callable[[torch.dtype], torch.nn.Module]
    evaluate: Evaluate
    peer: str = ""
    compiled: Callable[[torch.dtype], torch.nn.Module] | None = None
    native: Callable[[torch.nn.Module], Potential] | None = None


def kind_of(network: torch.nn.Module) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of a network's parameters."""
    first = next(network.parameters())
    return first.dtype, first.device


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Other packages' advice on how to train is not wanted here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def representable(network: torch.nn.Module) -> torch.nn.Module:
    """Round all parameters to float32, so that networks of different dtypes have the same ones."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.float())
    return network
