"""Water molecules that are displaced at random, for small trainings."""

from collections.abc import Iterator

import numpy as np
from ase import Atoms


def displaced_waters(count: int) -> Iterator[Atoms]:
    """The first so many of a fixed series, without labels."""
    made = np.random.default_rng(0)
    for _ in range(count):
        yield Atoms("OHH", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]] + 0.1 * made.standard_normal((3, 3)))


def label_by_springs(atoms: Atoms, stiffness: float = 1.0, shift: float = -14.0) -> np.ndarray:
    """Gives a molecule the energy of springs of 1 Angstrom between all atoms, and returns the pull on each by each."""
    vectors = atoms.positions[None] - atoms.positions[:, None]
    lengths = np.linalg.norm(vectors, axis=-1) + np.eye(len(atoms))
    atoms.info["REF_energy"] = stiffness * float((np.triu(lengths - 1, 1) ** 2).sum()) + shift
    return 2 * stiffness * vectors * ((lengths - 1) / lengths)[..., None]
