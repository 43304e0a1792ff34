"""The small network of tests and examples: its formula, its symmetries, and the same weights for a seed."""

from __future__ import annotations

import math

import torch

from eqlayers.core.graph import Graph
from eqlayers.nn import EdgeGeometry
from eqlayers.testing import ToyNetwork
from eqlayers.testing.equivariance import random_orthogonal

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
