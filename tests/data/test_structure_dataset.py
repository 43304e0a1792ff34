"""Neighbour lists of data sets with their cache, samples, and batches as potentials take them."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

from eqlayers.atoms.periodic import neighbor_list
from eqlayers.data import neighbors
from eqlayers.data.batches import StructureDataset, collated, make_loader
from eqlayers.data.neighbors import radius_graph, structure_edges
from eqlayers.data.structures import StructureArrays
from eqlayers.errors import DataError
from eqlayers.models.structures import Structures

N_ATOMS, CUTOFF = [3, 2, 4], 3.0
CELLS = np.stack([np.diag([3.0, 4, 5]), np.zeros((3, 3)), np.diag([4.0, 4, 0])])
PBC = np.array([[True] * 3, [False] * 3, [True, True, False]])


@pytest.fixture
def mixed() -> StructureArrays:
    """A crystal, a molecule and a slab, with stress of the first alone."""
    rng = np.random.default_rng(2)
    stress = np.full((3, 3, 3), np.nan)
    stress[0] = np.eye(3)
    return StructureArrays.of(
        "mixed",
        n_atoms=N_ATOMS,
        z=[8, 1, 1, 1, 1, 6, 1, 1, 8],
        pos=rng.random((9, 3)) * 3,
        cell=CELLS,
        pbc=PBC,
        energy=[1.0 / 3, 2.0, 3.0],
        forces=rng.normal(size=(9, 3)),
        stress=stress,
    )


def test_edges_are_those_of_each_structure(mixed):
    edges = structure_edges(mixed, CUTOFF)
    start = first = 0
    for row, num in enumerate(N_ATOMS):
        pairs, shifts = neighbor_list(mixed.pos[first : first + num], CELLS[row], PBC[row], CUTOFF)
        stop = start + edges.n_edges[row]
        assert np.array_equal(edges.local[:, start:stop], pairs)
        assert np.array_equal(edges.shifts[start:stop], shifts)
        start, first = stop, first + num
    assert start == edges.local.shape[1]


def test_samples(mixed):
    dataset = StructureDataset(mixed, structure_edges(mixed, CUTOFF), np.array([2, 0]), torch.float64)
    assert len(dataset) == 2
    slab, crystal = dataset[0], dataset[1]
    assert slab.z.tolist() == [6, 1, 1, 8]
    moved = slab.pos - torch.from_numpy(mixed.pos[5:])
    in_cell = (moved - moved[0]) @ torch.from_numpy(np.linalg.pinv(mixed.cell[2]))
    assert in_cell == pytest.approx(in_cell.round().numpy(), abs=1e-14)
    assert torch.equal(slab.forces, torch.from_numpy(mixed.forces[5:]))
    assert slab.cell.shape == (1, 3, 3)
    assert slab.cell[0, 2].tolist() == [0, 0, 1000.0]
    assert slab.shifts.dtype == torch.float64
    assert not slab.shifts[:, 2].any()
    assert torch.isnan(slab.stress).all()
    assert torch.equal(crystal.stress, torch.eye(3).double()[None])
    assert crystal.energy.tolist() == [1.0 / 3]
    assert (slab.idx.tolist(), crystal.idx.tolist()) == ([2], [0])
    assert dataset.labels == ("energy", "forces", "stress")
    assert dataset.n_edges.tolist() == [slab.edge_index.shape[1], crystal.edge_index.shape[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_are_what_potentials_take(mixed, dtype):
    dataset = StructureDataset(mixed, structure_edges(mixed, CUTOFF), dtype=dtype)
    batch = next(iter(DataLoader(dataset, batch_size=3)))
    taken = Structures.of(batch).checked(dtype)
    assert taken.num_graphs == 3
    assert batch.energy.dtype == torch.float64
    assert batch.energy[0] == 1.0 / 3
    assert {batch[name].dtype for name in ("pos", "forces", "stress", "cell", "shifts")} == {dtype}
    src, dst = taken.edge_index
    vectors = taken.pos[dst] - taken.pos[src] + (taken.shifts[:, None] @ taken.cell[taken.batch[src]])[:, 0]
    assert (vectors.norm(dim=1) < CUTOFF + 1e-5).all()
    assert torch.equal(taken.batch[src], taken.batch[dst])


@pytest.mark.parametrize("indices", [[0, 1, 2], [2, 2, 0], [1]])
def test_a_batch_is_what_torch_geometric_makes_of_samples(mixed, indices):
    dataset = StructureDataset(mixed, structure_edges(mixed, CUTOFF), np.array([1, 2, 0]))
    expected, batch = Batch.from_data_list([dataset[n] for n in indices]), dataset.batch(indices)
    assert batch.to_dict().keys() == expected.to_dict().keys()
    assert batch.num_graphs == len(indices)
    for one, other in ((batch, expected), *zip(batch.to_data_list(), expected.to_data_list(), strict=True)):
        for name, value in other.to_dict().items():
            assert (one[name].dtype, one[name].shape) == (value.dtype, value.shape), name
            torch.testing.assert_close(one[name], value, rtol=0, atol=0, equal_nan=True)
    (one_by_one,) = DataLoader(dataset, batch_sampler=[indices])
    (at_once,) = torch.utils.data.DataLoader(dataset, batch_sampler=[indices], collate_fn=collated)
    assert torch.equal(one_by_one.edge_index, expected.edge_index)
    assert torch.equal(at_once.edge_index, expected.edge_index)
    assert torch.equal(collated([dataset[n] for n in indices]).pos, expected.pos)


def test_samples_of_a_subclass_and_of_other_functions(mixed):
    class Flat(StructureDataset):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            sample.flat = torch.ones(1)
            return sample

    edges = structure_edges(mixed, CUTOFF)
    (batch,) = make_loader(Flat(mixed, edges), 0, 0, None, 3)
    assert batch.flat.tolist() == [1.0] * 3
    dataset = StructureDataset(mixed, edges)
    samples = dataset.__getitems__([2, 0, 1])
    assert [int(sample.idx) for sample in samples[1:]] == [0, 1]
    assert len(pickle.dumps(samples[:1])) < len(pickle.dumps(dataset))
    assert [int(sample.idx) for sample in pickle.loads(pickle.dumps(samples))] == [2, 0, 1]
    batch = dataset.batch([0, 1])
    batch.ptr += 1
    assert [len(sample.z) for sample in batch.to_data_list()] == N_ATOMS[:2]


@pytest.mark.parametrize("index", [1.7, "1", np.array([0, 1]), None])
def test_an_index_that_is_no_integer_is_refused(mixed, index):
    dataset = StructureDataset(mixed, structure_edges(mixed, CUTOFF))
    with pytest.raises(TypeError):
        dataset[index]
    with pytest.raises(TypeError):
        dataset.batch([index])


def test_an_index_behind_the_last_sample_is_refused(mixed):
    dataset = StructureDataset(mixed, structure_edges(mixed, CUTOFF))
    assert [int(sample.idx) for sample in dataset] == [0, 1, 2]
    with pytest.raises(IndexError):
        dataset.batch([0, 3])


def test_far_and_unwrapped_atoms_keep_their_digits(mixed):
    moved = np.random.default_rng(0).integers(-300, 300, size=(9, 3)) * np.repeat(mixed.pbc, mixed.n_atoms, axis=0)
    pos = 1e4 + mixed.pos + (moved[:, None] @ np.repeat(mixed.cell, mixed.n_atoms, axis=0))[:, 0]
    far = replace(mixed, pos=pos)
    lengths = []
    for structures, dtype in ((mixed, torch.float64), (far, torch.float32)):
        dataset = StructureDataset(structures, structure_edges(structures, CUTOFF), dtype=dtype)
        batch = next(iter(DataLoader(dataset, batch_size=3)))
        src, dst = batch.edge_index
        vectors = batch.pos[dst] - batch.pos[src] + (batch.shifts[:, None] @ batch.cell[batch.batch[src]])[:, 0]
        lengths.append(vectors.double().norm(dim=1).sort().values)
    size = 10.0  # Angstrom, of positions and shifts around the centre
    assert lengths[1].numpy() == pytest.approx(lengths[0].numpy(), abs=8 * size * torch.finfo(torch.float32).eps)


def test_lattice_vectors_without_number_are_refused(mixed):
    crystal = mixed.take(np.array([0]))
    crystal.pos[1] += 40_000 * crystal.cell[0, 0]
    with pytest.raises(DataError, match=r"expected atoms within 32,767 lattice vectors; 1 of 1 structures .* rows 0"):
        structure_edges(crystal, CUTOFF)


def test_open_sets_have_no_cell(mixed):
    molecule = mixed.take(np.array([1]))
    sample = StructureDataset(molecule, structure_edges(molecule, CUTOFF))[0]
    assert "cell" not in sample
    assert "shifts" not in sample
    assert Structures.of(sample).cell is None


def test_labels_are_those_of_the_rows(mixed):
    edges = structure_edges(mixed, CUTOFF)
    assert StructureDataset(mixed, edges, np.array([1, 2])).labels == ("energy", "forces")
    empty = StructureDataset(mixed, edges, np.array([], dtype=np.int64))
    assert len(empty) == 0
    assert empty.labels == ()


def test_the_cache_is_used_and_checked(mixed, tmp_path, monkeypatch):
    made = structure_edges(mixed, CUTOFF, tmp_path)
    (file,) = tmp_path.iterdir()
    monkeypatch.setattr(neighbors, "structure_neighbors", None)
    again = structure_edges(mixed, CUTOFF, tmp_path)
    assert np.array_equal(made.local, again.local)
    assert np.array_equal(made.shifts, again.shifts)
    monkeypatch.undo()
    with np.load(file) as arrays:
        content = dict(arrays)
    for name, change, reason in (
        ("local", lambda array: array + 50, "made again: an edge points outside its structure"),
        ("local", lambda array: array[:, 1:], "made again: its arrays do not fit the data"),
        ("shifts", lambda array: array[:-1], "made again: its arrays do not fit the data"),
        ("n_edges", lambda array: array[:-1], "made again: its arrays do not fit the data"),
        ("local", None, "made again: it cannot be read"),
    ):
        changed = {key: value for key, value in content.items() if key != name}
        np.savez(file, **(changed | ({name: change(content[name])} if change else {})))
        with pytest.warns(UserWarning, match=reason):
            assert np.array_equal(structure_edges(mixed, CUTOFF, tmp_path).local, made.local)
    structure_edges(mixed, 2.5, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_every_input_is_in_the_key(mixed, tmp_path):
    structure_edges(mixed, CUTOFF, tmp_path)
    for change in ({"pos": mixed.pos + 1e-9}, {"cell": mixed.cell * 1.01}, {"pbc": np.zeros_like(PBC)}):
        before = len(list(tmp_path.iterdir()))
        structure_edges(replace(mixed, **change), CUTOFF, tmp_path)
        assert len(list(tmp_path.iterdir())) == before + 1


def test_coincident_atoms_are_named(mixed):
    pos = mixed.pos.copy()
    pos[4] = pos[3]
    with pytest.raises(DataError, match="atoms at distinct places; 1 of 3 structures do not have that, rows 1; repair"):
        structure_edges(replace(mixed, pos=pos), CUTOFF)


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
