"""Periodic neighbour lists against ASE's and against vectors; order, own images, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase.neighborlist import primitive_neighbor_list

from eqlayers.data.neighbors import radius_graph
from eqlayers.errors import ConfigError, DataError, ShapeError
from eqlayers.periodic import neighbor_list

CUBE = 3.0 * np.eye(3)


def rows(src, dst, shifts):
    """Edges in the order that is promised."""
    return sorted(zip(dst.tolist(), src.tolist(), map(tuple, shifts.tolist()), strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_equals_ase(seed):
    """Random triclinic cells, some smaller than the cutoff, with periods in some directions and atoms outside."""
    rng = np.random.default_rng(seed)
    cell = rng.normal(size=(3, 3)) + rng.uniform(1.5, 5.0) * np.eye(3)
    pbc, cutoff = rng.random(3) < 0.6, rng.uniform(1.0, 4.5)
    pos = (rng.random((rng.integers(1, 12), 3)) * 1.8 - 0.4) @ cell
    edge_index, shifts = neighbor_list(pos, cell, pbc, cutoff)
    src, dst, expected = primitive_neighbor_list("ijS", pbc, cell, pos, cutoff, self_interaction=False)
    found = list(zip(edge_index[1].tolist(), edge_index[0].tolist(), map(tuple, shifts.tolist()), strict=True))
    assert found == rows(src, dst, expected)  # sorted by dst, src, shift
    assert edge_index.dtype == shifts.dtype == np.int64
    vectors = pos[edge_index[1]] - pos[edge_index[0]] + shifts @ cell
    assert (np.linalg.norm(vectors, axis=1) < cutoff).all()
    assert not shifts[:, ~pbc].any()


def test_the_convention_of_shifts():
    """The receiver is moved: an atom at 0.1 and one at 2.9 of a period of 3 are 0.2 apart, through the boundary."""
    edge_index, shifts = neighbor_list([[0.1, 0, 0], [2.9, 0, 0]], CUBE, [True, False, False], 1.0)
    assert edge_index.tolist() == [[1, 0], [0, 1]]
    assert shifts.tolist() == [[1, 0, 0], [-1, 0, 0]]  # from 2.9 to 0.1 + 3


def test_own_images_and_nothing_in_the_same_cell():
    edge_index, shifts = neighbor_list(np.zeros((1, 3)), CUBE, True, 3.1)
    assert edge_index.shape == (2, 6)
    assert np.abs(shifts).sum(axis=1).tolist() == [1] * 6


def test_open_structures_need_no_cell():
    pos = np.random.default_rng(0).normal(scale=2.0, size=(9, 3))
    edge_index, shifts = neighbor_list(pos, None, False, 3.0)
    assert edge_index.tolist() == radius_graph(torch.from_numpy(pos), 3.0).tolist()
    assert not shifts.any()


def test_a_pair_at_the_cutoff_is_no_edge():
    pair = [[0.0, 0, 0], [0, 3.0, 4.0]]
    assert neighbor_list(pair, None, False, 5.0)[0].shape == (2, 0)
    assert neighbor_list(pair, None, False, 5.0000001)[0].shape == (2, 2)


def test_no_atoms_and_one_atom():
    for pos in (np.zeros((0, 3)), [], [[1.0, 2.0, 3.0]]):
        edge_index, shifts = neighbor_list(pos, None, False, 5.0)
        assert edge_index.shape == (2, 0)
        assert shifts.shape == (0, 3)


@pytest.mark.parametrize(
    ("pos", "cell", "pbc"),
    [
        (np.zeros((2, 2)), CUBE, True),
        (np.zeros((2, 3)), np.eye(2), True),
        (np.zeros((2, 3)), CUBE, [True, True]),
        ("abc", CUBE, True),
        (None, CUBE, True),
    ],
)
def test_bad_shapes(pos, cell, pbc):
    with pytest.raises(ShapeError, match=r"pos, cell and pbc must be \[A, 3\], \[3, 3\] and \[3\], got .* Pass those"):
        neighbor_list(pos, cell, pbc, 5.0)


def test_bad_numbers():
    with pytest.raises(DataError, match="pos and cell must be finite, got NaN or infinity"):
        neighbor_list([[0.0, np.nan, 0.0]], CUBE, True, 5.0)
    flat = np.array([[3.0, 0, 0], [6.0, 0, 0], [0, 0, 3.0]])
    with pytest.raises(DataError, match=r"vectors of periodic directions must span a volume, got .* Give a cell"):
        neighbor_list([[0.0, 0, 0]], flat, True, 5.0)
    with pytest.raises(DataError, match="must span a volume"):
        neighbor_list([[0.0, 0, 0]], None, [False, False, True], 5.0)
    neighbor_list([[0.0, 0, 0]], flat, [True, False, True], 5.0)  # the second vector is no period
    with pytest.raises(DataError, match=r"atoms must be at distinct places, got 0 and 1 at the same one. Repair"):
        neighbor_list([[0.0, 0, 0], [3.0, 0, 0]], CUBE, True, 5.0)
    with pytest.raises(ConfigError, match=r"cutoff must be a positive number of Angstrom, got -1\. Common values"):
        neighbor_list([[0.0, 0, 0]], CUBE, True, -1)
