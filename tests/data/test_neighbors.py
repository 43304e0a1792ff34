"""Neighbour lists against a double loop; order, blocks, invariance and bad input."""

import itertools

import pytest
import torch
from e3nn import o3

from eqlayers.atoms import periodic
from eqlayers.data.neighbors import radius_graph
from eqlayers.errors import ConfigError, DataError, ShapeError


def brute_force(pos: torch.Tensor, cutoff: float, n_atoms: list[int]) -> list[tuple[int, int]]:
    edges, start = [], 0
    for num in n_atoms:
        for dst, src in itertools.product(range(start, start + num), repeat=2):
            if src != dst and float((pos[src].double() - pos[dst].double()).norm()) < cutoff:
                edges.append((src, dst))
        start += num
    return edges


@pytest.fixture
def molecules() -> tuple[torch.Tensor, list[int]]:
    n_atoms = [5, 1, 9, 3, 14, 2]
    return 2.5 * torch.randn(sum(n_atoms), 3, generator=torch.Generator().manual_seed(0)), n_atoms


@pytest.mark.parametrize("cutoff", [0.5, 3.0, 50.0])
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_equals_a_double_loop(monkeypatch, molecules, cutoff, spread):
    monkeypatch.setattr(periodic, "_TOGETHER", 2)
    pos, n_atoms = molecules
    pos = pos.clone()
    pos[3::4] *= spread  # a box that is mostly empty is searched by a tree
    edge_index = radius_graph(pos, cutoff, torch.tensor(n_atoms))
    expected = brute_force(pos, cutoff, n_atoms)  # by dst, then src
    assert edge_index.dtype == torch.int64
    assert edge_index.t().tolist() == [list(edge) for edge in expected]


def test_both_directions_no_loops_one_molecule_by_default(molecules):
    pos, _ = molecules
    edges = {tuple(edge) for edge in radius_graph(pos, 4.0).t().tolist()}
    assert edges == {(dst, src) for src, dst in edges}
    assert all(src != dst for src, dst in edges)
    assert edges == set(brute_force(pos, 4.0, [len(pos)]))


def test_a_pair_at_the_cutoff_is_not_an_edge():
    pos = torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 4.0]])
    assert radius_graph(pos, 5.0).shape == (2, 0)
    assert radius_graph(pos, 5.0000001).shape == (2, 2)


def test_invariant_to_rotation_and_equivariant_to_order(molecules):
    pos, n_atoms = molecules
    pos = pos.double()
    before = radius_graph(pos, 3.0, torch.tensor(n_atoms))
    rotated = pos @ -o3.rand_matrix(dtype=torch.float64).T + 7.0
    assert torch.equal(before, radius_graph(rotated, 3.0, torch.tensor(n_atoms)))
    order = torch.randperm(n_atoms[0])
    permuted = radius_graph(pos[: n_atoms[0]][order], 3.0)
    edges = {tuple(edge) for edge in order[permuted].t().tolist()}
    assert edges == {tuple(edge) for edge in radius_graph(pos[: n_atoms[0]], 3.0).t().tolist()}


def test_no_gradient_is_recorded(molecules):
    pos = molecules[0].clone().requires_grad_()
    assert not radius_graph(pos, 3.0).requires_grad


@pytest.mark.parametrize("cutoff", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_cutoff(cutoff):
    with pytest.raises(ConfigError, match="cutoff must"):
        radius_graph(torch.zeros(1, 3), cutoff)


def test_bad_shapes():
    with pytest.raises(ShapeError, match=r"pos must be \[A, 3\], got \[3, 4\]. Pass one row"):
        radius_graph(torch.zeros(3, 4), 5.0)
    with pytest.raises(ShapeError, match=r"summing to the 4 rows of pos, got \[2\] summing to 5. Pass the number"):
        radius_graph(torch.rand(4, 3), 5.0, torch.tensor([2, 3]))


def test_bad_positions():
    pos = torch.rand(4, 3)
    pos[2, 1] = float("nan")
    with pytest.raises(DataError, match="1 atoms have NaN or inf, the first in row 2"):
        radius_graph(pos, 5.0)
    pos = torch.rand(6, 3)
    pos[5] = pos[4]
    with pytest.raises(DataError, match="two atoms coincide in the molecule that starts at row 3"):
        radius_graph(pos, 5.0, torch.tensor([3, 3]))


def test_same_place_in_two_molecules_is_fine():
    assert radius_graph(torch.zeros(2, 3), 5.0, torch.tensor([1, 1])).shape == (2, 0)
