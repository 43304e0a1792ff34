"""A function of tensors as two programs, parts of its graph: its results, and their gradient, which autograd calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor, fx

from ..backends.ahead import WATCHERS
from ..backends.forms import BY_DEVICE, find_runner
from ..backends.operands import with_table
from ..errors import ConfigError
from ..forms.description import describe
from ..forms.request import Sizes
from ..torch_internals import below_autograd, draws, outside_of_autocast
from .simplify import join_gradients, narrow_gradients, simplify
from .trace import Axes, Function, fake_of, is_operator, owner_of, trace


class Derivable:
    """A function of tensors, traced once, that runs without Python's layers, and its gradient by ``wanted`` operands.

    It returns a list of tensors; operands and ``axes`` are as of :func:`.trace.trace`.
    """

    def __init__(
        self, function: Function, operands: Sequence[Tensor], axes: Sequence[Axes], wanted: Sequence[bool], what: str
    ) -> None:
        numbers = [number for number, want in enumerate(wanted) if want]
        counts: dict[str, int] = {}
        self.moving: list[bool] = []  # whether each result has a gradient

        def joint(*tensors: Tensor) -> list[Tensor]:
            """Results, tensors in place of the gradients of results, and gradients."""
            leaves = [tensors[number].detach().requires_grad_() for number in numbers]
            moved = dict(zip(numbers, leaves, strict=True))
            with torch.set_grad_enabled(bool(numbers)):
                results = list(function(*(moved.get(number, t) for number, t in enumerate(tensors))))
            self.moving[:] = [bool(numbers) and result.requires_grad for result in results]
            moving = [result for result, moves in zip(results, self.moving, strict=True) if moves]
            cotangents = [torch.empty_like(result) for result in moving]
            slopes: Sequence[Tensor | None] = [None] * len(leaves)
            if moving:
                slopes = torch.autograd.grad(moving, leaves, cotangents, allow_unused=True)
            by_number = {number: one for number, one in zip(numbers, slopes, strict=True) if one is not None}
            self.numbers = list(by_number)
            counts.update(results=len(results), cotangents=len(cotangents))
            return [t.detach() for t in (*results, *cotangents, *by_number.values())]

        module = trace(joint, operands, axes, what)
        simplify(module)
        join_gradients(module.graph)
        self.operands, self.axes = len(operands), [() if names is None else names for names in axes]
        self.is_random = any(draws(node.target) for node in module.graph.nodes)
        narrow_gradients(module.graph, _before(_outputs(module.graph)[: counts["results"]]))
        simplify(module)  # constants in another dtype
        outputs = _outputs(module.graph)
        results, rest = outputs[: counts["results"]], outputs[counts["results"] :]
        cotangents, gradients = rest[: counts["cotangents"]], rest[counts["cotangents"] :]
        inputs = module.graph.find_nodes(op="placeholder")
        first = {node for node in _before(results) if node.op != "get_attr"}  # both parts have the constants
        gradients = _apart(module.graph, gradients, {*first, *inputs, *cotangents})
        nodes = list(module.graph.nodes)
        second = _before(gradients, {*first, *inputs, *cotangents})
        kept = [node for node in nodes if (node in first or node in inputs) and second.intersection(node.users)]
        self.kept_tensors = [isinstance(fake_of(node), Tensor) for node in kept]
        before = first.union(node for node in nodes if node.op == "get_attr")
        self.forward = GraphProgram(module, inputs, [node for node in nodes if node in before], [*results, *kept])
        self.backward = GraphProgram(
            module, [*kept, *cotangents], [node for node in nodes if node in second], gradients
        )
        self.count = len(results)
        names = {
            str(size): name
            for node, named in zip(inputs, self.axes, strict=True)
            for size, name in zip(fake_of(node).shape, named, strict=False)
            if name is not None
        }
        #: Of each result, the names of its free sizes.
        self.result_axes = [tuple(names.get(str(size)) for size in fake_of(node).shape) for node in results]

    def __call__(self, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """The results, which autograd can differentiate once."""
        if self.numbers and torch.is_grad_enabled():
            wanted = [operands[number] for number in self.numbers]
            results: Sequence[Tensor] = _DerivableCall.apply(self, operands, *wanted)
            return results
        return self.forward(operands)[: self.count]


def _outputs(graph: fx.Graph) -> list[fx.Node]:
    return list(next(iter(reversed(graph.nodes))).args[0])


def _before(ends: Sequence[fx.Node], known: Set[fx.Node] = frozenset()) -> set[fx.Node]:
    """The nodes that some nodes depend on, and these, but for known ones."""
    before, stack = set[fx.Node](), list(ends)
    while stack:
        if (node := stack.pop()) not in before and node not in known:
            before.add(node)
            stack += node.all_input_nodes
    return before


def check_once() -> None:
    """Raise ConfigError in a backward pass that is to be differentiated."""
    if torch.is_grad_enabled():
        raise ConfigError(
            "a compiled call must be differentiated once, got a second derivative (create_graph=True). Switch "
            "compiling off before: potential.compile(False)."
        )


def _apart(graph: fx.Graph, gradients: Sequence[fx.Node], known: Set[fx.Node]) -> list[fx.Node]:
    """The gradients, copied where they share memory: ``weight.grad`` takes their memory, and adds to it later."""
    taken, apart = set[fx.Node](), list[fx.Node]()
    end = next(node for node in reversed(graph.nodes) if node.op == "output")
    for node in gradients:
        owner = owner_of(node)
        if owner in known or owner in taken or owner.op == "get_attr":
            with graph.inserting_before(end):
                copy = graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta, node = node.meta, copy
        taken.add(owner)
        apart.append(node)
    return apart


class _DerivableCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, traced: Derivable, operands: Sequence[Tensor], *wanted: Tensor) -> Any:
        values = traced.forward(operands)
        results, kept = tuple(values[: traced.count]), values[traced.count :]
        ctx.traced = traced
        ctx.save_for_backward(*[one for one, is_tensor in zip(kept, traced.kept_tensors, strict=True) if is_tensor])
        ctx.sizes = [one for one, is_tensor in zip(kept, traced.kept_tensors, strict=True) if not is_tensor]
        ctx.mark_non_differentiable(*[one for one, moves in zip(results, traced.moving, strict=True) if not moves])
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        traced: Derivable = ctx.traced
        check_once()
        tensors, sizes = iter(ctx.saved_tensors), iter(ctx.sizes)
        kept = [next(tensors if is_tensor else sizes) for is_tensor in traced.kept_tensors]
        moving = [one for one, moves in zip(cotangents, traced.moving, strict=True) if moves]
        return None, None, *traced.backward([*kept, *moving])


class GraphProgram:
    """Nodes of a graph in their order, as a function from values of ``inputs`` to values of ``outputs``.

    ``module`` has the constants of the graph. Autograd and the dispatcher see the operators of torch alone: kernels of
    forms are found when the program is built.
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
