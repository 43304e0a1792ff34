"""Neighbour lists that live on, and batches of Atoms."""

import numpy as np
import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, molecule

from eqlayers.errors import ConfigError
from eqlayers.models import Potential
from eqlayers.models.atoms import NeighborLists, collate, periodic_cell
from eqlayers.testing import ToyNetwork


def test_a_skin_ends_at_half_of_it() -> None:
    """Two atoms that come towards each other by half the skin each are the worst case."""
    pair = Atoms("H2", positions=[[0, 0, 0], [0, 0, 1.39]])
    lists = NeighborLists(1.0, skin=0.4)
    assert lists(pair)[0].shape == (2, 0)
    pair.positions[:, 2] = [0.196, 1.194]
    assert (lists(pair)[0].shape, lists.made) == ((2, 2), 1)
    pair.positions[0, 2] = 0.201
    assert (lists(pair)[0].shape, lists.made) == ((2, 2), 2)
    pair.pbc, pair.cell = True, [0.9, 5, 5]
    assert (lists(pair)[0].shape[1], lists.made) == (6, 3)
    assert (lists(pair[:1])[0].shape[1], lists.made) == (2, 4)


def test_shifts_move_receivers() -> None:
    """Distances by edges and shifts are those of ASE's nearest images."""
    atoms = bulk("Cu") * (2, 1, 1)
    atoms.rattle(0.1, seed=1)
    (src, dst), shifts = NeighborLists(3.0)(atoms)
    vectors = atoms.positions[dst] - atoms.positions[src] + shifts.numpy() @ atoms.cell.array
    lengths = np.linalg.norm(vectors, axis=1)
    assert lengths.max() <= 3.0
    for first, second in ((0, 1), (1, 0)):
        nearest = lengths[((src == first) & (dst == second)).numpy()].min()
        assert nearest == pytest.approx(atoms.get_distance(first, second, mic=True), rel=1e-14)


def test_cells_of_open_axes_are_completed() -> None:
    slanted = Atoms("H", cell=[[2, 0, 0], [1, 1, 0], [0, 0, 5]], pbc=[True, False, True])
    assert periodic_cell(slanted).tolist() == [[2, 0, 0], [0, 1, 0], [0, 0, 5]]
    assert np.linalg.matrix_rank(periodic_cell(Atoms("H"))) == 3


def test_batches_count_on() -> None:
    potential = Potential(ToyNetwork(2), [1, 8])
    structures = [molecule("H2"), molecule("OH")]
    batch = collate(potential, structures, [NeighborLists(4.0)(atoms) for atoms in structures])
    assert (batch.z.tolist(), batch.batch.tolist()) == ([1, 1, 8, 1], [0, 0, 1, 1])  # type: ignore[union-attr]
    assert batch.edge_index.tolist() == [[1, 0, 3, 2], [0, 1, 2, 3]]  # by receiver
    assert (batch.num_graphs, batch.pos.dtype) == (2, torch.float32)
    with pytest.raises(ConfigError, match="structures must be at least one"):
        collate(potential, [], [])


def test_unwrapped_atoms_keep_their_digits() -> None:
    potential = Potential(ToyNetwork(1, cutoff=4.0), species=[29]).eval()
    near = bulk("Cu", cubic=True) * (2, 1, 1)
    near.rattle(0.05, seed=1)
    far = near.copy()
    far.positions += 1e4 + np.random.default_rng(0).integers(-300, 300, size=(8, 3)) @ near.cell.array
    forces = [potential(collate(potential, [atoms], [NeighborLists(4.0)(atoms)]))["forces"] for atoms in (near, far)]
    assert forces[0].abs().max() > 0.01
    torch.testing.assert_close(*forces, rtol=0, atol=2e-5 * float(forces[0].abs().max()))
