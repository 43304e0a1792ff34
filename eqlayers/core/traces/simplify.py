"""Makes graphs smaller: nodes that compute the same become one; unused ones, checks and aliases go."""

from __future__ import annotations

from typing import Any

from torch import fx

from ..torch_internals import always_alike, writes
from .trace import is_operator


def simplify(graph: fx.Graph) -> None:
    """Remove what a program without autograd does not need; the caller checks values before the program runs."""
    for node in list(graph.nodes):
        if is_operator(node, "aten._assert_async.msg"):
            graph.erase_node(node)
        elif is_operator(node, "aten.detach.default") or is_operator(node, "aten.alias.default"):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    _unite_equal(graph)
    graph.eliminate_dead_code()


def _unite_equal(graph: fx.Graph) -> None:
    """Replace each node by an earlier one with the same operator and arguments."""
    changed, known = _written(graph), dict[Any, fx.Node]()
    for node in list(graph.nodes):
        if node.op != "call_function" or node in changed or not always_alike(node.target):
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
