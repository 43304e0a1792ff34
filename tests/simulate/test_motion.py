"""Radial distribution and mean square displacement on structures whose values are known."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from eqlayers.simulate.course import BINS, mean_square_displacement, radial_distribution


def test_neighbours_of_a_crystal_are_counted() -> None:
    """The integral of 4 pi r^2 density g over the first shell of fcc copper is 12, of the second 6."""
    atoms = bulk("Cu", cubic=True).repeat(4)
    r, functions = radial_distribution([atoms, atoms])
    assert list(functions) == ["all"]
    shell = 4 * np.pi * r**2 * (r[1] - r[0]) * len(atoms) / atoms.get_volume() * functions["all"]
    width = r[1] - r[0]  # the middle of a bin stands for the distance of a shell: half a bin off, in the square of r
    assert shell[(r > 2.3) & (r < 3.0)].sum() == pytest.approx(12, rel=width / 2.55)
    assert shell[(r > 3.3) & (r < 4.0)].sum() == pytest.approx(6, rel=width / 3.61)


def test_pairs_of_species() -> None:
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True).repeat(2)
    r, functions = radial_distribution([atoms])
    assert list(functions) == ["all", "Cl-Cl", "Cl-Na", "Na-Na"]
    assert len(r) == BINS
    assert r[-1] < 5.6
    near = r < 3.3
    assert functions["Cl-Na"][near].max() > 0
    assert not functions["Na-Na"][near].any()


def test_molecules_have_no_distribution() -> None:
    assert radial_distribution([Atoms("H2", [[0, 0, 0], [0, 0, 0.7]])])[1] == {}


def test_displacements_of_atoms_that_fly() -> None:
    """Velocities of 1 and 2 A a frame in x and y, of equal masses, and a drift of all that does not count."""
    start = np.array([[0, 0, 0], [3, 0, 0], [0, 3, 0], [0, 0, 3.0]])
    velocity = np.array([[1, 0, 0], [-1, 0, 0], [0, 2, 0], [0, -2, 0.0]])
    images = [
        Atoms("ArKrArKr", start + n * (velocity + 5), masses=[40] * 4, cell=[4, 4, 4], pbc=True) for n in range(4)
    ]
    squares = mean_square_displacement(images)
    times = np.arange(4)
    for name in ("Ar", "Kr"):
        np.testing.assert_allclose(squares[name], (1 + 4) / 2 * times**2, atol=1e-10)
    np.testing.assert_allclose(images[3].positions, start + 3 * (velocity + 5))
