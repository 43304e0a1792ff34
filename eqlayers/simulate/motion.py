"""Radial distribution functions and mean square displacements of trajectories, computed by ASE."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement

import numpy as np
from ase import Atoms
from ase.geometry.rdf import get_rdf
from ase.md.analysis import DiffusionCoefficient
from numpy.typing import NDArray

Array = NDArray[np.float64]
FARTHEST, BINS = 8.0, 120  # Angstrom
MOST_SPECIES = 3  # above this number of species, only g(r) of all atoms is computed


def radial_distribution(images: Sequence[Atoms]) -> tuple[Array, dict[str, Array]]:
    """Radial distribution functions g(r), averaged over structures in periodic cells.

    Args:
        images: Structures of the same atoms.

    Returns:
        The distances ``[B]`` in Angstrom, up to half of the smallest height of the cells and 8 Angstrom at most; and
        g(r) ``[B]`` of all atoms ('all') and of each pair of species ('H-O'), which goes to 1 where atoms are
        independent. No functions if a cell is not periodic along all axes.

    Example:
        >>> from ase.build import bulk
        >>> distances, functions = radial_distribution([bulk("Cu", cubic=True).repeat(3)])
        >>> bool(2.5 < distances[functions["all"].argmax()] < 2.6), list(functions)
        (True, ['all'])
    """
    if not all(atoms.pbc.all() and atoms.cell.volume > 0 for atoms in images):
        return np.empty(0), {}
    heights = [1 / np.linalg.norm(atoms.cell.reciprocal().array, axis=1) for atoms in images]
    farthest = min(FARTHEST, 0.499 * float(np.min(heights)))  # ASE rejects half of the height itself
    species = sorted(set(images[0].symbols))
    pairs = list(combinations_with_replacement(species, 2)) if 1 < len(species) <= MOST_SPECIES else []
    functions = {"all": get_rdf(images, farthest, BINS, no_dists=True)}
    for pair in pairs:
        functions["-".join(pair)] = get_rdf(images, farthest, BINS, elements=pair, no_dists=True)
    return (np.arange(BINS) + 0.5) * farthest / BINS, functions


def mean_square_displacement(images: Sequence[Atoms]) -> dict[str, Array]:
    """Mean of ``|r(t) - r(0)|^2`` of the atoms of each species in Angstrom^2, relative to the centre of mass.

    Args:
        images: Frames of a trajectory, with positions that are not wrapped into the cell.

    Returns:
        Displacements ``[F]`` of the frames, by species.

    Example:
        >>> images = [Atoms("ArHe", [[0, 0, -x], [0, 0, 9.98 * x]]) for x in (0.0, 0.1)]
        >>> mean_square_displacement(images)["Ar"].round(4).tolist()
        [0.0, 0.01]
    """
    moved = [atoms.copy() for atoms in images]
    for atoms in moved:
        atoms.positions -= atoms.get_center_of_mass() - moved[0].get_center_of_mass()
    analysis = DiffusionCoefficient(moved, timestep=1.0)
    analysis.calculate()
    (halves,) = analysis.xyz_segment_ensemble_average  # [species, 3, F], half of the mean squares
    return dict(zip(analysis.types_of_atoms, 2 * halves.sum(axis=1), strict=True))
