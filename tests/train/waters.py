"""Water molecules that are displaced at random, for small trainings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ase import Atoms


def displaced_waters(count: int) -> Iterator[Atoms]:
    """The first so many of a fixed series, without labels."""
    made = np.random.default_rng(0)
    for _ in range(count):
        yield Atoms("OHH", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]] + 0.1 * made.standard_normal((3, 3)))
