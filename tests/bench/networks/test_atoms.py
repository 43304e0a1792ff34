"""Atoms of networks: the crystal, clusters and their edges."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("vesin")  # lists of neighbours to compare the edges of clusters and crystals with

from eqlayers.atoms.periodic import neighbor_list
from eqlayers.bench.networks import atoms as places
from eqlayers.bench.networks.atoms import crystal, edges, repeats, rounded, structures, wurtzite


def test_the_crystal_is_wurtzite(monkeypatch: pytest.MonkeyPatch) -> None:
    """ASE builds a crystal with the same lengths of all edges, between the same species."""
    build = pytest.importorskip("ase.build")
    monkeypatch.setattr(places, "SHAKEN", 0.0)
    mine = wurtzite(64)
    theirs = build.bulk("AlN", "wurtzite", a=3.11, c=4.98).repeat((4, 2, 2))
    numbers = np.array([7, 13])[mine.species.numpy()]
    assert mine.cell is not None
    counted = []
    for z, pos, cell in (
        (numbers, mine.pos.numpy(), mine.cell.numpy()),
        (theirs.numbers, theirs.positions, theirs.cell),
    ):
        (src, dst), shifts = neighbor_list(pos, np.asarray(cell), True, 4.1)
        lengths = np.linalg.norm(pos[dst] - pos[src] + shifts @ np.asarray(cell), axis=1).round(6)
        counted.append(Counter(zip(z[src].tolist(), z[dst].tolist(), lengths.tolist(), strict=True)))
    assert counted[0] == counted[1]


@pytest.mark.parametrize(("count", "cutoff"), [(4, 6.0), (16, 5.0), (64, 6.0), (24, 3.0)])
def test_edges_are_those_of_the_neighbour_list(count: int, cutoff: float) -> None:
    one = wurtzite(count)
    assert one.cell is not None
    index, shifts = edges(one, cutoff)
    right, moved = neighbor_list(one.pos.numpy(), one.cell.numpy(), True, cutoff)

    def listed(pairs: Tensor, steps: Tensor) -> list[tuple[int, ...]]:
        return sorted(map(tuple, torch.cat([pairs.T, steps.long()], 1).tolist()))

    assert listed(index, shifts) == listed(torch.from_numpy(right), torch.from_numpy(moved))
    assert bool((index[1].diff() >= 0).all())


def test_rounded_positions_are_the_same_atoms() -> None:
    sample = crystal(16, 4.0)
    near = rounded(sample)
    moved = (near.batch[0].pos - sample.batch[0].pos).abs().max()
    assert 0 < float(moved) < 1e-6
    assert near.mean_neighbors == sample.mean_neighbors
    assert torch.equal(near.batch[0].pos, rounded(sample).batch[0].pos)


def test_sizes() -> None:
    assert all(4 * math.prod(repeats(4 * n)) == 4 * n for n in range(1, 60))
    batch = crystal(16, 4.0).structures(torch.float32)
    assert batch.z.tolist() == [13, 7] * 8
    assert batch.cell is not None
    assert batch.shifts is not None
    assert (batch.pos.dtype, batch.cell.dtype, batch.shifts.dtype) == (torch.float32,) * 3


def test_structures_are_what_they_say() -> None:
    batch = structures((9, 1, 27))
    assert [len(s.pos) for s in batch] == [9, 1, 27]
    for s in batch:
        apart = torch.cdist(s.pos, s.pos) + 9 * torch.eye(len(s.pos), dtype=torch.float64)
        assert apart.min() > 1.0
