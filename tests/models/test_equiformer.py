"""Equiformer: the formula by hand, atoms alone and at the cutoff, poles of the frames, orders, heads, and refusals."""

import copy
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers import Graph
from eqlayers.models import Equiformer, Potential, Structures
from eqlayers.models.equiformer import EquiformerStep, reachable_in_frames
from eqlayers.testing import check_potential, random_orthogonal

SPECIES = [1, 6, 8]
EPS = torch.finfo(torch.float64).eps
SMALL: dict[str, Any] = {"heads": 2, "layers": 2, "cutoff": 4.0, "radial_hidden": (8,), "attention_hidden": 4}
OPTIONS: dict[str, dict[str, Any]] = {
    "parity": {"hidden": "2x0e + 2x0o + 2x1o + 2x1e", "layers": 4},
    "one layer": {"hidden": "8x0e", "layers": 1},
    "limited orders": {"hidden": "2x0e + 2x3o", "mmax": 1},
}


def built(dtype: torch.dtype = torch.float64, **options: Any) -> Potential:
    torch.manual_seed(1)
    network = Equiformer(SPECIES, **{"hidden": "4x0e + 4x1o + 4x2e", **SMALL, **options})
    return Potential(network, SPECIES, {1: -13.6}, 0.7).to(dtype).eval()


def around(atoms: int = 5, size: float = 3.0) -> Tensor:
    return size * torch.rand(atoms, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def cluster(pos: Tensor, z: Any = (1, 6, 8, 1, 1)) -> Structures:
    """All pairs."""
    edges = torch.ones(len(pos), len(pos)).fill_diagonal_(0).nonzero().T.contiguous()
    return Structures(torch.tensor(z)[: len(pos)], pos, edges)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one != "one layer")) for one in OPTIONS]
)
def test_every_property_of_a_potential_holds(name: str) -> None:
    ase = pytest.importorskip("ase")  # the check makes its examples with it
    pytest.importorskip("vesin")
    pos = [[0, 0, 0], [0, 1.2, 0], [0.9, -0.6, 0.2], [-0.3, 0.4, 1.5]]  # an edge along y
    report = check_potential(built(**OPTIONS[name]), [ase.Atoms("COHH", pos)], rattle=0.0)
    assert report.ok, str(report)


def test_a_cell_smaller_than_the_cutoff_and_atoms_alone() -> None:
    """Atoms that see their own images, along the axis of the frames, too; forces and stress by finite differences."""
    neighbor_list = pytest.importorskip("eqlayers.atoms.periodic").neighbor_list
    potential = built(hidden="2x0e + 2x1o", layers=1)
    cell = torch.tensor([[2.2, 0.1, 0.0], [0.0, 2.5, 0.0], [0.0, 0.1, 2.9]], dtype=torch.float64)
    pos = torch.tensor([[0.0, 0.0, 0.0], [1.1, 1.2, 1.3]], dtype=torch.float64)
    move, strain = torch.randn_like(pos), torch.randn_like(cell)
    strain = strain + strain.T
    for atoms, box, fewest in ((1, cell, 9), (2, cell, 36), (2, 20 * cell, 2), (1, 20 * cell, 0)):

        def at(t: float, atoms: int = atoms, box: Tensor = box) -> Structures:
            turn = torch.eye(3, dtype=torch.float64) + t * strain
            places, lattice = (pos[:atoms] + t * move[:atoms]) @ turn, box @ turn
            index, shifts = neighbor_list(places.numpy(), lattice.numpy(), True, 4.0)
            index, shifts = torch.from_numpy(index), torch.from_numpy(shifts).double()
            return Structures(torch.tensor([6, 8])[:atoms], places, index, cell=lattice[None], shifts=shifts)

        def energy(t: float) -> float:
            return float(potential(at(t))["energy"].detach())

        found = potential(at(0.0), ["forces", "stress"])
        edges = at(0.0).edge_index.shape[1]
        assert edges >= fewest
        work = float(-(found["forces"] * move[:atoms]).sum() + (found["stress"] * strain).sum() * box.det().abs())
        h = 1e-4
        slope = (8 * (energy(h) - energy(-h)) - energy(2 * h) + energy(-2 * h)) / (12 * h)
        assert abs(work - slope) < 1e-9 * max(1.0, abs(work))
        assert (edges == 0) == (work == 0)


