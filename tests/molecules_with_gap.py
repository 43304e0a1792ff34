"""Molecules of a user's own file with two properties: a gap, which is a mean, and a volume, which grows with them."""

import ase.io
import numpy as np
from ase import Atoms


def write_molecules(path: str = "my.xyz") -> None:
    """Write 24 molecules of 2 to 5 atoms of H and O with ``gap`` and ``volume``."""
    made, frames = np.random.default_rng(0), []
    for row in range(24):
        size = 2 + row % 4
        atoms = Atoms(made.choice([1, 8], size), np.arange(size)[:, None] * [1.0, 0, 0])
        atoms.positions += 0.05 * made.standard_normal((size, 3))
        atoms.info["volume"] = float(2 * (atoms.numbers == 1).sum() + 7 * (atoms.numbers == 8).sum())
        atoms.info["gap"] = float((atoms.numbers == 8).mean() + atoms.positions[0, 1])
        frames.append(atoms)
    ase.io.write(path, frames)
