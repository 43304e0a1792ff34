"""`eqlayers check` of every network that comes with the package, repulsion and all, and of those of the examples."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ase")  # the check makes its examples with it
pytest.importorskip("vesin")
pytest.importorskip("lightning")  # which examples train with

from ase import Atoms

from eqlayers.models import MACE, TFN, Equiformer, NequIP, Potential
from eqlayers.models.mace import INTERACTIONS
from eqlayers.nn import ZBL
from eqlayers.testing import ToyNetwork, check_potential
from eqlayers.testing.examples import example_structures

ROOT = Path(__file__).resolve().parents[2]
SPECIES = [1, 6, 8]
SMALL = {"hidden": "4x0e + 4x1o", "lmax": 2, "cutoff": 4.0, "radial_hidden": (8,)}


def example(name: str) -> Any:
    """The network of a script of `examples/`, whose main is not run."""
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["Network"]


NETWORKS = {
    **{name: lambda name=name: MACE(SPECIES, correlation=2, interactions=name, **SMALL) for name in INTERACTIONS},
    "MACE, three neighbours, agnesi": lambda: MACE(SPECIES, correlation=3, distance_transform="agnesi", **SMALL),
    "NequIP": lambda: NequIP(SPECIES, layers=3, **SMALL),
    "TFN": lambda: TFN(SPECIES, layers=2, **SMALL),
    "Equiformer": lambda: Equiformer(SPECIES, "4x0e + 4x1o", heads=2, layers=2, cutoff=4.0, radial_hidden=(8,)),
    "toy": lambda: ToyNetwork(3),
    "example 10": lambda: example("10_own_network")(SPECIES, width=4),
    "example 11": lambda: example("11_mace_from_layers")(SPECIES, channels=4, lmax=2),
}


def near() -> list[Atoms]:
    """Molecule and crystal whose atoms are so near that all pairs repel each other."""
    structures = example_structures(SPECIES, 4.0)
    for atoms in structures:
        atoms.set_cell(0.7 * atoms.cell.array)
        atoms.positions *= 0.7
        atoms.rattle(0.05, seed=1)  # in a perfect crystal all forces cancel
    return structures


@pytest.mark.parametrize(
    ("name", "repulsion"), [*((name, False) for name in NETWORKS), ("toy", True), ("NequIP", True)]
)
def test_every_property_of_a_potential_holds(name: str, repulsion: bool) -> None:
    torch.manual_seed(3)
    shifts = {1: -13.6, 6: -1030.0, 8: -2042.0}
    potential = Potential(NETWORKS[name](), SPECIES, shifts, 0.7, repulsion=ZBL() if repulsion else None)
    report = check_potential(potential, near() if repulsion else None)
    assert report.ok, str(report)


def test_the_repulsion_is_felt_in_what_is_checked() -> None:
    """Else the rows above said nothing of it."""
    from eqlayers.integrations.ase import Calculator

    for atoms in near():
        calculators = [Calculator(Potential(ToyNetwork(3), SPECIES, repulsion=part)) for part in (None, ZBL())]
        forces = [calculator.get_forces(atoms) for calculator in calculators]
        assert np.linalg.norm(forces[1] - forces[0], axis=1).min() > 1.0
