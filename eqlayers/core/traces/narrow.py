"""Computes in float32 what is rounded to float32 in the end: the gradients of networks that run in float64."""

from __future__ import annotations

import operator
from collections.abc import Set

import torch
from torch import Tensor, fx

from .trace import fake_of, is_operator

#: Operators of which gradients of layers consist, and which take any dtype.
LINEAR = ("aten.mm.default", "aten.t.default", "eqlayers.form.default")


def narrow(graph: fx.Graph, exact: Set[fx.Node]) -> None:
    """Let nodes in float64 have float32, if all that depends on them is float32; but not ``exact`` ones."""
    narrowed = set[fx.Node]()
    for node in reversed(graph.nodes):
        usual = node.target is operator.getitem or any(is_operator(node, name) for name in LINEAR)
        users = all(user in narrowed or _rounds(user) for user in node.users)
        if usual and node not in exact and users and _dtype(node) is torch.float64:
            narrowed.add(node)
    rounding = next((node for node in graph.nodes if _rounds(node) and node.args[0] in narrowed), None)
    rounded = dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node in narrowed and rounding is not None:
            for one in node.all_input_nodes:
                if one not in narrowed and _dtype(one) is torch.float64:
                    if one not in rounded:
                        with graph.inserting_before(node):
                            rounded[one] = _float32(one, rounding)
                    node.replace_input_with(one, rounded[one])
            values = node.meta["val"]
            node.meta = {**node.meta, "val": [v.float() for v in values] if isinstance(values, list) else values.float()}
        elif _rounds(node) and node.args[0] in narrowed:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            graph.erase_node(node)


def _float32(node: fx.Node, rounding: fx.Node) -> fx.Node:
    """A node in float32: what it was copied from, or a copy by the operator of another one."""
    source = node.args[0] if is_operator(node, "aten._to_copy.default") else None
    if isinstance(source, fx.Node) and _dtype(source) is torch.float32:
        return source
    copy = node.graph.create_node("call_function", rounding.target, (node,), dict(rounding.kwargs))
    copy.meta = {**node.meta, "val": fake_of(node).float()}
    return copy


def _dtype(node: fx.Node) -> torch.dtype | None:
    """The dtype of a node's tensor, or of all its tensors."""
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    dtypes = {one.dtype if isinstance(one, Tensor) else None for one in values}
    return dtypes.pop() if len(dtypes) == 1 else None


def _rounds(node: fx.Node) -> bool:
    """Whether a node is a copy in float32 of a tensor of the same device in float64."""
    if not is_operator(node, "aten._to_copy.default") or _dtype(node) is not torch.float32:
        return False
    before = fake_of(node.args[0])  # type: ignore[arg-type]
    return before.dtype is torch.float64 and before.device == fake_of(node).device
