"""Example structures have the species that are asked for, at distances that such atoms can have."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ase")

from ase.data import covalent_radii

from eqlayers.testing.networks import example_structures


def test_examples_have_honest_distances() -> None:
    for species in ([1], [8, 29], [55, 1, 6]):
        for atoms in example_structures(species, cutoff=4.0, seed=2):
            distances = atoms.get_all_distances(mic=bool(atoms.pbc.any()))
            assert distances[np.triu_indices(len(atoms), 1)].min() > 0.5
            assert set(atoms.numbers) <= set(species)


def test_examples_reach_within_a_short_cutoff_and_repeat_with_their_seed() -> None:
    """Every atom has a neighbour: a potential that sees no edge would pass any check."""
    assert covalent_radii[55] > 0.3 * 3.0  # the radius would leave caesium alone within 3 Angstrom
    for seed in range(5):
        structures = example_structures([55, 8], cutoff=3.0, seed=seed)
        for atoms, again in zip(structures, example_structures([55, 8], cutoff=3.0, seed=seed), strict=True):
            assert atoms == again
            assert set(atoms.numbers) == {8, 55}
            distances = atoms.get_all_distances(mic=bool(atoms.pbc.any()))
            assert np.sort(distances, axis=1)[:, 1].max() < 3.0
    molecule, crystal = structures
    assert not np.allclose(crystal.cell.angles(), 90.0), "a skewed cell"
    assert molecule != example_structures([55, 8], cutoff=3.0, seed=9)[0]
