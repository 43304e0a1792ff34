"""Programs: parts of a graph as one Python function that calls kernels and operators directly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..backends.ahead import WATCHERS
from ..backends.forms import BY_DEVICE, find_runner
from ..backends.operands import with_table
from ..forms.description import describe
from ..forms.request import Sizes
from ..torch_internals import below_autograd, outside_of_autocast
from .trace import fake_of, is_operator


class GraphProgram:
    """Nodes of a graph in their order, as a function from values of some nodes to values of others.

    Autograd and the dispatcher see the operators of torch alone: kernels of forms are found when the program is built.

    Args:
        module: Has the constants of the graph.
        inputs: Nodes whose values are arguments.
        nodes: Nodes that run.
        outputs: Nodes whose values are returned.
    """

    def __init__(
        self, module: fx.GraphModule, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]
    ) -> None:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for number, node in enumerate(inputs):
            copies[node] = graph.placeholder(f"input_{number}")
            copies[node].meta = node.meta
        for node in nodes:
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output([copies[node] for node in outputs])
        self._device = next((fake_of(n).device.type for n in inputs if isinstance(fake_of(n), Tensor)), "cpu")
        self._module, self._ready = fx.GraphModule(module, graph), False

    @property
    def graph(self) -> fx.Graph:
        """The nodes."""
        return self._module.graph

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The values of the outputs from the values of the inputs, without a record for autograd."""
        if not self._ready and not WATCHERS:  # which replace kernels for a while
            self._ready = True
            call_directly(self._module)
        with torch.no_grad(), below_autograd(), outside_of_autocast(self._device):
            results: list[Any] = self._module.forward(*values)
        return results


def call_directly(module: fx.GraphModule) -> None:
    """Replace calls of the operator of forms by calls of their kernels."""
    for node in module.graph.nodes:
        if is_operator(node, "eqlayers.form.default"):
            operands, tables, rows, senders, receivers, key, backend, deterministic = (*node.args, "", True)[:8]
            first = fake_of(operands[0])
            home = BY_DEVICE[first.device.type]
            if backend in ("", home):
                kernel = _kernel(key, home, first, tables is not None, deterministic)
                node.target, node.args = kernel, (operands, tables, rows, senders, receivers)
    module.recompile()


def _kernel(key: str, backend: str, like: Tensor, graph: bool, deterministic: bool) -> Callable[..., Sequence[Tensor]]:
    description, example = describe(key), torch.empty(0, dtype=like.dtype, device=like.device)
    runner = find_runner(description, backend, example, graph, deterministic)
    assert runner is not None
    form = description.form
    if form.reading is None:
        return lambda operands, tables, *rows: runner(operands, tables, Sizes(*rows))
    return lambda operands, tables, *rows: runner(operands, tables, with_table(form, operands, Sizes(*rows)))
