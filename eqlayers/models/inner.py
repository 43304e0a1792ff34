"""The inner graph of a potential: energies of atoms and their slopes by the vectors of edges."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from ..core.traces.simplify import simplify
from ..core.traces.trace import Axes, trace
from .potential import Potential
from .structures import Structures

AXES: tuple[Axes, ...] = (("atoms",), ("edges", None), (None, "edges"))


class Inner(NamedTuple):
    """A potential without positions, cells, strain and batches, which are around this graph.

    Attributes:
        graph: From the weights, then ``z [A]``, ``vectors [E, 3]`` and ``edge_index [2, E]``, to energies of atoms
            ``[A]`` float64 and slopes ``[E, 3]``, the derivatives of their sum by the vectors. Its inputs are checked
            by the caller.
        weights: Names of the weights and buffers, in the order of the graph's inputs.

    Example:
        >>> from eqlayers.testing import ToyNetwork
        >>> potential = Potential(ToyNetwork(1), species=[29]).eval()
        >>> inner = inner_graph(potential)
        >>> vectors, pair = torch.tensor([[0.0, 0.0, 2.3], [0.0, 0.0, -2.3]]), torch.tensor([[0, 1], [1, 0]])
        >>> [tuple(t.shape) for t in inner(potential, torch.tensor([29, 29]), vectors, pair)]
        [(2,), (2, 3)]
    """

    graph: fx.GraphModule
    weights: tuple[str, ...]

    def __call__(self, potential: Potential, z: Tensor, vectors: Tensor, edge_index: Tensor) -> list[Tensor]:
        """Run the graph with the weights of a potential."""
        results: list[Tensor] = self.graph(*(_tensors(potential)[name] for name in self.weights), z, vectors, edge_index)
        return results


def inner_graph(potential: Potential) -> Inner:
    """Trace the inner graph of a potential, with the dtype and device that it has now.

    Raises:
        ConfigError: The network cannot be traced; with the line that cannot, or it predicts no energy.
    """
    potential._requested(("energy",))
    named = _tensors(potential)
    held = _ByVectors(potential)

    def function(*inputs: Tensor) -> list[Tensor]:
        weights = {f"potential.{name}": t for name, t in zip(named, inputs, strict=False)}
        results: list[Tensor] = functional_call(held, weights, inputs[len(named) :])
        return results

    index, vectors = torch.zeros(2, 1, dtype=torch.int64), torch.zeros(1, 3, dtype=potential.dtype)
    operands = [*named.values(), *(t.to(potential.device) for t in (index[0], vectors, index))]
    graph = trace(function, operands, [*[None] * len(named), *AXES], "the potential")
    simplify(graph)
    return Inner(graph, tuple(named))


class _ByVectors(nn.Module):
    def __init__(self, potential: Potential) -> None:
        super().__init__()
        self.potential = potential

    def forward(self, z: Tensor, vectors: Tensor, edge_index: Tensor) -> list[Tensor]:
        """Energies of atoms and slopes by vectors, which are shifts of atoms at the origin."""
        with torch.enable_grad():
            vectors = vectors.detach().requires_grad_()
            atoms = Structures(z, vectors.new_zeros(z.shape[0], 3), edge_index, torch.zeros_like(z), 1, None, vectors)
            results = self.potential._predicted(atoms)
            (slopes,) = torch.autograd.grad(results["varying"].sum(), vectors)
        return [results["energies"].detach(), slopes]


def _tensors(potential: Potential) -> dict[str, Tensor]:
    named = [*potential.named_parameters(), *potential.named_buffers()]
    return {name: t.detach() for name, t in named}
