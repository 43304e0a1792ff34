"""The small network of tests and examples: formula, symmetries, weights of a seed; and the example structures."""

import math

import numpy as np
import pytest
import torch

from eqlayers.core.graph import Graph
from eqlayers.nn import EdgeGeometry
from eqlayers.testing import ToyNetwork
from eqlayers.testing.equivariance import random_orthogonal
from eqlayers.testing.networks import example_structures

PAIRS = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])


def energies(network: ToyNetwork, pos: torch.Tensor, edges: torch.Tensor = PAIRS) -> torch.Tensor:
    graph = Graph(edges, len(pos))
    geometry = EdgeGeometry(network.irreps_sh)
    return network(torch.tensor([1, 0, 0]), geometry(pos, graph), graph).detach()


def test_energies_are_invariant_and_differ_by_angle_and_species() -> None:
    network = ToyNetwork(2, cutoff=4.0).double()
    pos = torch.tensor([[0.0, 0.0, 0.0], [1.1, 0.2, 0.0], [-0.3, 1.2, 0.4]], dtype=torch.float64)
    of = energies(network, pos)
    rotation = random_orthogonal(1)
    for moved in (pos @ rotation.T, pos + 1.0, -pos):
        torch.testing.assert_close(energies(network, moved), of, rtol=1e-12, atol=1e-12)
    stretched = pos.clone()
    stretched[2] = torch.tensor([1.2, -0.3, 0.4])  # as far from the first atom, at another angle
    assert abs(float(energies(network, stretched)[0] - of[0])) > 1e-4
    assert float(of[1]) != float(of[2])


def test_a_lone_atom_is_0_and_a_pair_is_bound() -> None:
    network = ToyNetwork(2, cutoff=4.0).double()
    pos = torch.zeros(3, 3, dtype=torch.float64)
    assert energies(network, pos, torch.empty(2, 0, dtype=torch.int64)).tolist() == [0.0, 0.0, 0.0]
    pair = torch.tensor([[0, 1], [1, 0]])
    totals = []
    for length in (0.7, 1.2, 2.5, 3.999):
        pos[1, 0] = length
        totals.append(float(energies(network, pos, pair).sum()))
    assert totals[1] == min(totals) < -0.3
    assert math.isclose(totals[3], 0.0, abs_tol=1e-8)  # at the cutoff


def test_a_seed_makes_the_weights_whatever_the_global_state_is() -> None:
    first = ToyNetwork(3, seed=5)
    torch.manual_seed(0)
    second, other = ToyNetwork(3, seed=5), ToyNetwork(3, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.radial, other.radial)


def test_examples_have_honest_distances() -> None:
    pytest.importorskip("ase")
    for species in ([1], [8, 29], [55, 1, 6]):
        for atoms in example_structures(species, cutoff=4.0, seed=2):
            distances = atoms.get_all_distances(mic=bool(atoms.pbc.any()))
            assert distances[np.triu_indices(len(atoms), 1)].min() > 0.5
            assert set(atoms.numbers) <= set(species)


def test_examples_reach_within_a_short_cutoff_and_repeat_with_their_seed() -> None:
    """Every atom has a neighbour: a potential that sees no edge would pass any check."""
    covalent_radii = pytest.importorskip("ase.data").covalent_radii
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
