"""Steps of small networks, and the number of torch operators in each: the host's work around the kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..models import MACE, MoleculeNetwork, NequIP, Potential, Structures
from ..models.compiled import Compiles
from ..models.structures import NeighborLists, collate
from .measure import OperatorClock, alternate, keep_random_state

if TYPE_CHECKING:
    from ase import Atoms

OUTPUTS = ("energy", "forces")


class Step(NamedTuple):
    """A call, and the module whose calls in it can be compiled."""

    module: Compiles
    run: Callable[[], Any]


def crystals() -> list[Atoms]:
    """Two cells of wurtzite AlN with 32 atoms each."""
    from ase.build import bulk

    cell = bulk("AlN", "wurtzite", a=3.1, c=5.0) * (2, 2, 2)
    cell.rattle(0.05)
    return [cell, cell]


def waters() -> list[Atoms]:
    """Two molecules of water, for which the host is nearly all that costs."""
    from ase.build import molecule

    return [molecule("H2O")] * 2


def joined(model: Any, structures: list[Atoms]) -> Structures:
    """Structures as one batch, with neighbours within the cutoff of the model."""
    return collate(model, structures, [NeighborLists(model.cutoff)(atoms) for atoms in structures])


def updated(network: Compiles, loss: Callable[[], torch.Tensor]) -> Step:
    """A training step: the loss, the gradients of all weights, and a step of AdamW."""
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)

    def step() -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward(inputs=[*network.parameters()])
        optimizer.step()

    return Step(network, step)


def training(make: Callable[..., Any], species: list[str], structures: Callable[[], list[Atoms]]) -> Step:
    """A training step on energies and forces."""
    potential = Potential(make(species), species)
    batch = joined(potential, structures())

    def loss() -> torch.Tensor:
        out = potential(batch, OUTPUTS)
        return out["energy"].sum() ** 2 * 1e-3 + out["forces"].square().mean()

    return updated(potential, loss)


def molecules() -> Step:
    """A training step of the network of ``configs/qm9_mini.yaml`` on one number for each of 32 molecules."""
    from ase.build import molecule

    how: dict[str, Any] = {"lmax": 2, "layers": 4, "num_basis": 8, "radial_hidden": [32], "knots": 256, "cutoff": 3.5}
    network = MoleculeNetwork(["H", "C", "N", "O", "F"], hidden="16x0e + 16x1o + 16x2e", readout="scalar", **how)
    listed = [molecule(name) for name in ("CH3CH2OH", "H2O", "CH3COOH", "C6H6")] * 8
    at = joined(SimpleNamespace(cutoff=3.5, device=torch.device("cpu"), dtype=torch.float32), listed)

    def loss() -> torch.Tensor:
        values: torch.Tensor = network(at.z, at.pos, at.edge_index, at.batch, at.num_graphs)
        return values.square().mean()

    return updated(network, loss)


def water() -> Step:
    """Energy and forces of one molecule of water by a network of three layers."""
    potential = Potential(nequip(["H", "O"]), ["H", "O"]).eval()
    batch = joined(potential, waters()[:1])
    return Step(potential, lambda: potential(batch, OUTPUTS))


mace = partial(MACE, hidden="16x0e + 16x1o", lmax=2, layers=2)
nequip = partial(NequIP, hidden="8x0e + 8x1o", lmax=2, layers=3)
#: What is done -> (function that builds the step, the most operators in it).
STEPS: dict[str, tuple[Callable[[], Step], int]] = {
    "MACE, training": (lambda: training(mace, ["Al", "N"], crystals), 370),
    "MACE with tables, training": (lambda: training(partial(mace, knots=256), ["Al", "N"], crystals), 395),
    "NequIP, training": (lambda: training(nequip, ["Al", "N"], crystals), 295),
    "MoleculeNetwork, training": (molecules, 225),
    "NequIP, energy and forces of water": (water, 115),
}
#: Steps whose time is the host's.
SMALL: dict[str, Callable[[], Step]] = {
    "MACE, training on two molecules of water": lambda: training(mace, ["H", "O"], waters),
    "NequIP, training on two molecules of water": lambda: training(nequip, ["H", "O"], waters),
    "NequIP, energy and forces of water": water,
}


def missing() -> str | None:
    """None if the steps can be built, else what they need."""
    return None if find_spec("ase") else "Steps of networks need ase. Install the extra train."


def operators_of(build: Callable[[], Step]) -> tuple[int, int]:
    """The number of torch operators in a step, with views; and how many of them are kernels of this package."""
    with keep_random_state(torch.device("cpu")):
        torch.manual_seed(0)
        step = build()
        step.run()  # makes what is cached
        with OperatorClock() as counted:
            step.run()
    return counted.operators, counted.kernels


def times_of(build: Callable[[], Step], runs: int = 30) -> tuple[float, float, float]:
    """Seconds of a step by Python and compiled, in turns, medians; and of the first compiled one, with its trace."""
    with keep_random_state(torch.device("cpu")):
        torch.manual_seed(0)
        eager, compiled = build(), build()
        compiled.module.compile()
        began = time.perf_counter()
        compiled.run()
        first = time.perf_counter() - began
        plain, traced = alternate([eager.run, compiled.run], runs, "cpu", warmup=2, host=True)
    return median(plain), median(traced), first
