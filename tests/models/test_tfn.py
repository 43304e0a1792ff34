"""The tensor field network: numbers by e3nn's layers. The laws of potentials: test_every_model.py."""

import torch
from e3nn import o3
from torch import Tensor

from eqlayers.models import TFN
from eqlayers.nn import Linear


def turned(x: Tensor, irreps: o3.Irreps, to_ir_mul: bool) -> Tensor:
    """From one layout to the other."""
    parts = []
    for (mul, ir), part in zip(irreps, x.split([i.dim for i in irreps], 1), strict=True):
        shape = (mul, ir.dim) if to_ir_mul else (ir.dim, mul)
        parts.append(part.reshape(-1, *shape).mT.reshape(len(x), -1))
    return torch.cat(parts, 1)


class Ungated(torch.nn.Module):
    """The sum that the gate would take."""

    def forward(self, x: Tensor, added: Tensor) -> Tensor:
        return x + added


def test_a_step_is_that_of_layers_of_e3nn() -> None:
    """Linear maps, products with weights of each edge, a sum over neighbours, before the gate."""
    torch.manual_seed(1)
    network = TFN([1, 6, 8], "6x0e + 6x1o + 6x2e", lmax=2, layers=2, cutoff=4.0, radial_hidden=(8, 8)).double()
    step = network.steps[1]
    step.gate = Ungated()
    edges = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 1]])
    x = torch.randn(4, step.mix_in.irreps_in.dim, dtype=torch.float64)
    harmonics, radial = torch.randn(5, 9, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)

    def linear(layer: Linear, x: Tensor) -> Tensor:
        plain = o3.Linear(layer.irreps_in, layer.irreps_out).double()
        with torch.no_grad():
            plain.weight.copy_(layer.weight)
        return plain(x)

    product = step.product
    plain = o3.TensorProduct(
        product.irreps_in1,
        product.irreps_in2,
        product.irreps_out,
        [tuple(path)[:5] for path in product.instructions],
        shared_weights=False,
        internal_weights=False,
    ).double()
    inputs = turned(x, step.mix_in.irreps_in, False)
    messages = plain(linear(step.mix_in, inputs)[edges[0]], harmonics, step.radial(radial))
    received = messages.new_zeros(4, messages.shape[1]).index_add(0, edges[1], messages) / 5.0**0.5
    want = linear(step.mix_out, received) + linear(step.self_connection, inputs)
    found = step(x, harmonics, radial, edges, torch.tensor(5.0, dtype=torch.float64))
    torch.testing.assert_close(found, turned(want, step.mix_out.irreps_out, True), rtol=1e-12, atol=1e-12)


def test_sums_are_normalised_by_the_mean_number_of_neighbours() -> None:
    """Four times the number halves the messages: of a first step without self-connection the energies as well."""
    network = TFN([1], "4x0e", 1, 1, cutoff=4.0)
    network.set_mean_neighbors(3.0)
    assert TFN(**network.options).options == network.options
    step = network.steps[0]
    graph = torch.tensor([[0, 1], [1, 0]])
    x, harmonics, radial = torch.randn(2, 4), torch.randn(2, 4), torch.randn(2, 8)
    step.self_connection.weight.data.zero_()
    step.gate = Ungated()
    once = step(x, harmonics, radial, graph, network.mean_neighbors)
    torch.testing.assert_close(step(x, harmonics, radial, graph, 4 * network.mean_neighbors), once / 2)
