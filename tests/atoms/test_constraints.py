"""Constraints of ASE: what they leave of forces, and which atoms are held by them."""

import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms, FixCartesian, FixedLine, FixedPlane

from eqlayers.atoms.constraints import free_directions, held_atoms
from eqlayers.errors import DataError


def constrained(*constraints: object) -> Atoms:
    atoms = Atoms("H3", np.eye(3))
    atoms.set_constraint(list(constraints))
    return atoms


@pytest.mark.parametrize(
    ("constraint", "free"),
    [
        (FixAtoms([1]), np.zeros((3, 3))),
        (FixCartesian(1, (True, False, False)), np.diag([0.0, 1.0, 1.0])),
        (FixedPlane(1, (0, 0, 1)), np.diag([1.0, 1.0, 0.0])),
        (FixedLine(1, (0, 1, 0)), np.diag([0.0, 1.0, 0.0])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_directions_that_are_free(constraint: object, free: np.ndarray) -> None:
    found = free_directions(constrained(constraint))
    np.testing.assert_allclose(found, [np.eye(3), free, np.eye(3)], atol=1e-15)


def test_atoms_without_constraints_are_free() -> None:
    assert free_directions(Atoms("H3")) is None
    assert not held_atoms(np.ones((3, 3)), None).any()


def test_an_atom_that_there_is_not() -> None:
    with pytest.raises(DataError, match="constraints must hold atoms of the structure, which has 3"):
        free_directions(constrained(FixAtoms([7])))


def test_an_atom_whose_force_is_not_0_is_not_held() -> None:
    """A file may keep constraints of an earlier calculation and the forces of a later one."""
    free = free_directions(constrained(FixAtoms([0, 1])))
    forces = np.array([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert held_atoms(forces, free).tolist() == [True, False, False]