def test_the_formula_by_hand() -> None:
    """A step, edge by edge and head by head, in dense arrays."""
    torch.manual_seed(0)
    irreps = o3.Irreps("4x0e + 2x1o")
    step = EquiformerStep(irreps, irreps, 2, 3, None, 1, 5, (6,)).double()
    with torch.no_grad():
        step.sink.normal_()
    x, basis = torch.randn(3, irreps.dim).double(), torch.randn(4, 5).double()
    src, dst = torch.tensor([[0, 1, 2, 0], [1, 2, 1, 2]])
    envelope = torch.tensor([0.3, 1.0, 0.7, 0.0]).double()
    vectors = torch.randn(4, 3).double()
    frames = step.conv.frame(vectors)
    found = step(x, frames, basis, envelope, Graph(torch.stack([src, dst]), 3))

    y, radial = step.norm(x), step.radial(basis)
    mixed = step.ends(y)
    weights = torch.zeros(4, 2).double()
    logits = torch.empty(4, 2).double()
    for e in range(4):
        for h in range(2):
            own = slice(3 * h, 3 * h + 3)
            hidden = radial[e, own] + mixed[dst[e], own] + mixed[src[e], 6:][own]
            active = 0.2 * hidden + 0.8 * hidden * torch.sigmoid(hidden)
            logits[e, h] = active @ step.score[h] / 3**0.5
    for e in range(4):
        same = dst == dst[e]
        weights[e] = envelope[e] * logits[e].exp()
        weights[e] /= step.sink.exp() + (envelope[same, None] * logits[same].exp()).sum(0)
    received = torch.zeros(3, step.conv.irreps_out.dim).double()
    for e in range(4):
        factors = radial[e, 6:].clone()
        for _, _, columns in step.conv.scale_slices():
            half = (columns.stop - columns.start) // 2
            factors[columns.start : columns.start + half] *= weights[e, 0]
            factors[columns.start + half : columns.stop] *= weights[e, 1]
        one = torch.tensor([[0], [0]])
        received[dst[e]] += step.conv(y[src[e], None], frames[e, None], one, factors[None])[0]
    want = x + step.mix(step.gate(received))
    want = want + step.narrow(step.gate_alone(step.widen(step.norm_alone(want))))
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


def test_an_atom_alone_has_its_shift_and_others_do_not_feel_it() -> None:
    """Trained weights, so that nothing is zero by chance; a dipole and a polarizability may stay."""
    potential = built(properties=("energy", "dipole", "polarizability"))
    potential.set_statistics({6: -4.5, 8: 1.0}, 2.0)
    alone = Structures(torch.tensor([6, 8]), torch.zeros(2, 3).double(), torch.zeros(2, 0, dtype=torch.int64))
    found = potential(alone, ("energies", "forces", "dipole"))
    torch.testing.assert_close(found["energies"], torch.tensor([-4.5, 1.0]).double(), rtol=0, atol=100 * EPS)
    assert not found["forces"].any()
    assert not found["dipole"].any()
    pair = potential(cluster(around(2)), ("energies",))["energies"]
    assert (pair - torch.tensor([0.0, -4.5]).double()).abs().min() > 1e-3  # neighbours do something


@pytest.mark.parametrize("hidden", ["4x0e + 4x1o + 4x2e", pytest.param("2x0e + 2x6e", marks=pytest.mark.slow)])
def test_edges_along_the_axis_of_the_frames(hidden: str) -> None:
    """Molecules along y have finite derivatives, and those of turned ones."""
    potential = built(hidden=hidden)
    pos = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.3, 0.0], [0.0, -1.1, 0.0], [1.2, 0.0, 0.0]]).double()
    turn = random_orthogonal(0)
    at, turned = cluster(pos), cluster(pos @ turn.T)
    torch.testing.assert_close(potential(turned)["forces"], potential(at)["forces"] @ turn.T, rtol=1e-9, atol=1e-11)
    hessian = potential.hessian(at)
    assert torch.isfinite(hessian).all()
    want = torch.einsum("ac,bd,icjd->iajb", turn, turn, hessian)
    torch.testing.assert_close(potential.hessian(turned), want, rtol=1e-8, atol=1e-10)


