"""Recomputed networks: the same values and derivatives of every order, less memory, and nothing left behind."""

import weakref

import pytest
import torch

from eqlayers.errors import ConfigError
from eqlayers.models import MACE, Equiformer, MoleculeNetwork, NequIP, Potential, Structures, recomputed
from eqlayers.testing import ToyNetwork

NETWORKS = {
    "nequip": lambda: NequIP([1, 8], hidden="4x0e + 4x1o", lmax=1, layers=3, radial_hidden=[8]),
    "mace": lambda: MACE([1, 8], hidden="4x0e + 4x1o", lmax=2, correlation=2, radial_hidden=[8]),
    "equiformer": lambda: Equiformer([1, 8], hidden="4x0e + 4x1o", layers=2, radial_hidden=[8]),
    "toy": lambda: ToyNetwork(num_species=2),
}


def cluster(atoms: int = 6) -> Structures:
    pos = 1.5 * torch.randn(atoms, 3, dtype=torch.float64)
    near = (torch.cdist(pos, pos) + 9 * torch.eye(atoms)) < 4.0
    cell = 9.0 * torch.eye(3, dtype=torch.float64)[None]
    edges = near.nonzero().T.contiguous()
    shifts = torch.zeros(edges.shape[1], 3, dtype=torch.float64)
    return Structures(torch.tensor([1, 8] * (atoms // 2)), pos, edges, shifts=shifts, cell=cell)


def gradients(potential: Potential, structures: Structures) -> dict[str, torch.Tensor]:
    """Gradients of a loss of energies, forces and stress."""
    potential.zero_grad()
    found = potential(structures, ("energy", "forces", "stress"))
    weights = torch.linspace(1, 2, found["forces"].numel(), dtype=torch.float64).view(-1, 3)
    loss = found["energy"].sum() ** 2 + (weights * found["forces"]).square().sum() + found["stress"].square().sum()
    loss.backward()
    return {name: p.grad.clone() for name, p in potential.named_parameters() if p.grad is not None} | {
        name: value.detach() for name, value in found.items()
    }


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_loss_of_forces_has_the_same_gradients(name: str) -> None:
    potential, structures = Potential(NETWORKS[name](), [1, 8]).double(), cluster()
    want = gradients(potential, structures)
    with recomputed(potential.network):
        found = gradients(potential, structures)
    assert {"energy", "forces", "stress"} < found.keys()
    assert want.keys() <= found.keys()
    for key, value in found.items():
        before = want.get(key, torch.zeros_like(value))  # a parameter without effect has a zero in place of nothing
        torch.testing.assert_close(value, before, rtol=1e-11, atol=1e-12 * float(before.abs().max() + 1e-300))


@pytest.mark.slow
def test_third_derivatives() -> None:
    """Beyond what a loss of forces needs: parts of parts are computed again."""
    potential, structures = Potential(NETWORKS["nequip"](), [1, 8]).double(), cluster(4).checked(torch.float64)
    direction = torch.randn(4, 3, dtype=torch.float64)

    def third() -> torch.Tensor:
        pos = structures.pos.clone().requires_grad_()
        value = potential.atomic_energies(structures._replace(pos=pos)).sum()
        for _ in range(3):
            (slope,) = torch.autograd.grad(value, pos, create_graph=True)
            assert slope.requires_grad
            value = (slope * direction).sum()
        return slope.detach()

    want = third()
    with recomputed(potential.network):
        found = third()
    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-11 * float(want.abs().max()))


class Saved:
    """A tensor that a graph keeps, as long as it does."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_only_one_part_is_in_memory() -> None:
    """Numbers kept between forward and backward pass, those of the derived pass included, grow slowly with layers."""
    structures = cluster(12)

    def kept(layers: int, again: bool) -> int:
        network = NequIP([1, 8], hidden="16x0e + 16x1o", lmax=1, layers=layers, radial_hidden=[8])
        potential = Potential(network, [1, 8]).double()
        saved: weakref.WeakSet[Saved] = weakref.WeakSet()  # an address alone would count what was freed

        def note(tensor: torch.Tensor) -> Saved:
            saved.add(one := Saved(tensor))
            return one

        with torch.autograd.graph.saved_tensors_hooks(note, lambda one: one.tensor):
            if again:
                with recomputed(network):
                    found = potential(structures)
            else:
                found = potential(structures)
        assert found["forces"].requires_grad
        storages = (one.tensor.untyped_storage() for one in saved)
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    assert kept(4, again=True) - kept(2, again=True) < 0.4 * (kept(4, again=False) - kept(2, again=False))


class Noisy(torch.nn.Module):
    """A part that draws random numbers, and returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.calls = 0

    def forward(self, x: torch.Tensor, *, name: str) -> dict[str, object]:
        self.calls += 1
        return {"x": torch.nn.functional.dropout(x * self.scale, 0.5), "name": name, "nothing": None}


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Noisy()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.part(x, name="part")
        assert (found["name"], found["nothing"]) == ("part", None)
        return found["x"]


def test_random_numbers_are_drawn_once() -> None:
    network = Outer()
    x = torch.ones(1000, requires_grad=True)
    with recomputed(network):
        y = network(x)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(slope, y.detach())
    assert network.part.calls == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_is_left_behind() -> None:
    network = Outer()
    kept = network.part.forward = network.part.forward  # as a user's change
    with pytest.raises(RuntimeError, match="stop"), recomputed(network):
        raise RuntimeError("stop")
    assert network.part.forward is kept
    del network.part.forward
    with recomputed(network):
        assert "forward" in network.part.__dict__
        with torch.no_grad():
            network(torch.ones(3))
    assert "forward" not in network.part.__dict__
    assert network.part.calls == 1
    with pytest.raises(ConfigError, match="network must"), recomputed("network"):  # type: ignore[arg-type]
        pass


def test_networks_of_properties() -> None:
    network = MoleculeNetwork(species=[1, 8], hidden="4x0e + 4x1o", layers=2, radial_hidden=[8]).double()
    structures = cluster()

    def slopes() -> list[torch.Tensor | None]:
        network.zero_grad()
        network(structures.z, structures.pos, structures.edge_index).sum().backward()
        return [p.grad for p in network.parameters()]

    want = slopes()
    with recomputed(network):
        found = slopes()
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-12, atol=1e-13)
