"""Flat arrays, their checks, neighbour caches, and the samples that slice them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

from eqlayers.data.neighbors import radius_graph, structure_edges
from eqlayers.data.structure_dataset import StructureDataset
from eqlayers.errors import DataError


def test_counts(small_set):
    molecules = small_set()
    ends = np.cumsum(molecules.n_atoms)
    counts = molecules.counts((1, 6, 8, 9))
    for row, (start, end) in enumerate(zip(ends - molecules.n_atoms, ends, strict=True)):
        z = molecules.z[start:end].tolist()
        assert counts[row].tolist() == [z.count(1), z.count(6), z.count(8), 0]
        assert molecules.heavy[row] == len(z) - z.count(1)


def test_samples_and_batches(small_set, tmp_path):
    molecules = small_set()
    edges = structure_edges(molecules, 3.0, tmp_path)
    rows = np.array([7, 0, 11, 3])
    dataset = StructureDataset(molecules, edges, rows)
    assert len(dataset) == 4
    starts = np.cumsum(molecules.n_atoms) - molecules.n_atoms
    for sample, row in zip((dataset[i] for i in range(4)), rows, strict=True):
        atoms = slice(starts[row], starts[row] + molecules.n_atoms[row])
        assert sample.z.tolist() == molecules.z[atoms].tolist()
        assert sample.pos.numpy().tolist() == molecules.pos[atoms].tolist()
        assert torch.equal(sample.edge_index, radius_graph(sample.pos, 3.0))
        assert (sample.y.tolist(), sample.idx.tolist()) == ([molecules.y[row]], [row + 100])
        dtypes = [sample[key].dtype for key in ("z", "pos", "edge_index", "y", "idx")]
        assert dtypes == [torch.int64, torch.float32, torch.int64, torch.float64, torch.int64]
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    assert batch.num_graphs == 4
    assert batch.idx.tolist() == [107, 100, 111, 103]
    assert batch.batch.tolist() == np.repeat(np.arange(4), molecules.n_atoms[rows]).tolist()
    sizes = torch.from_numpy(molecules.n_atoms[rows])
    assert torch.equal(batch.edge_index, radius_graph(batch.pos, 3.0, sizes))


def test_an_index_past_the_end(small_set):
    molecules = small_set()
    with pytest.raises(IndexError):
        StructureDataset(molecules, structure_edges(molecules, 3.0, None))[12]


def test_atoms_beyond_one_byte(small_set):
    grid = np.stack(np.meshgrid(*3 * [np.arange(7.0)]), axis=-1).reshape(-1, 3)
    molecules = small_set(
        1, n_atoms=np.array([343]), z=np.full(343, 6), pos=grid.astype(np.float32), y=np.zeros(1), idx=np.zeros(1, int)
    )
    sample = StructureDataset(molecules, structure_edges(molecules, 1.1, None))[0]
    assert sample.edge_index.shape[1] == 2 * 3 * 7 * 7 * 6
    assert sample.edge_index.max() == 342


def test_cache_is_used_and_keyed(small_set, tmp_path, monkeypatch):
    molecules = small_set()
    first = structure_edges(molecules, 3.0, tmp_path)
    other = structure_edges(molecules, 2.0, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert other.n_edges.sum() < first.n_edges.sum()
    with monkeypatch.context() as patch:
        patch.setattr("eqlayers.data.neighbors.structure_neighbors", None)
        again = structure_edges(molecules, 3.0, tmp_path)
        assert np.array_equal(again.local, first.local)
        assert np.array_equal(again.n_edges, first.n_edges)
    moved = small_set(pos=molecules.pos * 0.5)
    assert structure_edges(moved, 3.0, tmp_path).n_edges.sum() > first.n_edges.sum()
    assert len(list(tmp_path.iterdir())) == 3, "other data have a file of their own"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda arrays: arrays | {"local": arrays["local"] + np.uint8(50)}, "an edge points outside its structure"),
        (lambda arrays: arrays | {"local": arrays["local"][:, 1:]}, "its arrays do not fit the data"),
        (lambda arrays: arrays | {"n_edges": arrays["n_edges"][1:]}, "its arrays do not fit the data"),
        (lambda arrays: {key: arrays[key] for key in arrays if key != "local"}, "it cannot be read"),
    ],
)
def test_cache_with_the_right_key_and_wrong_arrays(small_set, tmp_path, damage, reason):
    molecules = small_set()
    good = structure_edges(molecules, 3.0, tmp_path)
    (path,) = tmp_path.iterdir()
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **damage(arrays))
    with pytest.warns(UserWarning, match=f"made again: {reason}"):
        again = structure_edges(molecules, 3.0, tmp_path)
    assert np.array_equal(again.local, good.local)


def test_labels_that_are_not_finite(small_set):
    y = np.zeros(12)
    y[[2, 5]] = -np.inf, np.inf
    with pytest.raises(DataError, match=r"finite labels.* 2 of 12 structures do not have that, rows 102, 105; repair"):
        small_set(y=y)
    with pytest.raises(DataError, match=r"12 of 12 structures .* rows 100, .*, 107, \.\.\.; repair"):
        small_set(y=np.full(12, np.inf))


def test_positions_and_numbers_name_the_molecule(small_set):
    molecules = small_set()
    atom = int(molecules.n_atoms[:4].sum())  # the first atom of the fifth molecule
    pos, z = molecules.pos.copy(), molecules.z.copy()
    pos[atom, 1], z[atom - 1] = np.nan, 0
    with pytest.raises(DataError, match=r"expected finite positions; 1 of 12 structures do not have that, rows 104;"):
        small_set(pos=pos)
    with pytest.raises(
        DataError, match=r"atomic numbers from 1 to 118; 1 of 12 structures do not have that, rows 103;"
    ):
        small_set(z=z)


def test_empty_and_unequal_lengths(small_set):
    none = np.zeros(0, dtype=np.int64)
    with pytest.raises(DataError, match="test must"):
        small_set(n_atoms=none)
    with pytest.raises(DataError, match=r"y of test must be \[12\] for 12 structures, got \[11\]"):
        small_set(y=np.zeros(11))
    with pytest.raises(DataError, match="pos of test must"):
        small_set(pos=np.zeros((5, 3), dtype=np.float32))
    sizes = small_set().n_atoms.copy()
    sizes[0], sizes[1] = 0, sizes[0] + sizes[1]
    with pytest.raises(DataError, match=r"expected at least one atom in every structure; 1 of 12 .* rows 100"):
        small_set(n_atoms=sizes)