def test_atoms_at_one_place_give_finite_numbers() -> None:
    potential = built()
    found = potential(cluster(torch.zeros(2, 3).double()))
    assert all(torch.isfinite(value).all() for value in found.values())


@pytest.mark.slow
def test_features_of_unnatural_parity() -> None:
    """Features of every parity arise and are used: without those of unnatural parity the energy is another."""
    potential = built(**OPTIONS["parity"])
    names = [str(step.conv.irreps_out) for step in potential.network.steps]  # type: ignore[union-attr]
    assert ["1e" in name for name in names] == [False, True, True, False]
    assert ["0o" in name for name in names] == [False, False, True, False]
    at = cluster(around())
    mirrored = at._replace(pos=at.pos * torch.tensor([1.0, 1.0, -1.0]).double())
    torch.testing.assert_close(potential(mirrored)["energy"], potential(at)["energy"], rtol=1e-12, atol=0)
    changed = copy.deepcopy(potential)
    norm = changed.network.steps[2].norm  # type: ignore[union-attr, index]
    assert str(norm.irreps_in) == "2x0e+2x1o+2x1e"
    with torch.no_grad():
        norm.weight[4:] = 0  # type: ignore[index]
    assert abs(float(changed(at)["energy"] - potential(at)["energy"])) > 1e-8


def test_what_frames_make() -> None:
    scalars, wanted = o3.Irreps("4x0e"), o3.Irreps("4x0e + 4x0o + 4x1o + 4x1e + 4x2e")
    assert str(reachable_in_frames(scalars, wanted)) == "4x0e+4x1o+4x2e"
    after = o3.Irreps("4x0e + 4x1o")  # no pseudoscalars of one vector and scalars: the frame has no axial scalar
    assert str(reachable_in_frames(after, wanted)) == "4x0e+4x1o+4x1e+4x2e"
    assert str(reachable_in_frames(after, wanted, mmax=0)) == "4x0e+4x1o+4x2e"
    assert str(reachable_in_frames(o3.Irreps("4x1e"), wanted, mmax=0)) == "4x0o+4x1e"


def test_limited_orders_have_fewer_weights_and_are_equivariant() -> None:
    whole, limited = built(layers=3), built(layers=3, mmax=1)
    numbers = [sum(p.numel() for p in potential.parameters()) for potential in (whole, limited)]
    assert numbers[1] < numbers[0]
    at, turn = cluster(around()), random_orthogonal(0)
    turned = at._replace(pos=at.pos @ turn.T)
    torch.testing.assert_close(limited(turned)["energy"], limited(at)["energy"], rtol=1e-12, atol=0)


def test_options_build_it_again() -> None:
    network = Equiformer(SPECIES, "4x0e + 4x1o", 2, 2, 1, 6, 4.5, 5, [8], 3, 6, ["energy", "dipole"], None)
    again = Equiformer(**network.options)
    assert again.options == network.options
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in network.state_dict().items()}
    assert network.options["embedding"] == network.embedding.embedding_dim == 6


def test_autocast_computes_in_half_and_keeps_energies_near() -> None:
    potential, at = built(torch.float32, hidden="4x0e + 4x1o"), cluster(around().float())
    want = potential(at)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = potential(at)
    for name in ("energy", "forces"):
        torch.testing.assert_close(found[name], want[name], rtol=0.1, atol=0.1)


def test_training_lowers_the_loss_of_forces() -> None:
    """Ten steps on one cluster, from the forces of another network."""
    teacher, student = built(), built(hidden="4x0e + 4x1o").train()
    at = cluster(around())
    want = teacher(at)["forces"].detach()
    optimizer = torch.optim.Adam(student.parameters(), 0.02)
    losses = []
    for _ in range(10):
        loss = (student(at)["forces"] - want).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in student.parameters())
    assert losses[-1] < 0.5 * losses[0]
