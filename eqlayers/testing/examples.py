"""Example structures of given species, for checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ase import Atoms


def example_structures(species: Sequence[int], cutoff: float, seed: int = 0) -> list[Atoms]:
    """A molecule of six atoms and a crystal of four in a skewed cell, with neighbours at bond distances.

    Example:
        >>> [(len(atoms), atoms.pbc.all().item()) for atoms in example_structures([1, 8], cutoff=4.0)]
        [(6, False), (4, True)]
    """
    from ase import Atoms
    from ase.build import bulk
    from ase.data import covalent_radii

    generator = np.random.default_rng(seed)
    numbers = [species[number % len(species)] for number in range(10)]
    radius = min(float(np.mean(covalent_radii[list(species)])), 0.3 * cutoff)
    positions = [np.zeros(3)]
    while len(positions) < 6:  # each near an earlier atom, and not too near to others
        direction = generator.normal(size=3)
        position = positions[generator.integers(len(positions))] + 2.1 * radius * direction / np.linalg.norm(direction)
        if min(np.linalg.norm(position - other) for other in positions) > 1.8 * radius:
            positions.append(position)
    crystal = bulk("Cu", "fcc", a=2.1 * 2**0.5 * radius, cubic=True)
    crystal.numbers[:] = numbers[6:]
    crystal.set_cell(
        crystal.cell @ np.array([[1.0, 0.07, 0.0], [0.0, 1.04, -0.05], [0.03, 0.0, 0.97]]), scale_atoms=True
    )
    return [Atoms(numbers[:6], positions), crystal]
