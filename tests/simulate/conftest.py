"""A potential that was never trained, and structures that it binds."""

from pathlib import Path

import pytest

pytest.importorskip("ase")
pytest.importorskip("vesin")

import ase.io
from ase import Atoms
from ase.build import bulk, molecule

from eqlayers.models import Potential, save_potential
from eqlayers.testing import ToyNetwork


@pytest.fixture(scope="session")
def potential() -> Potential:
    return Potential(ToyNetwork(2, cutoff=3.5), [1, 8], {1: -13.6, 8: -432.0}, 0.5).double().eval()


@pytest.fixture
def water() -> Atoms:
    return molecule("H2O")


@pytest.fixture
def crystal() -> Atoms:
    atoms = bulk("O", "fcc", a=1.7, cubic=True)
    atoms.rattle(0.05, seed=1)
    return atoms


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, potential: Potential, water: Atoms, crystal: Atoms) -> Path:
    """A working directory with a potential and structures."""
    monkeypatch.chdir(tmp_path)
    save_potential(potential, "toy.pt", {"data": {"units": "eV, Angstrom"}, "errors": {"forces": 0.031}})
    ase.io.write("water.xyz", water)
    ase.io.write("crystal.xyz", crystal)
    return tmp_path
