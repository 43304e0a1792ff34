"""Whole networks on Triton's kernels: energies, forces and the gradient of a force loss, as on a CPU."""

from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

import eqlayers as eq
from eqlayers.models import MoleculeNetwork

BACKENDS = {"cpu": "cpu", "cuda": "triton"}  # the interpreter runs only when it is named
EPS = torch.finfo(torch.float64).eps


def assert_close(got: list[Tensor], want: list[Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a.cpu() - b.cpu()).abs().max() <= 1e4 * EPS * max(1.0, float(b.abs().max()))  # through all layers


def molecule(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Species, positions and all pairs."""
    count = 60 if device.type == "cuda" else 3
    pairs = torch.tensor([(i, j) for i in range(count) for j in range(count) if i != j]).t()
    z = torch.tensor([1, 6, 7, 8])[torch.arange(count) % 4]
    pos = torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return z.to(device), (2 * pos).to(device), pairs.to(device)


def force_training(network: Any, inputs: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Energy, forces, and the gradients of a loss of both."""
    z, pos, edge_index = inputs
    pos = pos.clone().requires_grad_()
    energy = network(z, pos, edge_index).sum()
    (gradient,) = torch.autograd.grad(energy, pos, create_graph=True)
    loss = energy.square() + gradient.square().sum()
    found = torch.autograd.grad(loss, [p for p in network.parameters() if p.numel()], allow_unused=True)
    return [energy.detach(), gradient.detach(), *(g for g in found if g is not None)]


@pytest.mark.parametrize("hidden", ["4x0e + 2x1o"])
def test_a_network_of_molecules(hidden: str, device: torch.device) -> None:
    found = []
    for place, backend in ((device, "triton"), (torch.device("cpu"), "torch")):
        torch.manual_seed(0)
        network = MoleculeNetwork(hidden=hidden, layers=2, num_basis=4, radial_hidden=(8,), backend=backend)
        inputs = tuple(t.to(place) for t in molecule(device))
        found.append(force_training(network.to(place, torch.float64), inputs))
    assert len(found[0]) > 5
    assert_close(*found)


class Theirs(torch.nn.Module):
    """A product and a linear map of e3nn."""

    def __init__(self) -> None:
        super().__init__()
        paths = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 2, "uvu", True)]
        self.product = o3.TensorProduct("8x0e + 8x1o", "0e + 1o", "8x0e + 8x1o + 8x0e", paths)
        self.linear = o3.Linear(self.product.irreps_out, "4x0e + 4x1o")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.linear(self.product(x, y))
        return out


@pytest.mark.kernels
def test_accelerate(device: torch.device) -> None:
    """On a GPU every replacement is compared with its original there, and runs on these kernels."""
    torch.manual_seed(0)
    model = Theirs().to(device, torch.float64)
    x, y = torch.randn(7, 32, dtype=torch.float64).to(device), torch.randn(7, 4, dtype=torch.float64).to(device)
    before = model(x, y).detach()
    report = eq.accelerate(model)
    assert all(row.replacement for row in report.rows)
    backends = {row.target: row.backend for row in report.rows}
    assert backends == {"product": BACKENDS[device.type], "linear": {"cpu": "cpu", "cuda": "torch"}[device.type]}
    assert_close([model(x, y).detach()], [before])
