"""Neighbour lists that live on, and batches of Atoms."""

import numpy as np
import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.fd import calculate_numerical_stress as numeric_stress

from eqlayers.errors import ConfigError
from eqlayers.integrations.ase import Calculator
from eqlayers.models import Potential
from eqlayers.models.structures import NeighborLists, collate, periodic_cell
from eqlayers.testing import ToyNetwork


def test_a_skin_ends_at_half_of_it() -> None:
    """Two atoms that come towards each other by half the skin each are the worst case."""
    pair = Atoms("H2", positions=[[0, 0, 0], [0, 0, 1.39]])
    lists = NeighborLists(1.0, skin=0.4)
    assert lists(pair)[0].shape == (2, 0)
    pair.positions[:, 2] = [0.196, 1.194]
    assert (lists(pair)[0].shape, lists.built) == ((2, 2), 1)
    pair.positions[0, 2] = 0.201
    assert (lists(pair)[0].shape, lists.built) == ((2, 2), 2)
    pair.pbc, pair.cell = True, [0.9, 5, 5]
    assert (lists(pair)[0].shape[1], lists.built) == (6, 3)
    assert (lists(pair[:1])[0].shape[1], lists.built) == (2, 4)


def test_a_cell_or_a_periodicity_that_changes_alone_makes_a_new_list() -> None:
    """Under constant pressure the cell shrinks where atoms stay; images come within the cutoff."""
    atoms = Atoms("H", cell=[5.0, 5.0, 5.0], pbc=True)
    lists = NeighborLists(4.0, skin=0.5)
    assert lists(atoms)[0].shape == (2, 0)
    atoms.cell[2, 2] = 3.9
    edges, shifts = lists(atoms)
    assert (edges.shape, shifts.abs().tolist(), lists.built) == ((2, 2), [[0, 0, 1]] * 2, 2)
    atoms.pbc[2] = False
    atoms.cell[2] = [0, 0, 1.0]  # what an open axis is completed by, so that the cell of the list stays
    assert lists(atoms)[0].shape == (2, 0)
    made = lists.built
    atoms.pbc[2] = True
    assert (lists(atoms)[0].shape, lists.built) == ((2, 8), made + 1)


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
    with pytest.raises(ConfigError, match="structures must"):
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


@pytest.mark.parametrize(
    ("cell", "pbc"),
    [
        ([[2.6, 0.1, 0], [0, 2.7, 0], [0, 0, 15.0]], [True, True, False]),
        ([[0, 2.8, 0], [0, 0.3, 3.2], [15.0, 1.0, 0]], [True, True, False]),
        ([[12.0, 0, 0], [0, 18.0, 1.0], [0.2, 0, 2.7]], [False, False, True]),
        ([[2.6, 0.1, 0], [0, 0, 2.7], [0, 2.9, 0]], True),  # left-handed
    ],
    ids=["slab", "turned slab", "wire", "crystal"],
)
def test_the_volume_of_a_stress_is_that_of_ase(cell: list[list[float]], pbc: bool | list[bool]) -> None:
    """By the potential, by the calculator, in a batch with a molecule, and by differences of the energy."""
    potential = Potential(ToyNetwork(1, cutoff=3.0), species=[29]).double().eval()
    atoms = Atoms("Cu2", positions=[[0, 0, 0], [1.2, 1.1, 1.3]], cell=cell, pbc=pbc)
    lists = NeighborLists(3.0)
    found = potential(collate(potential, [atoms], [lists(atoms)]), ("stress",))["stress"][0].numpy()
    assert np.abs(found).max() > 1e-6
    atoms.calc = Calculator(potential)
    np.testing.assert_allclose(found, atoms.get_stress(voigt=False), rtol=1e-13, atol=1e-16)
    np.testing.assert_allclose(found, numeric_stress(atoms, voigt=False, eps=1e-5), rtol=0, atol=1e-8)

    alone = Atoms("Cu2", positions=[[0, 0, 0], [1.2, 1.1, 1.3]], cell=[9, 9, 9])
    with pytest.raises(ConfigError, match="stress must"):
        potential(collate(potential, [alone], [lists(alone)]), ("stress",))
    both = collate(potential, [alone, atoms], [lists(alone), NeighborLists(3.0)(atoms)])
    stress = potential(both, ("stress",))["stress"]
    assert bool(stress[0].isnan().all())
    np.testing.assert_allclose(stress[1].numpy(), found, rtol=1e-12, atol=1e-16)
    trained = potential(both, ("stress",), create_graph=True)["stress"][1].square().sum()
    slopes = torch.autograd.grad(trained, list(potential.parameters()), allow_unused=True, materialize_grads=True)
    assert all(bool(torch.isfinite(slope).all()) for slope in slopes)


@pytest.mark.parametrize("pbc", [[False] * 3, [True, True, False]], ids=["open", "slab"])
def test_far_parts_keep_their_digits(pbc: list[bool]) -> None:
    """Two clusters 5,000 Angstrom apart have, in float32, the forces of each alone."""
    potential = Potential(ToyNetwork(1, cutoff=4.0), species=[29]).eval()
    near = bulk("Cu", cubic=True) * (2, 1, 1)
    near.rattle(0.05, seed=1)
    near.pbc = pbc
    far = near.copy()
    far.positions += [0.0, 0.0, 5000.0] if any(pbc) else [3000.0, -100.0, 4000.0]
    both = near + far
    want, found = (potential(collate(potential, [a], [NeighborLists(4.0)(a)]))["forces"] for a in (near, both))
    size = float(want.abs().max())
    assert size > 0.01
    torch.testing.assert_close(found, torch.cat([want, want]), rtol=0, atol=2e-5 * size)
    assert collate(potential, [both], [NeighborLists(4.0)(both)]).pos.abs().max() < 30
