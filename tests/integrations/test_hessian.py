"""Second derivatives as ASE's vibrations take them: units, differences, images of crystals, phonons."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms, units
from ase.build import bulk, molecule
from ase.phonons import Phonons
from ase.vibrations import VibrationsData

from eqlayers.errors import ConfigError, IndexRangeError
from eqlayers.integrations.ase import Calculator
from eqlayers.models import Potential
from eqlayers.simulate import relax
from eqlayers.testing import ToyNetwork

STIFFNESS = 35.0  # eV/A^2


class Spring(torch.nn.Module):
    cutoff, irreps_sh = 3.0, "0e"

    def forward(self, kind: Any, edges: Any, graph: Any) -> Any:
        pairs = 0.25 * STIFFNESS * (edges.lengths - 0.74) ** 2
        return pairs.new_zeros(len(kind)).index_add(0, graph.edge_index[1], pairs)


def frequencies(data: VibrationsData) -> Any:
    computed = data.get_frequencies()
    return np.sort(computed.real - computed.imag)


def test_a_spring_has_its_frequency() -> None:
    """sqrt(k / mu) / 2 pi c from constants of nature in SI units, and no other one."""
    pair = Atoms("HO", [[0, 0, 0], [0, 0, 0.74]])
    calculator = Calculator(Potential(Spring(), [1, 8]), dtype=torch.float64)
    computed = frequencies(VibrationsData(pair, calculator.get_hessian(pair)))
    light, heavy = pair.get_masses() * units._amu
    omega = (STIFFNESS * units._e * 1e20 * (1 / light + 1 / heavy)) ** 0.5
    assert computed[-1] == pytest.approx(omega / (2 * np.pi * units._c * 100), rel=1e-7)
    assert np.abs(computed[:-1]).max() < 1e-3


@pytest.mark.parametrize("name", ["molecule", "a cell smaller than the cutoff", "slab"])
def test_it_is_the_slope_of_the_forces(name: str) -> None:
    atoms = molecule("H2O") if name == "molecule" else bulk("O", "fcc", a=1.8, cubic=True)
    if name == "slab":
        atoms.pbc = [True, True, False]
    atoms.rattle(0.03, seed=2)
    atoms.positions += 50.0
    calculator = Calculator(Potential(ToyNetwork(2, cutoff=3.0), [1, 8]), dtype=torch.float64)
    hessian = calculator.get_hessian(atoms)
    assert hessian.dtype == np.float64
    step, expected = 1e-4, np.empty_like(hessian)
    for index in np.ndindex(len(atoms), 3):
        forces = []
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions[index] += sign * step
            forces.append(calculator.get_forces(moved))
        expected[index] = (forces[1] - forces[0]) / (2 * step)
    size = np.abs(hessian).max()
    np.testing.assert_allclose(hessian, expected, atol=1e-5 * size)  # third derivatives, times the square of the step
    np.testing.assert_allclose(hessian, hessian.transpose(2, 3, 0, 1), atol=1e-13 * size)
    assert np.abs(hessian.sum(2)).max() < 1e-12 * size
    np.testing.assert_allclose(calculator.get_hessian(atoms, chunk_size=2), hessian, rtol=0, atol=1e-13 * size)


@pytest.mark.slow
def test_a_supercell_has_the_phonons_of_its_crystal(tmp_path: Path) -> None:
    calculator = Calculator(Potential(ToyNetwork(1, cutoff=2.0), [29]), dtype=torch.float64)
    primitive = relax(bulk("Cu", a=1.65), calculator, cell=True, fmax=1e-6).atoms
    primitive.calc = None
    supercell = primitive.repeat(3)
    computed = frequencies(VibrationsData(supercell, calculator.get_hessian(supercell)))
    phonons = Phonons(primitive, calculator, supercell=(3, 3, 3), delta=1e-3, name=str(tmp_path / "phonons"))
    phonons.run()
    phonons.read(acoustic=True)
    thirds = np.stack(np.meshgrid(*[np.arange(3) / 3] * 3), axis=-1).reshape(-1, 3)
    bands = np.sort(phonons.band_structure(thirds, verbose=False).ravel()) / units.invcm
    assert bands.max() > 100
    np.testing.assert_allclose(computed, bands, atol=1e-4 * bands.max())


def test_structures_that_cannot_be() -> None:
    calculator = Calculator(Potential(ToyNetwork(2), [1, 8]))
    with pytest.raises(IndexRangeError, match=r"atoms must .*got also Cu"):
        calculator.get_hessian(Atoms("Cu"))
    with pytest.raises(ConfigError, match="atoms must"):
        calculator.get_hessian([molecule("H2O")])
    for size in (0, 1.5, True):
        with pytest.raises(ConfigError, match="chunk_size must be an integer, at least 1"):
            calculator.get_hessian(molecule("H2O"), chunk_size=size)
