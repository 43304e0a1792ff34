"""Mirrored edges: networks compute radial functions for one edge of each pair, with the numbers of all edges."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, molecule

from eqlayers import Graph, TensorProductConv
from eqlayers.atoms.periodic import half_of, neighbor_list
from eqlayers.errors import IndexRangeError, ShapeError
from eqlayers.functional import TabledWeights
from eqlayers.layers.radial.module import ScalarNetwork
from eqlayers.models import MACE, Equiformer, NequIP, Potential, Structures
from eqlayers.models.structures import NeighborLists, collate, mirror, one_way
from eqlayers.nn import Interaction

from .test_compiled import NETWORKS, SPECIES, TINY, assert_alike, batch_of, learned

pytestmark = pytest.mark.kernels
UNTRACED = "MACE, density, tables"  # pairs of species are counted in each call
DENSE = {"interactions": "RealAgnosticDensityResidualInteractionBlock", "distance_transform": "agnesi"}
OTHERS: dict[str, Any] = {
    **{name: NETWORKS[name] for name in ("MACE", "MACE, tables", "NequIP", "TFN", "Equiformer", "toy")},
    "MACE, density": lambda: MACE(SPECIES, lmax=1, correlation=2, **DENSE, **TINY),
    UNTRACED: lambda: MACE(SPECIES, lmax=1, correlation=2, knots=32, **DENSE, **TINY),
}


def crystal() -> Atoms:
    """A cell with axes that are shorter than the cutoff, so that atoms are neighbours of their own images."""
    cell = bulk("Cu", cubic=True) * (2, 1, 1)
    cell.rattle(0.1)
    return cell


def edges_of(atoms: Atoms, cutoff: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """Its neighbour list."""
    return neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)


@pytest.mark.parametrize("name", OTHERS)
def test_pairs_have_the_numbers_of_all_edges(name: str) -> None:
    """Energies, forces, virials, and gradients of weights, by Python and compiled."""
    torch.manual_seed(3)
    potential = Potential(OTHERS[name](), SPECIES).double()
    batch, both = batch_of(potential, [molecule("CH3CH2OH"), crystal(), molecule("H")]), []
    assert batch.mirrored
    outputs = ["energy", "energies", "forces", "virials", "stress"]
    for compiled in (False,) if name == UNTRACED else (False, True):
        potential.compile(compiled)
        for mirrored in (True, False):
            results = potential(batch._replace(mirrored=mirrored), outputs)
            results["stress"] = results["stress"].nan_to_num()
            both.append([*results.values(), *learned(potential, results)])
    for one in both[1:]:
        assert_alike(one, both[0])
    hessians = [
        potential.hessian(batch_of(potential, [crystal()])._replace(mirrored=mirrored)) for mirrored in (True, False)
    ]
    assert_alike(hessians[:1], hessians[1:])


@pytest.mark.parametrize("name", ["MACE", "NequIP", "MACE, density"])
def test_radial_networks_run_once_for_both_directions(name: str) -> None:
    potential, rows = Potential(OTHERS[name](), SPECIES), []
    for one in potential.modules():
        if isinstance(one, ScalarNetwork):
            one.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[-1].shape[0]))
    batch = batch_of(potential, [crystal()])
    potential(batch)
    assert set(rows) == {batch.edge_index.shape[1] // 2}


def test_collate_mirrors_edges() -> None:
    potential = Potential(NequIP(SPECIES, **TINY), SPECIES)
    batch = batch_of(potential, [molecule("CH4"), crystal()])
    assert batch.mirrored
    pairs = batch.edge_index.shape[1] // 2
    assert torch.equal(batch.edge_index[:, pairs:], batch.edge_index[:, :pairs].flip(0))
    assert torch.equal(batch.shifts[pairs:], -batch.shifts[:pairs])
    half = one_way(batch)
    assert half.edge_index.shape[1] == pairs
    again = mirror(half)
    assert torch.equal(again.edge_index, batch.edge_index)
    assert torch.equal(again.shifts, batch.shifts)
    assert (half.mirrored, again.mirrored) == (False, True)
    assert mirror(half._replace(shifts=None)).shifts is None
    listed = [torch.from_numpy(part) for part in edges_of(crystal())]
    lonely = collate(potential, [crystal()], [(listed[0][:, 1:], listed[1][1:])])
    assert not lonely.mirrored, "an edge has no opposite one"
    assert torch.equal(lonely.edge_index, listed[0][:, 1:])


def test_batches_of_loaders() -> None:
    """With the numbers of one edge of each pair."""
    pytest.importorskip("lightning")
    from eqlayers.data.batches import StructureDataset, collated
    from eqlayers.data.neighbors import structure_edges
    from eqlayers.data.structures import StructureArrays

    frames = [crystal(), molecule("H2O"), crystal()]
    arrays = StructureArrays.of(
        "a test",
        n_atoms=[len(atoms) for atoms in frames],
        z=np.concatenate([atoms.numbers for atoms in frames]),
        pos=np.concatenate([atoms.positions for atoms in frames]),
        cell=np.stack([atoms.cell.array for atoms in frames]),
        pbc=np.stack([atoms.pbc for atoms in frames]),
        energy=np.zeros(3),
    )
    dataset = StructureDataset(arrays, structure_edges(arrays, cutoff=4.0), dtype=torch.float64)
    batch = collated(dataset.__getitems__([0, 2, 1]))
    structures = Structures.of(batch).checked(torch.float64)
    assert structures.mirrored
    assert sorted(structures.edge_index.T.tolist()) == sorted(batch.edge_index.T.tolist())
    del batch.half
    plain = Structures.of(batch)
    assert not plain.mirrored
    potential = Potential(NequIP(SPECIES, **TINY), SPECIES).double()
    results = [list(potential(one).values()) for one in (structures, plain)]
    assert_alike(*results)


@pytest.mark.parametrize("seed", range(5))
def test_half_of_edges(seed: int) -> None:
    """One edge of each pair, in any order; None if an edge is missing, twice there, or has another shift."""
    rng = np.random.default_rng(seed)
    edges, shifts = edges_of(crystal())
    order = rng.permutation(edges.shape[1])
    edges, shifts = edges[:, order], shifts[order]
    half = half_of(edges, shifts, 0)
    assert half is not None
    there = {(*edges[:, e], *shifts[e]) for e in half}
    back = {(*edges[::-1, e], *-shifts[e]) for e in half}
    assert not there & back
    assert there | back == {(*edges[:, e], *shifts[e]) for e in range(edges.shape[1])}
    assert half_of(edges[:, 1:], shifts[1:], 0) is None
    other = np.setdiff1d(np.arange(edges.shape[1]), half)
    twice = np.r_[half, half[:1], other[1:]]
    assert half_of(edges[:, twice], shifts[twice], 0) is None
    same = np.r_[half, half[1:2], half[2:], half[:1]]
    assert half_of(edges[:, same], shifts[same], 0) is None
    shifts[other[0]] += [0, 1, 0]
    assert half_of(edges, shifts, 0) is None
    swapped = edges.copy()
    swapped[0, other[:2]] = edges[0, other[1::-1]]
    assert (swapped == edges).all() or half_of(swapped, np.zeros_like(shifts), 0) is None


def test_half_of_few_edges() -> None:
    empty = half_of(np.empty((2, 0), np.int64), fewest=0)
    assert empty is not None
    assert len(empty) == 0
    assert half_of(np.array([[1], [1]]), fewest=0) is None, "an edge to itself without a shift"
    assert half_of(np.array([[0, 2, 5, 4], [4, 5, 0, 2]]), fewest=0) is None, "the same ends, joined otherwise"
    edges, shifts = edges_of(crystal())
    assert half_of(edges, shifts, edges.shape[1]) is not None
    assert half_of(edges, shifts, edges.shape[1] + 1) is None
    potential = Potential(NequIP(SPECIES, **TINY), SPECIES)
    assert not batch_of(potential, [molecule("H2O")]).mirrored, "copies cost more than radial networks"


def test_graphs_with_mirrored_edges() -> None:
    index = torch.tensor([[0, 1, 1, 2], [1, 2, 0, 1]])
    graph = Graph(index, 3, mirrored=True)
    assert repr(graph) == "Graph(4 mirrored edges, 3 senders, 3 receivers)"
    assert graph.to("meta").mirrored
    values = torch.randn(4, 2)
    assert torch.equal(graph.of_pairs(values), values[:2])
    assert torch.equal(graph.of_edges(values[:2]), torch.cat([values[:2], values[:2]]))
    assert graph.of_edges(values) is values
    plain = Graph(index, 3)
    assert plain.of_pairs(values) is values
    assert plain.of_edges(values[:2]).shape == (2, 2)


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        ([[0, 1, 1], [1, 2, 0]], ShapeError, "must be an even number, got 3"),
        ([[0, 1, 2, 1], [1, 2, 1, 0]], IndexRangeError, "the same 2 edges"),
        ([[0, 1, 0, 1], [1, 2, 1, 2]], IndexRangeError, "the same 2 edges"),
    ],
)
def test_other_edges_are_refused(index: list[list[int]], error: type[Exception], words: str) -> None:
    edges = torch.tensor(index)
    with pytest.raises(error, match=words):
        Graph(edges, 3, mirrored=True)
    structures = Structures(torch.tensor([1, 1, 1]), torch.randn(3, 3), edges, mirrored=True)
    with pytest.raises(error, match=words):
        structures.checked(torch.float32)


def test_shifts_must_be_mirrored() -> None:
    batch = batch_of(Potential(NequIP(SPECIES, **TINY), SPECIES), [crystal()])
    shifts = batch.shifts.clone()
    shifts[0, 1] += 1
    with pytest.raises(IndexRangeError, match=r"\(and shifts\) reversed"):
        batch._replace(shifts=shifts).checked(torch.float32)


PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 0, "uvu", True)]


def test_convolutions_repeat_weights_of_pairs() -> None:
    """Values and derivatives to the second order; weights as a tensor and from a table."""
    conv = TensorProductConv("2x0e + 2x1o", "0e + 1o", "2x0e + 2x1o", PATHS, shared_weights=False).double()
    generator = torch.Generator().manual_seed(0)
    index = torch.tensor([[0, 2, 1, 0, 1, 1, 3, 3], [1, 1, 3, 3, 0, 2, 1, 0]])
    graph = Graph(index, 4, mirrored=True)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)

    x, y, w, table = drawn(4, 8), drawn(8, 4), drawn(4, conv.weight_numel), drawn(5, conv.weight_numel)
    assert torch.equal(conv(x, y, w, graph), conv(x, y, torch.cat([w, w]), Graph(index, 4)))
    assert torch.autograd.gradcheck(lambda *t: conv(*t, graph), (x, y, w))
    assert torch.autograd.gradgradcheck(lambda *t: conv(*t, graph), (x, y, w))
    interval, factors = torch.tensor([0, 2, 1, 2]), drawn(4, 3)
    read = TabledWeights(table, interval, factors)
    every = TabledWeights(table, torch.cat([interval, interval]), torch.cat([factors, factors]))
    for backend in (None, "torch"):
        conv.backend = backend
        torch.testing.assert_close(conv(x, y, read, graph), conv(x, y, every, graph))
        torch.testing.assert_close(conv(x, y, every, graph), conv(x, y, every, Graph(index, 4)))
    with pytest.raises(ShapeError, match=r"must be \[8\]"):
        conv(x, y, read, Graph(index, 4))
    with pytest.raises(ShapeError, match=r"weight must be \[8, ...\]"):
        conv(x, y, w, Graph(index, 4))


def test_a_skin_keeps_edges_mirrored() -> None:
    """Edges of a list with a skin are filtered by lengths, which both directions share to the last bit."""
    potential, atoms = Potential(Equiformer(SPECIES, heads=2, **TINY | {"layers": 1}), SPECIES), crystal()
    lists = NeighborLists(potential.cutoff, skin=1.0)
    for _ in range(5):
        atoms.rattle(0.02, seed=lists.built)
        assert collate(potential, [atoms], [lists(atoms)]).mirrored


def test_changed_batches_lose_their_pairs() -> None:
    """Edges that were sorted, added or left out after the loader: the numbers are those of all edges."""
    potential = Potential(NequIP(SPECIES, **TINY), SPECIES).double()
    batch = batch_of(potential, [crystal()])._replace(mirrored=False)
    half = torch.arange(batch.edge_index.shape[1] // 2)
    energy = potential(batch)["energy"]
    order = torch.randperm(2 * len(half), generator=torch.Generator().manual_seed(0))
    for edges, kept in ((order, len(half)), (order[2:], len(half)), (order[2:], len(half) - 1)):
        fields = batch._asdict() | {"edge_index": batch.edge_index[:, edges], "shifts": batch.shifts[edges]}
        changed = SimpleNamespace(**fields, half=half[:kept])
        structures = Structures.of(changed)
        assert not structures.mirrored
        if len(edges) == len(order):
            assert_alike([potential(structures)["energy"]], [energy])
    whole = Structures.of(SimpleNamespace(**batch._asdict(), half=half))
    assert whole.mirrored
    assert_alike([potential(whole)["energy"]], [energy])
    floats = SimpleNamespace(**batch._asdict() | {"shifts": batch.shifts.bfloat16().requires_grad_()}, half=half)
    assert Structures.of(floats).mirrored


class Directed(torch.nn.Module):
    """A network whose radial functions depend on the sender."""

    irreps_sh, cutoff, species = "0e + 1o", 4.0, tuple(SPECIES)

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(0.8, 1.2, len(SPECIES)))
        self.embedding = torch.nn.Embedding(len(SPECIES), 4)
        self.step = Interaction("4x0e", self.irreps_sh, "4x0e", cutoff=4.0)

    def forward(self, atom_types: Any, edges: Any, graph: Graph) -> torch.Tensor:
        lengths = edges.lengths * self.scale[atom_types[graph.ends[0]]]
        return self.step(self.embedding(atom_types), edges.harmonics, lengths, graph).sum(1)


def test_networks_that_do_not_know_of_pairs() -> None:
    torch.manual_seed(0)
    potential, atoms = Potential(Directed(), SPECIES).double(), crystal()
    atoms.numbers[::2] = 8
    batch = batch_of(potential, [atoms])
    assert batch.mirrored
    results = [list(potential(one).values()) for one in (batch, batch._replace(mirrored=False))]
    assert_alike(*results)
