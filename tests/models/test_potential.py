"""Potentials: derivatives by differences, shifts and scales, what is asked for, and what is refused."""

import copy

import pytest
import torch
from torch import Tensor

from eqlayers.errors import ConfigError, DTypeError, IndexRangeError, ShapeError
from eqlayers.models import NequIP, Potential, Structures
from eqlayers.nn import ZBL, EdgeVectors
from eqlayers.testing import ToyNetwork
from tests.each import refused


class Springs(torch.nn.Module):
    """Harmonic bonds between all neighbours, half of each energy to each end."""

    cutoff, irreps_sh = 5.0, "0e"

    def forward(self, kind: Tensor, edges: EdgeVectors, graph: object) -> Tensor:
        pairs = 0.25 * (edges.lengths - 1.0) ** 2
        return pairs.new_zeros(len(kind)).index_add(0, graph.edge_index[1], pairs)  # type: ignore[attr-defined]


PAIR = torch.tensor([[0, 1], [1, 0]])


def pair(length: float, dtype: torch.dtype = torch.float64) -> Structures:
    return Structures(torch.tensor([1, 8]), torch.tensor([[0.0, 0, 0], [0, 0, length]], dtype=dtype), PAIR)


def springs(**options: object) -> Potential:
    potential = Potential(Springs(), [1, 8], **options)  # type: ignore[arg-type]
    potential.network.register_parameter("of_this_dtype", torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)))
    return potential.eval()


def crystal(seed: int = 0) -> Structures:
    """Atoms in a triclinic cell with all their images within 4 Angstrom."""
    made = torch.Generator().manual_seed(seed)
    cell = 4.5 * torch.eye(3, dtype=torch.float64) + torch.rand(3, 3, dtype=torch.float64, generator=made)
    pos = torch.rand(4, 3, dtype=torch.float64, generator=made) @ cell
    steps = torch.cartesian_prod(*[torch.arange(-2, 3)] * 3)
    vectors = pos[None, None] - pos[None, :, None] + (steps.double() @ cell)[:, None, None]  # image, src, dst
    lengths = vectors.norm(dim=-1)
    image, src, dst = ((lengths < 4.0) & (lengths > 0)).nonzero(as_tuple=True)
    return Structures(torch.tensor([1, 8, 1, 1]), pos, torch.stack([src, dst]), None, 1, cell[None], steps[image])


@pytest.fixture(scope="module")
def network() -> Potential:
    torch.manual_seed(0)
    return Potential(NequIP([1, 8], "4x0e + 4x1o + 2x2e", 2, 2, cutoff=4.0), [1, 8], {1: -3.0, 8: 2.0}).double().eval()


def test_a_spring_by_hand() -> None:
    """E = (r - 1)^2 / 2: at 3 Angstrom 2 eV, and forces of 2 eV/A that pull the ends together."""
    found = springs()(pair(3.0), ("energy", "energies", "forces", "virials"))
    assert found["energy"].tolist() == [2.0]
    assert found["energies"].tolist() == [1.0, 1.0]
    assert found["forces"].tolist() == [[0, 0, 2.0], [0, 0, -2.0]]
    # virial: the sum of positions times forces
    assert found["virials"][0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, -6.0]]


def test_scales_multiply_and_shifts_add_by_species() -> None:
    potential = springs(shifts={1: -3.0, 8: 5.0}, scale={1: 2.0, 8: 0.5})
    found = potential(pair(3.0), ("energies", "forces"))
    assert found["energies"].tolist() == [2.0 - 3.0, 0.5 + 5.0]
    potential.set_statistics({8: 1.0}, 4.0)
    assert potential(pair(3.0), ("energies",))["energies"].tolist() == [4.0, 5.0]
    assert potential.to(torch.float32).shifts.dtype == torch.float64  # an energy of 1e5 eV has them in full


def test_scales_do_not_multiply_the_repulsion() -> None:
    """Its energies are in eV already."""
    scale, batch = {1: 2.0, 8: 0.5}, pair(0.9)
    alone = springs(shifts={1: -3.0, 8: 5.0}, scale=scale)(batch, ("energies",))["energies"]
    both = springs(shifts={1: -3.0, 8: 5.0}, scale=scale, repulsion=ZBL())
    unscaled, plain = springs(repulsion=ZBL()), springs()
    repulsion = (unscaled(batch, ("energies",))["energies"] - plain(batch, ("energies",))["energies"]).detach()
    assert float(repulsion.min()) > 1e-3
    torch.testing.assert_close(both(batch, ("energies",))["energies"] - alone, repulsion, rtol=0, atol=1e-13)


