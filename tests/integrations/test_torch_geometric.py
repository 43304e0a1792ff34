"""Transforms of torch-geometric alone and through its loader; layers inside of its message passing."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3

pytest.importorskip("torch_geometric")
pytest.importorskip("vesin")
pytest.importorskip("ase")
pytest.importorskip("lightning")  # eqlayers.data needs it

from ase.build import bulk, molecule
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing
from torch_geometric.transforms import Compose

from eqlayers import Graph, TensorProduct, TensorProductConv
from eqlayers.data import TARGETS, load_mini, radius_graph
from eqlayers.errors import ConfigError, DataError, DTypeError, ShapeError
from eqlayers.integrations.torch_geometric import EdgeBasis, EdgeHarmonics, EdgeVectors, RadiusGraph
from eqlayers.models import Potential, Structures
from eqlayers.nn import BesselBasis
from eqlayers.testing import ToyNetwork
from tests.each import refused

CUTOFF = 3.0


def data_of(atoms: Any, **others: Any) -> Data:
    data = Data(pos=torch.from_numpy(atoms.positions.copy()), z=torch.from_numpy(atoms.numbers).long(), **others)
    if atoms.pbc.any():
        data.cell, data.pbc = torch.from_numpy(atoms.cell.array.copy()), torch.from_numpy(atoms.pbc.copy())
    return data


@pytest.fixture
def crystals() -> list[Any]:
    made = [bulk("Cu"), bulk("NaCl", "rocksalt", 5.6), bulk("Si")]
    for seed, atoms in enumerate(made):
        atoms.rattle(0.1, seed=seed)
    made[2].pbc = [True, False, True]
    return made


def by_images(atoms: Any) -> np.ndarray:
    """Vectors of all pairs and images within the cutoff, receiver by receiver, in any order."""
    reach = [range(-4, 5) if periodic else range(1) for periodic in atoms.pbc]
    shifts = np.array(np.meshgrid(*reach, indexing="ij")).reshape(3, -1).T
    pos = atoms.positions
    vectors = pos[:, None, None] - pos[None, :, None] + (shifts @ atoms.cell.array)[None, None]
    lengths = np.linalg.norm(vectors, axis=-1)
    return vectors[(lengths < CUTOFF) & (lengths > 0)]


def test_molecules_of_a_loader() -> None:
    """A batch of a loader has the edges that a search in the whole batch gives."""
    molecules = load_mini(None, TARGETS["U0"])
    ends = np.cumsum(molecules.n_atoms)
    samples = [
        RadiusGraph(CUTOFF, cells=False)(Data(pos=torch.from_numpy(molecules.pos[end - n : end])))
        for end, n in zip(ends[-7:], molecules.n_atoms[-7:], strict=True)
    ]
    seen = 0
    for batch in DataLoader(samples, batch_size=3):
        wanted = radius_graph(batch.pos, CUTOFF, batch.ptr.diff())
        assert torch.equal(batch.edge_index, wanted)
        assert "shifts" not in batch
        batch = EdgeVectors()(batch)  # a shallow copy, as of every transform
        src, dst = wanted
        torch.testing.assert_close(batch.edge_vec, batch.pos[dst] - batch.pos[src])
        seen += batch.num_graphs
    assert seen == 7


def test_crystals_of_a_loader(crystals: list[Any]) -> None:
    transform = Compose(
        [RadiusGraph(CUTOFF), EdgeVectors(), EdgeHarmonics(2), EdgeBasis(BesselBasis(4, CUTOFF).double())]
    )
    samples = [transform(data_of(atoms)) for atoms in crystals]
    (batch,) = DataLoader(samples, batch_size=3)
    assert batch.cell.shape == (3, 3, 3)
    assert batch.pbc.tolist() == [list(atoms.pbc) for atoms in crystals]
    for number, atoms in enumerate(crystals):
        mine = batch.batch[batch.edge_index[1]] == number
        assert torch.equal(mine, batch.batch[batch.edge_index[0]] == number)
        of_edges, wanted = batch.edge_vec[mine].numpy(), by_images(atoms)
        assert of_edges.shape == wanted.shape
        order = [np.lexsort(np.round(vectors, 9).T) for vectors in (of_edges, wanted)]
        np.testing.assert_allclose(of_edges[order[0]], wanted[order[1]], rtol=0, atol=1e-12)
    kept = {name: batch[name].clone() for name in ("edge_vec", "edge_length", "edge_harmonics", "edge_basis")}
    again = Compose(transform.transforms[1:])(batch)  # of the batch, which has several cells
    for name, value in kept.items():
        torch.testing.assert_close(again[name], value, rtol=0, atol=1e-13)
    torch.testing.assert_close(batch.edge_length, batch.edge_vec.norm(dim=1))
    harmonics = o3.spherical_harmonics([0, 1, 2], batch.edge_vec, True, "component")
    torch.testing.assert_close(batch.edge_harmonics, harmonics, rtol=0, atol=1e-12)
    torch.testing.assert_close(batch.edge_basis, BesselBasis(4, CUTOFF).double()(batch.edge_length))
    assert not batch.edge_basis.requires_grad


def test_potentials_take_the_batches(crystals: list[Any]) -> None:
    """Molecules among crystals, too."""
    mixed = [*crystals[:2], molecule("CH3OH")]
    species = sorted({int(z) for atoms in mixed for z in atoms.numbers})
    potential = Potential(ToyNetwork(len(species), cutoff=CUTOFF), species).double()
    samples = [RadiusGraph(CUTOFF)(data_of(atoms)) for atoms in mixed]
    alone = [potential(Structures.of(sample))["energy"] for sample in samples[:2]]
    alone.append(potential(Structures.of(RadiusGraph(CUTOFF, cells=False)(data_of(mixed[2]))))["energy"])
    for order in ([0, 1, 2], [2, 0, 1]):  # a loader drops what the first structure has not
        (batch,) = DataLoader([samples[n] for n in order], batch_size=3)
        energy = potential(Structures.of(batch))["energy"]
        torch.testing.assert_close(energy, torch.cat([alone[n] for n in order]), rtol=0, atol=1e-11)


def test_boxes_of_structures_without_periods() -> None:
    """None, one of zeros, as ASE's molecules have it, and one that is given."""
    box = 7.0 * torch.eye(3, dtype=torch.float64)
    for cell, wanted in ((None, 1000.0), (torch.zeros(3, 3), 1000.0), (box, 7.0)):
        data = RadiusGraph(CUTOFF)(Data(pos=WATER, cell=cell, pbc=False))
        assert torch.equal(data.cell, wanted * torch.eye(3, dtype=torch.float64)[None])
        assert data.pbc.tolist() == [[False] * 3]
        assert data.shifts.abs().max() == 0
        torch.testing.assert_close(EdgeVectors()(data).edge_vec, WATER[data.edge_index[1]] - WATER[data.edge_index[0]])
        assert "shifts" not in RadiusGraph(CUTOFF, cells=False)(Data(pos=WATER, cell=cell, pbc=False))


PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 0, "uvu", True)]


class Conv(MessagePassing):
    """A layer as users write it."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        kind = {"internal_weights": False, "shared_weights": False}
        self.product = TensorProduct("4x0e + 4x1o", "0e + 1o + 2e", "4x0e + 4x1o", PATHS, **kind).double()

    def forward(self, x: Any, edge_index: Any, edge_harmonics: Any, weight: Any) -> Any:
        return self.propagate(edge_index, x=x, edge_harmonics=edge_harmonics, weight=weight)

    def message(self, x_j: Any, edge_harmonics: Any, weight: Any) -> Any:
        return self.product(x_j, edge_harmonics, weight)


def test_message_passing_and_convolution_are_one(crystals: list[Any]) -> None:
    transform = Compose([RadiusGraph(CUTOFF), EdgeHarmonics(2)])
    samples = [transform(data_of(atoms)) for atoms in crystals]
    for sample in samples:
        sample.graph = Graph.of(sample)
    (batch,) = DataLoader(samples, batch_size=3)
    graph = Graph.joined(batch.graph)
    assert torch.equal(graph.edge_index, batch.edge_index)
    assert (graph.num_src, graph.num_dst) == (batch.num_nodes, batch.num_nodes)
    theirs = Conv()
    ours = TensorProductConv("4x0e + 4x1o", "0e + 1o + 2e", "4x0e + 4x1o", PATHS, shared_weights=False).double()
    x = torch.randn(batch.num_nodes, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(batch.num_edges, ours.weight_numel, dtype=torch.float64, requires_grad=True)
    results = [
        theirs(x, batch.edge_index, batch.edge_harmonics, weight),
        ours(x, batch.edge_harmonics, weight, batch.edge_index),
        ours(x, batch.edge_harmonics, weight, graph),
        ours(x, batch.edge_harmonics, weight, Graph.of(batch)),
    ]
    grads = [torch.autograd.grad(z.square().sum(), (x, weight)) for z in results]
    for z, grad in zip(results[1:], grads[1:], strict=True):
        torch.testing.assert_close(z, results[0], rtol=0, atol=1e-11)
        torch.testing.assert_close(grad, grads[0], rtol=0, atol=1e-10)


def test_graphs_move_with_their_samples() -> None:
    sample = RadiusGraph(CUTOFF)(data_of(molecule("H2O")))
    sample.graph = Graph.of(sample)
    assert sample.to("meta", non_blocking=True).graph.edge_index.is_meta


def test_texts_and_copies() -> None:
    transforms = [RadiusGraph(5), RadiusGraph(4.5, cells=False), EdgeVectors(), EdgeHarmonics("0e + 2e", "norm")]
    assert [repr(copy.deepcopy(t)) for t in transforms] == [
        "RadiusGraph(cutoff=5)",
        "RadiusGraph(cutoff=4.5, cells=False)",
        "EdgeVectors()",
        "EdgeHarmonics(1x0e+1x2e, norm)",
    ]


WATER = torch.from_numpy(molecule("H2O").positions)
BAD: list[tuple[type[Exception], str, Any]] = [
    (ConfigError, "cutoff must be a positive number of Angstrom", lambda: RadiusGraph(0.0)),
    (ConfigError, "lmax must be an integer, at least 0", lambda: EdgeHarmonics(-1)),
    (ConfigError, "basis must be a function of lengths", lambda: EdgeBasis(3)),
    (ConfigError, r"data must have positions pos \[A, 3\]", lambda: RadiusGraph(3.0)(Data())),
    (
        DTypeError,
        "data.pos must be a floating-point tensor",
        lambda: RadiusGraph(3.0)(Data(pos=torch.zeros(2, 3, dtype=torch.int64))),
    ),
    (ConfigError, "data must be a torch_geometric.data.Data", lambda: EdgeVectors()(WATER)),
    (
        ConfigError,
        r"data must have edges edge_index \[2, E\].*Apply RadiusGraph",
        lambda: EdgeVectors()(Data(pos=WATER)),
    ),
    (DataError, "cell must be there where pbc is true, got none", lambda: RadiusGraph(3.0)(Data(pos=WATER, pbc=True))),
    (
        DataError,
        r"data.pbc must be false with cells=False, got a structure with periods. Use RadiusGraph\(cutoff\)",
        lambda: RadiusGraph(3.0, cells=False)(Data(pos=WATER, cell=9 * torch.eye(3))),
    ),
    (
        ShapeError,
        r"data.cell must be \[3, 3\] of one structure, got \[3\]",
        lambda: RadiusGraph(3.0)(Data(pos=WATER, cell=torch.ones(3))),
    ),
    (
        ShapeError,
        "data must be one structure, got a batch",
        lambda: RadiusGraph(3.0)(Batch.from_data_list([Data(pos=WATER)] * 2)),
    ),
    (DataError, "data.pos must be at distinct positions", lambda: RadiusGraph(3.0)(Data(pos=torch.zeros(2, 3)))),
]


test_bad_input = refused("error, message, call", BAD)
