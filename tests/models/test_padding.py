"""Structures in memory of a fixed size have the energies, forces and gradients of weights of those without ghosts."""

import numpy as np
import pytest
import torch

from eqlayers.models import TFN, Potential
from eqlayers.models.padding import STEPS, Ghosts, capacity_of, ghosts_of
from eqlayers.models.structures import Structures


def crystal(edges: int, atoms: int = 3) -> Structures:
    """Atoms in a cell, with so many edges across its faces."""
    index = torch.arange(edges)
    generator = torch.Generator().manual_seed(edges)
    return Structures(
        torch.tensor([8, 13]).repeat(atoms)[:atoms],
        torch.rand(atoms, 3, dtype=torch.float64, generator=generator),
        torch.stack([index % atoms, (index + 1) % atoms]),
        torch.zeros(atoms, dtype=torch.int64),
        1,
        cell=4.0 * torch.eye(3, dtype=torch.float64)[None],
        shifts=torch.ones(edges, 3, dtype=torch.float64),
    )


NONE = Structures(
    torch.empty(0, dtype=torch.int64),
    torch.empty(0, 3, dtype=torch.float64),
    torch.empty(2, 0, dtype=torch.int64),
    torch.empty(0, dtype=torch.int64),
    0,
    cell=torch.empty(0, 3, 3, dtype=torch.float64),
    shifts=torch.empty(0, 3, dtype=torch.float64),
)


def padded(structures: Structures, cutoff: float, species: int) -> Structures:
    """A copy of structures in memory of a fixed size."""
    fields = {name: t for name, t in structures._asdict().items() if isinstance(t, torch.Tensor)}
    operands = [*fields.values(), structures.pos.new_empty(structures.num_graphs)]
    ghosts = Ghosts(tuple(fields), 0, cutoff, species)
    capacity = ghosts.capacity(ghosts.sizes(operands))
    memory = ghosts.memory(operands, capacity)
    ghosts.fill(memory, operands)
    return Structures(**dict(zip(fields, memory, strict=False)), num_graphs=capacity["structures"])


@pytest.mark.parametrize("atoms", [0, 1, 31, 32, 33, 450, 511, 512, 4096, 70_001])
def test_memory_is_little_more_than_the_structures(atoms: int) -> None:
    """And a ghost atom has at most about twice the edges of others."""
    ghosts = Ghosts(("z", "edge_index"), 0, 5.0, 8)
    for degree in (0, 10, 40):
        sizes = {"atoms": atoms, "edges": atoms * degree, "structures": atoms // 14}
        capacity = ghosts.capacity(sizes)
        number = ghosts_of(capacity["atoms"])
        assert capacity["atoms"] - number >= atoms
        assert number % 2 == 0
        assert capacity["atoms"] <= max(1.25 * atoms, atoms + 2 * STEPS["atoms"])
        assert sizes["edges"] <= capacity["edges"] <= max(9 / 8 * sizes["edges"], sizes["edges"] + STEPS["edges"])
        assert sizes["structures"] < capacity["structures"] <= 9 / 8 * sizes["structures"] + 2
        unused = capacity["edges"] - sizes["edges"]
        assert unused <= max(2.2 * degree * number, STEPS["edges"])


def test_few_sizes_serve_many() -> None:
    assert len({capacity_of(size, 64) for size in range(4000, 5000)}) <= 4


#: Sets -> median and spread of atoms of a structure, of neighbours of an atom, and the most atoms.
SETS = {"QM9": (18, 0.17, 17, 0.05, 29), "SPICE": (35, 0.5, 22, 0.18, 110), "MPtrj": (24, 0.75, 45, 0.35, 444)}


@pytest.mark.parametrize(("name", "most"), [("QM9", 12), ("SPICE", 35), ("MPtrj", 85)])
def test_few_sizes_serve_batches(name: str, most: int) -> None:
    """4,000 batches of 32 structures; ghosts are an eighth of the atoms and a 20th of the edges."""
    atoms, width, degree, spread, largest = SETS[name]
    rng, ghosts = np.random.default_rng(0), Ghosts(("z", "edge_index"), 0, 5.0, 8)
    numbers = np.clip(rng.lognormal(np.log(atoms), width, (4_000, 32)).round(), 1, largest)
    edges = (numbers * rng.lognormal(np.log(degree), spread, numbers.shape)).sum(1).astype(int)
    sums = numbers.sum(1).astype(int)
    padded = [
        ghosts.capacity({"atoms": int(a), "edges": int(e), "structures": 32}) for a, e in zip(sums, edges, strict=True)
    ]
    assert len({tuple(one.values()) for one in padded}) <= most
    assert np.mean([one["atoms"] for one in padded] / sums) < 1.13
    assert np.mean([one["edges"] for one in padded] / edges) < 1.06


def test_fewer_atoms_and_edges_leave_none_of_those_before() -> None:
    ghosts = Ghosts(("z", "pos", "edge_index", "batch", "cell", "shifts"), 0, 5.0, 29)
    first, later = ([*crystal(*size)[:4], *crystal(*size)[5:], torch.empty(1)] for size in ((150, 13), (20, 3)))
    memory = ghosts.memory(first, ghosts.capacity(ghosts.sizes(first)))
    fresh = [t.clone() for t in memory]
    ghosts.fill(memory, first)
    ghosts.fill(memory, later)
    ghosts.fill(fresh, later)
    for number in (1, 2, 3, 4, 5):
        torch.testing.assert_close(memory[number], fresh[number], rtol=0, atol=0)
    z, pos, edges, batch, cell, shifts, _ = memory
    torch.testing.assert_close(edges[:, :20], later[2])
    assert not shifts[20:].any()
    assert batch.tolist() == [0] * 3 + [1] * (len(z) - 3)
    ends = edges[:, 20:]
    assert int(ends.min()) == len(z) - ghosts_of(len(z))
    torch.testing.assert_close((pos[ends[1]] - pos[ends[0]]).norm(dim=1), torch.full(ends[0].shape, 4.5).double())
    assert float(torch.linalg.det(cell[1])) == 50.0**3


def test_structures_with_ghosts_have_the_energies_of_those_without() -> None:
    """One of them, lone atoms, and none: beside the lone atoms that are subtracted the ghosts change nothing."""
    network = TFN([8, 13], hidden="2x0e + 2x1o", lmax=1, layers=1, radial_hidden=[4], cutoff=5.0)
    potential = Potential(network, [8, 13], {8: -3.0, 13: 2.0}).double().eval()
    assert potential.added == 2
    for structures in (crystal(20), crystal(0), crystal(150, 40), NONE):
        asked = ("energy", "energies", "forces", "stress")
        wanted, results = potential(structures, asked), potential(padded(structures, 5.0, 8), asked)
        for name, value in wanted.items():
            torch.testing.assert_close(results[name][: len(value)], value, rtol=0, atol=1e-12)
