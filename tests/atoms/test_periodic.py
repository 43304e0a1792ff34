"""Periodic neighbour lists against ASE's and against vectors; order, own images, bad input."""

from typing import Any

import numpy as np
import pytest
import torch
from ase.neighborlist import primitive_neighbor_list

from eqlayers.atoms import periodic
from eqlayers.atoms.periodic import neighbor_list, structure_neighbors
from eqlayers.data.neighbors import radius_graph
from eqlayers.errors import ConfigError, DataError, DTypeError, EqlayersError, OutOfMemoryError, ShapeError
from tests.each import each
from tests.fresh import fresh

CUBE = 3.0 * np.eye(3)


def rows(src, dst, shifts):
    """Edges in the order that is promised."""
    return sorted(zip(dst.tolist(), src.tolist(), map(tuple, shifts.tolist()), strict=True))


@each("seed", range(40))
def test_equals_ase(seed):
    """Random triclinic cells, some smaller than the cutoff, with periods in some directions and atoms outside."""
    rng = np.random.default_rng(seed)
    cell = rng.normal(size=(3, 3)) + rng.uniform(1.5, 5.0) * np.eye(3)
    pbc, cutoff = rng.random(3) < 0.6, rng.uniform(1.0, 4.5)
    pos = (rng.random((rng.integers(1, 12), 3)) * 1.8 - 0.4) @ cell
    edge_index, shifts = neighbor_list(pos, cell, pbc, cutoff)
    src, dst, expected = primitive_neighbor_list("ijS", pbc, cell, pos, cutoff, self_interaction=False)
    edges = list(zip(edge_index[1].tolist(), edge_index[0].tolist(), map(tuple, shifts.tolist()), strict=True))
    assert edges == rows(src, dst, expected)  # sorted by dst, src, shift
    assert edge_index.dtype == shifts.dtype == np.int64
    vectors = pos[edge_index[1]] - pos[edge_index[0]] + shifts @ cell
    assert (np.linalg.norm(vectors, axis=1) < cutoff).all()
    assert not shifts[:, ~pbc].any()


#: Runs in a process of its own: a library that divides by a number of bins takes the process with it.
FUZZ = """
import itertools, sys
import numpy as np
from ase.geometry import complete_cell
from eqlayers.atoms.periodic import molecule_neighbors, neighbor_list, structure_neighbors

def brute(pos, cell, pbc, cutoff):
    full = complete_cell(np.where(pbc[:, None], cell, 0.0))
    inverse = np.linalg.inv(full)
    most = np.where(pbc, np.ceil(cutoff * np.linalg.norm(inverse, axis=0)) + 1, 0).astype(int)
    found = []
    for dst, src in itertools.product(range(len(pos)), repeat=2):
        nearest = np.where(pbc, -np.rint((pos[dst] - pos[src]) @ inverse), 0).astype(int)
        for step in itertools.product(*[range(-m, m + 1) for m in most]):
            shift = nearest + step
            if (src != dst or shift.any()) and ((pos[dst] - pos[src] + shift @ full) ** 2).sum() < cutoff**2:
                found.append((dst, src, *shift.tolist()))
    return sorted(found)

for seed in range(300):
    rng = np.random.default_rng(seed)
    pbc, cutoff, number = rng.random(3) < 0.5, rng.uniform(2.0, 6.0), rng.integers(1, 9)
    sizes = rng.choice([2.5, 8.0, 60.0, 3000.0], 3)
    cell = np.diag(sizes) + 0.3 * sizes.min() * rng.normal(size=(3, 3)) * (rng.random() < 0.5)
    cell = cell[rng.permutation(3)]
    inside = rng.random((number, 3)) * np.minimum(1.0, rng.choice([5.0, 40.0], 3) / sizes)
    inside[rng.random((number, 3)) < 0.1] += rng.choice([-1.0, 1.0, 40.0])  # outside of the cell, or gone
    pos = inside @ cell * rng.choice([1.0, 1.0, 0.0], 3)  # flat along some axes
    pos += 0.2 * rng.random((number, 3))
    if pbc.any() and np.linalg.det(cell[pbc] @ cell[pbc].T) < 1e-6:
        continue
    edges, shifts = neighbor_list(pos, cell, pbc, cutoff)
    found = [(int(d), int(s), *row) for (s, d), row in zip(edges.T, shifts.tolist())]
    assert found == brute(pos, cell, pbc, cutoff), seed

grid = lambda n, step: np.stack(np.meshgrid(*[np.arange(n) * step] * 2, [0.0]), -1).reshape(-1, 3)
assert neighbor_list([[0, 0, 0], [0, 0, 1700], [0, 1700, 0]], None, False, 5.0)[0].shape == (2, 0)
for size, cell, pbc in ((400, None, False), (450, [6.0], True), (450, [9.0], True)):
    cell = None if cell is None else np.diag([4.0 * size, 4.0 * size, *cell])
    edges = neighbor_list(grid(size, 4.0), cell, pbc, 5.0)[0].shape[1]
    assert edges == (4 * size**2 if pbc else 4 * size * (size - 1)), (size, cell, edges)
gone = grid(20, 2.5)
gone[7, 2] = 3000.0
assert not (neighbor_list(gone, np.diag([50.0, 50.0, 1.0]), [True, True, False], 5.0)[0] == 7).any()
ring = np.arange(400)
tube = np.stack([3 * np.cos(ring), 3 * np.sin(ring), 0.6 * ring], 1)
tube[7, 0] = 1000.0
assert not (neighbor_list(tube, np.diag([1.0, 1.0, 240.0]), [False, False, True], 5.0)[0] == 7).any()

# boxes of several structures that are apart on a grid, where each alone is small enough for the cell list
far = np.zeros((3, 4, 3))
for pos, axes in zip(far, ((0, 2), (0, 1), (1, 2))):
    pos[1, axes[0]] = pos[3, axes[1]] = 1650.0
    assert molecule_neighbors(pos, np.array([2, 2]), 5.0)[0].shape == (2, 0)
for seed in range(40):
    rng = np.random.default_rng(seed)
    n_atoms = rng.integers(1, 6, 30)
    lengths = np.repeat(rng.choice([0.0, 1.0, 20.0, 140.0, 1500.0], (30, 3)), n_atoms, axis=0)
    pos = lengths * rng.random((len(lengths), 3)) + rng.random((len(lengths), 3))
    starts, cutoffs = np.cumsum(n_atoms) - n_atoms, rng.uniform(2.0, 6.0, 30)
    each = [neighbor_list(pos[s : s + n], None, False, r)[0] + s for s, n, r in zip(starts, n_atoms, cutoffs)]
    together = structure_neighbors(pos, n_atoms, np.zeros((30, 3, 3)), np.zeros((30, 3), bool), cutoffs)
    assert np.array_equal(np.concatenate([edges for _, edges, *_ in together], 1), np.concatenate(each, 1)), seed
print("done", end="")
"""