def test_batches_are_their_structures(network: Potential) -> None:
    one, two = crystal(0), crystal(1)
    both = Structures(
        torch.cat([one.z, two.z]),
        torch.cat([one.pos, two.pos]),
        torch.cat([one.edge_index, two.edge_index + len(one.z)], 1),
        torch.tensor([0] * 4 + [1] * 4),
        2,
        torch.cat([one.cell, two.cell]),  # type: ignore[list-item]
        torch.cat([one.shifts, two.shifts]),  # type: ignore[list-item]
    )
    asked = ("energy", "forces", "stress")
    whole, parts = network(both, asked), [network(s, asked) for s in (one, two)]
    for name in asked:
        torch.testing.assert_close(whole[name], torch.cat([part[name] for part in parts]), rtol=1e-12, atol=1e-13)


def test_forces_and_stress_are_differences_of_the_energy(network: Potential) -> None:
    atoms, step = crystal(), 1e-5
    found = network(atoms, ("forces", "stress"))

    def energy(moved: Structures) -> float:
        return float(network(moved, ("energy",))["energy"].detach())

    for atom, axis in ((0, 0), (1, 2), (3, 1)):
        ends = []
        for sign in (1, -1):
            pos = atoms.pos.clone()
            pos[atom, axis] += sign * step
            ends.append(energy(atoms._replace(pos=pos)))
        assert float(found["forces"][atom, axis]) == pytest.approx(-(ends[0] - ends[1]) / 2 / step, abs=1e-8)
    assert atoms.cell is not None
    for a, b in ((0, 0), (0, 1), (2, 1)):
        ends = []
        for sign in (1, -1):
            strain = torch.zeros(3, 3, dtype=torch.float64)
            strain[a, b] += 0.5 * sign * step
            strain[b, a] += 0.5 * sign * step
            stretch = torch.eye(3, dtype=torch.float64) + strain
            ends.append(energy(atoms._replace(pos=atoms.pos @ stretch, cell=atoms.cell @ stretch)))
        slope = (ends[0] - ends[1]) / 2 / step / float(torch.linalg.det(atoms.cell[0]).abs())
        assert float(found["stress"][0, a, b]) == pytest.approx(slope, abs=1e-9)


@pytest.mark.parametrize("training", [False, True])
def test_the_stress_of_a_left_handed_cell(network: Potential, training: bool) -> None:
    """Two lattice vectors in the other order are the same crystal."""
    atoms = crystal()
    assert atoms.cell is not None
    assert atoms.shifts is not None
    order = [1, 0, 2]
    other = atoms._replace(cell=atoms.cell[:, order], shifts=atoms.shifts[:, order])
    assert float(torch.linalg.det(atoms.cell[0])) * float(torch.linalg.det(other.cell[0])) < 0
    want, found = (network(at, ("stress",), create_graph=training)["stress"] for at in (atoms, other))
    assert found.requires_grad == training
    assert float(want.detach().abs().max()) > 1e-4
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)


def test_the_stress_of_a_flat_cell_is_none_and_leaves_that_of_others(network: Potential) -> None:
    """Also its gradients, by the cells and the weights, which a division by 0 would make NaN."""
    atoms, flat = crystal(), torch.diag(torch.tensor([9.0, 9.0, 0.0], dtype=torch.float64))
    assert atoms.cell is not None
    assert atoms.shifts is not None
    both = Structures(
        torch.cat([atoms.z, pair(1.1).z]),
        torch.cat([atoms.pos, pair(1.1).pos]),
        torch.cat([atoms.edge_index, PAIR + 4], 1),
        torch.tensor([0, 0, 0, 0, 1, 1]),
        2,
        torch.cat([atoms.cell, flat[None]]).requires_grad_(),
        torch.cat([atoms.shifts, atoms.shifts.new_zeros(2, 3)]),
    )
    stress = network(both, ("stress",), create_graph=True)["stress"]
    torch.testing.assert_close(stress[0].detach(), network(atoms, ("stress",))["stress"][0], rtol=1e-12, atol=1e-14)
    assert bool(stress[1].isnan().all())
    (by_cells,) = torch.autograd.grad(stress[0].square().sum(), both.cell)
    assert bool(by_cells[0].isfinite().all())


def test_energies_in_evaluation_mode_keep_their_graph_where_nothing_is_differentiated(network: Potential) -> None:
    atoms = crystal()
    atoms.pos.requires_grad_()
    energy = network(atoms, ("energy",))["energy"]
    assert energy.requires_grad
    (slopes,) = torch.autograd.grad(energy.sum(), atoms.pos)
    results = network(atoms)
    torch.testing.assert_close(-slopes, results["forces"], rtol=1e-12, atol=1e-12)
    assert not results["energy"].requires_grad


def test_the_hessian_is_the_slope_of_the_forces_in_one_piece_or_several(network: Potential) -> None:
    atoms, step = crystal(), 1e-5
    hessian = network.hessian(atoms)
    assert hessian.shape == (4, 3, 4, 3)
    torch.testing.assert_close(network.hessian(atoms, chunk_size=5), hessian, rtol=1e-12, atol=1e-12)
    flat = hessian.reshape(12, 12)
    torch.testing.assert_close(flat, flat.T, rtol=0, atol=1e-11 * float(flat.abs().max()))
    pos = atoms.pos.clone()
    pos[2, 1] += step
    ahead = network(atoms._replace(pos=pos))["forces"]
    pos[2, 1] -= 2 * step
    behind = network(atoms._replace(pos=pos))["forces"]
    torch.testing.assert_close(hessian[:, :, 2, 1], -(ahead - behind) / 2 / step, rtol=0, atol=1e-7)


