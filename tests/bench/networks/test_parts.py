"""The parts of the time of a call: kernels by the layer that they are of, matrix products, and the host."""

import pytest
import torch

from eqlayers import Graph, nn
from eqlayers.bench.networks.parts import KERNELS, PRODUCTS, purpose_of_form, time_by_part
from eqlayers.bench.peers.atoms import crystal
from eqlayers.models import MACE, Potential


def test_kernels_are_told_by_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer alone, forward and backward: its kernels are of one kind."""
    seen: set[str] = set()

    def noted(key: str) -> str:
        seen.add(purpose_of_form(key))
        return purpose_of_form(key)

    monkeypatch.setattr("eqlayers.bench.networks.parts.purpose_of_form", noted)
    vectors, pos = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    graph = Graph(torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]), 4)
    geometry = nn.EdgeGeometry("0e + 1o")
    gate = nn.GatedNonlinearity("4x0e + 4x1o")
    product = nn.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)], shared_weights=False)
    features = torch.randn(5, product.irreps_in1.dim, requires_grad=True)
    layers = {
        "harmonics": lambda: sum(part.sum() for part in geometry(pos, graph) if part is not None),
        "gates": lambda: gate(torch.randn(4, gate.irreps_in.dim, requires_grad=True)),
        "convolutions": lambda: product(features, vectors, torch.randn(5, product.weight_numel)),
    }
    for kind, call in layers.items():
        seen.clear()
        time_by_part(lambda call=call: call().square().sum().backward())
        assert seen == {kind}


def test_parts_of_a_whole_network() -> None:
    torch.manual_seed(0)
    network = Potential(MACE([7, 13], "4x0e + 4x1o", lmax=1, layers=1, correlation=2, knots=50), [7, 13]).float()
    structures = crystal(16, network.cutoff).structures(torch.float32)
    shares, operators = time_by_part(lambda: network(structures))
    assert operators > 20
    assert all(shares[part] > 0 for part in (*KERNELS[:4], PRODUCTS)), shares
    assert sum(shares.values()) == pytest.approx(1)