def test_structures_that_are_searched_together_have_their_own_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """With periods and without, each with its cutoff; no edge where atoms are at one place."""
    monkeypatch.setattr(periodic, "_SMALL", 8)
    monkeypatch.setattr(periodic, "_ATOMS", 40)
    made = np.random.default_rng(0)
    sizes = made.integers(1, 12, 40)
    pbc = np.repeat(made.random(40) < 0.3, 3).reshape(40, 3)
    pos, cell, cutoffs = made.normal(size=(sizes.sum(), 3)), np.tile(6.0 * np.eye(3), (40, 1, 1)), 1 + made.random(40)
    starts, large = np.cumsum(sizes) - sizes, sizes > 2
    bad = [*np.flatnonzero(large & pbc[:, 0])[:1], *np.flatnonzero(large & ~pbc[:, 0])[::9]]
    pos[starts[bad]] = pos[starts[bad] + 1]
    pieces = list(structure_neighbors(pos, sizes, cell, pbc, cutoffs))
    assert np.concatenate([rows for rows, *_ in pieces]).tolist() == list(range(40))
    assert 10 < len(pieces) < 30
    assert sorted(row for *_, coincide in pieces for row in coincide) == sorted(bad)
    expected = [[], []]
    for n in sorted({*range(40)} - {*bad}):
        edges, shifts = neighbor_list(pos[starts[n] :][: sizes[n]], cell[n], pbc[n], cutoffs[n])
        expected[0].append(edges.T + starts[n])
        expected[1].append(shifts)
    np.testing.assert_array_equal(
        np.concatenate([edges for _, edges, _, _ in pieces], axis=1).T, np.concatenate(expected[0])
    )
    np.testing.assert_array_equal(np.concatenate([shifts for *_, shifts, _ in pieces]), np.concatenate(expected[1]))


def test_far_and_flat_structures_of_every_periodicity():
    """Time and memory are those of the atoms, and the process lives, whatever the box."""
    done = fresh(FUZZ)
    assert (done.returncode, done.stdout) == (0, "done"), done.stderr[-2000:]


def test_atoms_too_many_cells_away_are_named():
    with pytest.raises(DataError, match=r"atoms must be within 1,073,741,824 cells of the origin, got atom 1 at \[0"):
        neighbor_list([[0.0, 0, 0], [0.0, 0, 1e13]], CUBE, True, 4.0)


def test_shifts_of_many_digits_are_sorted():
    pos = np.array([[0.1, 0.1, 0.1], [0.2, 0.1, 0.1], [0.1, 1.0, 0.1]]) + np.array([[0], [9e8], [-9e8]]) * 3.0
    edges, shifts = neighbor_list(pos, CUBE, True, 2.5)
    listed = [(d, s, *row) for s, d, row in zip(*edges.tolist(), shifts.tolist(), strict=True)]
    assert listed == sorted(listed)
    assert {row[:2] for row in listed} == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}


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
    [(np.zeros((2, 2)), CUBE, True), (np.zeros((2, 3)), np.eye(2), True), (np.zeros((2, 3)), CUBE, [True, True])],
)
def test_bad_shapes(pos, cell, pbc):
    with pytest.raises(ShapeError, match=r"pos, cell and pbc must be \[A, 3\], \[3, 3\] and \[3\], got .* Pass the"):
        neighbor_list(pos, cell, pbc, 5.0)


