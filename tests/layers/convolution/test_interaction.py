"""One step of message passing against a loop over edges; equivariance, order of edges, isolated atoms."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers.functional import tensor_product
from eqlayers.nn import Interaction

EDGES = torch.tensor([[0, 1, 2, 0, 3, 1], [1, 0, 0, 2, 1, 3]])
HIDDEN = "4x0e + 4x1o + 2x1e"


def layer(irreps_in: str = "4x0e + 4x1o", layout: str = "ir_mul", **kwargs: Any) -> Interaction:
    return Interaction(irreps_in, "0e + 1o", HIDDEN, mean_neighbors=1.7, layout=layout, **kwargs).double()


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(5, 16).double(), torch.randn(6, 4).double(), torch.rand(6).double() * 4 + 0.5


def test_equals_a_loop_over_edges(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    step = layer()
    x, sh, lengths = inputs
    weights = step.radial(lengths)
    up = step.up(x)
    received = [torch.zeros(step.down.irreps_in.dim).double() for _ in range(5)]
    for e, (src, dst) in enumerate(EDGES.T.tolist()):
        received[dst] = received[dst] + tensor_product(step.product.plan, up[src], sh[e], weights[e])
    expected = step.gate(step.down(torch.stack(received) / 1.7**0.5) + step.self_connection(x))
    torch.testing.assert_close(step(x, sh, lengths, EDGES), expected, rtol=0, atol=1e-13)


def test_same_irreps_add_the_input(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    step = Interaction(HIDDEN, "0e + 1o", HIDDEN).double()
    x, (_, sh, lengths) = torch.randn(5, 22).double(), inputs
    with torch.no_grad():
        for part in (step.down, step.self_connection):
            part.weight.zero_()
    assert torch.equal(step(x, sh, lengths, EDGES), x)  # the gate of zeros is zero


def test_edges_at_the_cutoff_send_nothing(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    step = layer(cutoff=5.0)
    x, sh, _ = inputs
    far = step(x, sh, torch.full((6,), 5.0).double(), EDGES)
    torch.testing.assert_close(far, step(x, sh[:0], sh[:0, 0], EDGES[:, :0]), rtol=0, atol=0)


@pytest.mark.parametrize(("atoms", "edges"), [(0, 0), (1, 0), (5, 0)])
def test_no_edges(atoms: int, edges: int) -> None:
    step = layer()
    y = step(torch.randn(atoms, 16).double(), torch.zeros(edges, 4).double(), torch.zeros(edges).double(), EDGES[:, :0])
    assert y.shape == (atoms, 22)
    assert y.isfinite().all()
