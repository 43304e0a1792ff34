"""Relaxations end at a minimum: of atoms, of cells, against a pressure."""

import os
import signal
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units

from eqlayers.errors import ConfigError
from eqlayers.integrations.ase import Calculator
from eqlayers.models import Potential
from eqlayers.simulate import OPTIMIZERS, relax
from eqlayers.testing import random_orthogonal


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_forces_vanish(potential: Potential, water: Atoms, optimizer: str) -> None:
    found = relax(water, Calculator(potential), fmax=1e-4, optimizer=optimizer)
    assert found.converged
    assert np.linalg.norm(found.atoms.get_forces(), axis=1).max() <= 1e-4
    assert found.forces[1] <= 1e-4 < found.forces[0]
    assert found.energies[1] < found.energies[0]
    assert found.steps > 0
    assert water.calc is None


def test_a_cell_relaxes_to_a_pressure(potential: Potential, crystal: Atoms) -> None:
    alone = relax(crystal, Calculator(potential), fmax=1e-2)
    np.testing.assert_array_equal(alone.atoms.cell.array, crystal.cell.array)
    assert np.abs(alone.atoms.get_stress()).max() > 1e-3
    volumes = []
    for pressure in (0.0, 10.0):
        found = relax(alone.atoms, Calculator(potential), cell=True, fmax=1e-3, pressure=pressure, optimizer="bfgs")
        assert found.converged
        expected = [-pressure * units.GPa] * 3 + [0.0] * 3
        bound = 1e-3 * 4 / found.atoms.get_volume()  # of the force on the cell, whose entries are times its atoms
        assert bound < 0.02 * 10 * units.GPa
        np.testing.assert_allclose(found.atoms.get_stress(), expected, atol=bound)
        volumes.append(found.atoms.get_volume())
    assert volumes[1] < volumes[0]


def test_a_vector_across_a_slab_stays(potential: Potential, crystal: Atoms) -> None:
    crystal.pbc = [True, True, False]
    crystal.center(vacuum=4.0, axis=2)
    found = relax(crystal, Calculator(potential), cell=True, steps=20)
    np.testing.assert_allclose(found.atoms.cell[2], crystal.cell[2], atol=1e-12)
    assert np.abs(found.atoms.cell[0] - crystal.cell[0]).max() > 1e-3


class Springs(torch.nn.Module):
    """Harmonic bonds of 3 Angstrom between neighbours; the diagonals of a square lattice are beyond the cutoff."""

    cutoff, irreps_sh = 4.0, "0e"

    def forward(self, kind: torch.Tensor, edges: Any, graph: Any) -> torch.Tensor:
        pairs = (edges.lengths - 3.0) ** 2
        return pairs.new_zeros(len(kind)).index_add(0, graph.edge_index[1], pairs)


@pytest.mark.parametrize(
    ("order", "directions", "pbc", "turned"),
    [
        ([0, 1, 2], [1, 2, 0], [True, True, False], False),
        ([2, 0, 1], [1, 0, 2], [True, True, False], False),
        ([1, 2, 0], [0, 1, 2], [True, True, False], True),
        ([1, 0, 2], [2, 1, 0], [True, False, False], False),
        ([2, 1, 0], [0, 1, 2], [True, False, False], True),
    ],
    ids=["slab", "slab in another order", "turned slab", "wire", "turned wire"],
)
def test_periodic_vectors_of_any_direction(order: Any, directions: Any, pbc: list[bool], turned: bool) -> None:
    """In any order, along any axes: the lattice is that of the springs, and open axes stay."""
    cell = np.diag([2.8, 3.2, 15.0] if pbc[1] else [2.8, 12.0, 15.0])[:, directions]
    cell = cell @ random_orthogonal(3).numpy() if turned else cell
    atoms = Atoms("H", cell=cell[list(order)], pbc=np.array(pbc)[list(order)])
    atoms.set_array("group", np.array([7]))
    potential = Potential(Springs(), [1]).double().eval()
    found = relax(atoms, Calculator(potential), cell=True, fmax=1e-5, optimizer="bfgs")
    want = np.where(pbc, 3.0, [2.8, 12.0, 15.0])[list(order)]
    np.testing.assert_allclose(found.atoms.cell.lengths(), want, rtol=0, atol=1e-4)
    assert found.converged
    assert found.energies[1] < 1e-8 < found.energies[0]
    assert found.stress * found.atoms.get_volume() <= 1e-5
    assert type(found.atoms) is Atoms
    assert found.atoms.arrays["group"].tolist() == [7]


def test_every_step_is_kept_and_ctrl_c_counts(potential: Potential, crystal: Atoms, tmp_path: Path) -> None:
    found = relax(crystal, Calculator(potential), steps=3, fmax=1e-6, trajectory=tmp_path / "a.traj")
    assert (found.converged, found.stopped, found.steps) == (False, False, 3)
    energies = [frame.get_potential_energy() for frame in ase.io.read(tmp_path / "a.traj", ":")]
    assert energies == pytest.approx([found.energies[0], *energies[1:3], found.energies[1]], rel=1e-14)

    class Interrupting(Calculator):
        def calculate(self, *args: Any, **options: Any) -> None:
            super().calculate(*args, **options)
            if self.neighbors.built == 1 and not asked:
                asked.append(True)
                os.kill(os.getpid(), signal.SIGINT)

    asked: list[bool] = [True]
    calculator = Interrupting(potential)
    calculator.get_forces(crystal)
    asked.clear()
    found = relax(crystal, calculator, fmax=1e-6)
    assert (found.stopped, found.converged) == (True, False)
    assert found.steps < 3


def test_relaxations_that_cannot_be(potential: Potential, water: Atoms) -> None:
    calculator = Calculator(potential)
    with pytest.raises(ConfigError, match="a cell that moves must"):
        relax(water, calculator, cell=True)
    with pytest.raises(ConfigError, match="pressure must be 0 where the cell does not move"):
        relax(water, calculator, pressure=1.0)
    with pytest.raises(ConfigError, match=r"fmax must .*got 0"):
        relax(water, calculator, fmax=0)
    with pytest.raises(ConfigError, match=r"optimizer must .*got 'cg'"):
        relax(water, calculator, optimizer="cg")