@pytest.mark.parametrize(
    ("pos", "cell", "pbc"),
    [
        ("abc", CUBE, True),
        (None, CUBE, True),
        ([[0, 0, 0], [1, 2]], None, False),
        (torch.rand(3, 3, requires_grad=True), None, False),
        (torch.rand(3, 3).bfloat16(), None, False),
        (np.zeros((2, 3), complex), None, False),
        (np.zeros((1, 3)), CUBE, "TTF"),
        (np.zeros((1, 3)), CUBE, ["T", "F", "F"]),
    ],
)
def test_what_is_no_real_number(pos, cell, pbc):
    with pytest.raises(DTypeError, match=r"must be real numbers .*, got .* Pass arrays"):
        neighbor_list(pos, cell, pbc, 5.0)


@pytest.mark.parametrize("pbc", [[True, True, True], [True, True, False], [True, False, True]])
@pytest.mark.parametrize("skew", [30, 10_000])
def test_a_skewed_cell_has_the_pairs_of_its_lattice(skew, pbc):
    """Other vectors of one lattice: as many images to look at, the same pairs, their shifts in the vectors given."""
    pos = 10 * np.random.default_rng(0).random((40, 3))
    straight = np.diag([10.0, 10.0, 10.0])
    turn = np.eye(3, dtype=np.int64)
    axes = np.flatnonzero(pbc)
    turn[axes[1], axes[0]] = skew
    wanted, shifts = neighbor_list(pos, straight, pbc, cutoff=5.0)
    pairs, skewed = neighbor_list(pos, turn @ straight, pbc, cutoff=5.0)

    def listed(edges, moved):
        return sorted(zip(*edges.tolist(), *moved.T.tolist(), strict=True))

    assert listed(pairs, skewed @ turn) == listed(wanted, shifts)
    assert np.abs(skewed).max() > 1


def test_bad_numbers():
    with pytest.raises(DataError, match=r"pos and cell must be finite .*, got nan\."):
        neighbor_list([[0.0, np.nan, 0.0]], CUBE, True, 5.0)
    flat = np.array([[3.0, 0, 0], [6.0, 0, 0], [0, 0, 3.0]])
    with pytest.raises(DataError, match=r"vectors of periodic directions must .*got .* Give a cell"):
        neighbor_list([[0.0, 0, 0]], flat, True, 5.0)
    with pytest.raises(DataError, match="must span a volume"):
        neighbor_list([[0.0, 0, 0]], None, [False, False, True], 5.0)
    neighbor_list([[0.0, 0, 0]], flat, [True, False, True], 5.0)  # the second vector is no period
    with pytest.raises(DataError, match=r"atoms must .*got 0 and 1 at the same one"):
        neighbor_list([[0.0, 0, 0], [3.0, 0, 0]], CUBE, True, 5.0)
    with pytest.raises(ConfigError, match=r"cutoff must .*got -1"):
        neighbor_list([[0.0, 0, 0]], CUBE, True, -1)


@pytest.mark.parametrize(
    ("pos", "cell", "cutoff", "match"),
    [
        (1.0, None, 1e200, "cutoff must be at most 1e\\+15"),
        (1.0, 1.0, 1e4, r"must fit into memory, got about \de\+13 edges of 2 atoms within 10000 A"),
        (1e200, None, 4.0, "at most 1e\\+15 Angstrom, got 1e\\+200"), (1.0, 1e120, 4.0, "at most 1e\\+15 Angstrom"),
        (np.inf, None, 4.0, "must be finite .* got inf"),
    ],
)  # fmt: skip
def test_lengths_that_no_structure_has(pos: float, cell: float | None, cutoff: float, match: str) -> None:
    """A sentence, in no time and no memory."""
    box = None if cell is None else cell * np.eye(3)
    with pytest.raises(EqlayersError, match=match):
        neighbor_list([[0.0, 0.0, 0.0], [pos, 0.5, 0.5]], box, cell is not None, cutoff)


@pytest.mark.parametrize("periods", [True, False, (True, False, True)], ids=str)
def test_more_edges_than_memory(periods: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out before the search, for every periodicity; what fits is searched."""
    pos, box = np.random.default_rng(0).random((300, 3)) * 30, 30.0 * np.eye(3)
    count = neighbor_list(pos, box, periods, 8.0)[0].shape[1]
    monkeypatch.setattr(periodic, "memory_of_machine", lambda: 1000.0 * count)
    assert neighbor_list(pos, box, periods, 8.0)[0].shape[1] == count
    monkeypatch.setattr(periodic, "memory_of_machine", lambda: 30.0 * count)
    with pytest.raises(OutOfMemoryError, match=r"edges of 300 atoms within 8 Angstrom\. Lower the cutoff"):
        neighbor_list(pos, box, periods, 8.0)