def test_forces_are_followed_in_training_only(network: Potential) -> None:
    assert not network(crystal())["forces"].requires_grad
    assert network(crystal(), create_graph=True)["forces"].requires_grad
    with torch.no_grad():
        assert float(network(crystal())["forces"].abs().max()) > 0
    network.train()
    try:
        loss = network(crystal())["forces"].square().sum()
        grads = torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad], allow_unused=True)
    finally:
        network.eval()
    assert all(g is not None and bool(torch.isfinite(g).all()) and float(g.abs().max()) > 0 for g in grads)


def test_no_atoms_and_no_neighbours(network: Potential) -> None:
    nothing = Structures(
        torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.float64), PAIR[:, :0], None, 1
    )
    assert network(nothing)["energy"].tolist() == [0.0]
    alone = Structures(torch.tensor([8]), torch.zeros(1, 3, dtype=torch.float64), PAIR[:, :0])
    found = network(alone, ("energy", "forces", "virials"))
    assert found["energy"].tolist() == [2.0]  # its shift
    assert float(found["forces"].abs().max()) == 0
    assert float(found["virials"].abs().max()) == 0


test_structures_that_cannot_be = refused(
    "change, error, message",
    [
        ({"z": torch.tensor([1, 6])}, IndexRangeError, r"z must hold species among H, O, got also C"),
        (
            {"pos": torch.zeros(2, 3)},
            DTypeError,
            "pos must have the dtype of the model, torch.float64, got torch.float32",
        ),
        ({"z": torch.tensor([1, 8, 8])}, ShapeError, "Give one row per atom"),
        ({"batch": torch.tensor([0, 1])}, IndexRangeError, "the number of structures"),
        ({"cell": torch.eye(3, dtype=torch.float64)[None]}, ShapeError, "cell and shifts must come together"),
        ({"edge_index": PAIR.float()}, DTypeError, "edge_index must be"),
        ({"edge_index": PAIR + 5}, IndexRangeError, r"must lie in \[0, 2\)"),
    ],
    lambda change: springs()(pair(3.0)._replace(**change)),
)


def test_potentials_of_one_network_are_stacked(network: Potential) -> None:
    """An ensemble under vmap, as torch.func makes it of modules."""
    members = [copy.deepcopy(network) for _ in range(3)]
    with torch.no_grad():
        for member in members:
            for parameter in member.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    parameters, buffers = torch.func.stack_module_state(members)
    atoms = crystal().checked(torch.float64)

    def energies(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(members[0], (parameters, buffers), (atoms, ("energy",)))["energy"]

    found = torch.func.vmap(energies)(parameters, buffers)
    want = torch.stack([member(atoms, ("energy",))["energy"] for member in members])
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


def test_a_repulsion_ends_within_the_cutoff() -> None:
    """Potassium's radius is 2.03 Angstrom: pairs of it repel each other to 4.06."""
    network = ToyNetwork(2, cutoff=4.0)
    assert Potential(network, [1, 8], repulsion=ZBL()).repulsion is not None
    with pytest.raises(ConfigError, match=r"repulsion must end within the cutoff of the network, 4 Ang.*, got 4\.06"):
        Potential(network, [1, 19], repulsion=ZBL())


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="stress must"):
        springs()(pair(3.0), ("stress",))
    with pytest.raises(ConfigError, match="outputs must"):
        springs()(pair(3.0), ("force",))
    with pytest.raises(ShapeError, match=r"structures must .*got 2"):
        springs().hessian(pair(3.0)._replace(num_graphs=2))
    with pytest.raises(ConfigError, match="species must"):
        Potential(Springs(), [1, 1])
    with pytest.raises(IndexRangeError, match=r"must name species among H, O, got also C"):
        springs(shifts={6: 1.0})
    with pytest.raises(ConfigError, match=r"the scale of H must .*got 0\.0"):
        springs(scale=0.0)
    with pytest.raises(ConfigError, match=r"network\.cutoff must"):
        Potential(torch.nn.Linear(1, 1), [1])


def test_energies_of_atoms_are_of_structures_as_users_make_them() -> None:
    """Without the batch, that is."""
    model = Potential(ToyNetwork(2), [1, 8])
    pair = Structures(
        torch.tensor([8, 1]), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), torch.tensor([[0, 1], [1, 0]])
    )
    torch.testing.assert_close(model.atomic_energies(pair).sum()[None], model(pair)["energy"], rtol=0, atol=0)
    with pytest.raises(DTypeError, match=r"pos must have the dtype of the model, torch\.float32, got torch\.float64"):
        model.atomic_energies(pair._replace(pos=pair.pos.double()))
