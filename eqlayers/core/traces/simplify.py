"""Makes graphs smaller: nodes that compute the same become one; constants are computed; unused ones and checks go."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..torch_internals import always_alike, writes
from .trace import fake_of, is_operator

#: Operators whose result is their operand, without autograd and for constants.
ALIASES = ("detach", "alias", "lift_fresh_copy")
#: Operators whose results depend on the dtype and the device of their operand alone, if sizes are numbers.
FILLED = tuple(f"aten.new_{kind}.default" for kind in ("ones", "zeros", "full", "empty"))
#: Most numbers of constants that become one if their numbers are equal.
SMALL = 64


def simplify(module: fx.GraphModule) -> None:
    """Remove what a program without autograd does not need; the caller checks values before the program runs."""
    graph, written = module.graph, _written(module.graph)
    for node in list(graph.nodes):
        if is_operator(node, "aten._assert_async.msg"):
            graph.erase_node(node)
        elif any(is_operator(node, f"aten.{name}.default") for name in ALIASES) and node not in written:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    _compute_constants(module, written)
    _unite_equal(graph, written)
    graph.eliminate_dead_code()
    module.recompile()


def _compute_constants(module: fx.GraphModule, written: set[fx.Node]) -> None:
    """Replace nodes that depend on constants alone by their values."""
    values, places = dict[fx.Node, Any](), dict[Any, fx.Node]()
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and node not in written:
            values[node] = value = getattr(module, node.target)
            same = value.data_ptr() if value.numel() > SMALL else repr(value.tolist())
            place = same, value.dtype, value.device, value.shape, value.stride()
            if value.numel() and (earlier := places.setdefault(place, node)) is not node:
                node.replace_all_uses_with(earlier)
        inputs = node.all_input_nodes
        made = inputs or is_operator(node, "aten.scalar_tensor.default")
        if node.op != "call_function" or node in written or not (made and always_alike(node.target)):
            continue
        known = values
        filled = str(node.target) in FILLED and ("empty" not in str(node.target) or fake_of(node).shape == (0,))
        if filled and len(inputs) == 1 and not any(user.op == "output" for user in node.users):
            like = fake_of(inputs[0])
            known = {inputs[0]: torch.empty(0, dtype=like.dtype, device=like.device)}
        if all(one in known for one in inputs):
            args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            values[node] = value = node.target(*args, **kwargs)
            if isinstance(value, Tensor):
                name = f"computed_{len(dict(module.named_buffers()))}"  # a graph may have been simplified before
                module.register_buffer(name, value, persistent=False)
                with module.graph.inserting_before(node):
                    constant = module.graph.get_attr(name)
                constant.meta, values[constant] = node.meta, value
                node.replace_all_uses_with(constant)


def _unite_equal(graph: fx.Graph, written: set[fx.Node]) -> None:
    """Replace each node by an earlier one with the same operator and arguments."""
    known = dict[Any, fx.Node]()
    for node in list(graph.nodes):
        if node.op != "call_function" or node in written or not always_alike(node.target):
            continue
        key = node.target, _hashable(node.args), _hashable(node.kwargs)
        if (earlier := known.setdefault(key, node)) is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _written(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose memory an operator changes, and those that have it before: these are no constants."""
    written = set()
    for node in graph.nodes:
        if writes(node.target):
            while isinstance(node, fx.Node) and node not in written:
                written.add(node)
                node = node.args[0] if node.args else None
    return written


def _hashable(value: Any) -> Any:
    """Arguments of a node, with types, as 1 equals 1.0."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(one)) for name, one in value.items())
    return type(value), value
