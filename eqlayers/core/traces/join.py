"""Joins derivatives in graphs: gradients of a form and of its gradients that are added are computed by one form.

A training on forces differentiates a form F of operands o twice: the gradient of its gradients g along tangents t is
dg(o; t), and the gradient along the cotangent of its results is g too. Both are added, and together they are
the derivative of g along the tangents and the cotangent: one kernel in place of two and of sums.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import compress
from typing import Any

from torch import fx

from ..forms.description import describe
from .trace import fake_of, is_operator


class _Call:
    """A call of a form, whose last steps are gradients, and steps of its key."""

    def __init__(self, node: fx.Node) -> None:
        self.node, self.key = node, str(node.args[5]).split("/")

    @property
    def operands(self) -> list[fx.Node]:
        """The operands, which change while the graph does."""
        return list(self.node.args[0])  # type: ignore[arg-type]

    def identity(self, depth: int) -> Any:
        """The form whose gradient of this depth a call is, with operands and sizes; None if it is no such gradient."""
        if any(step[0] != "g" for step in self.key[-depth:]):
            return None
        base = "/".join(self.key[:-depth])
        count = len(describe(base).form.operands)
        return base, self.asks(depth)[0], tuple(self.operands[:count]), str(self.node.args[1:5] + self.node.args[6:])

    def asks(self, depth: int) -> tuple[str, list[bool]]:
        """Which results have a cotangent, and of which operands there are gradients, in a step from the last one."""
        has, _, requested = self.key[-depth][1:].partition(":")
        return has, [flag == "1" for flag in requested]

    def gradients(self) -> dict[int, fx.Node]:
        """The gradients that are used, by the numbers of operands."""
        numbers = list(compress(range(len(self.operands)), self.asks(1)[1]))
        return {numbers[int(user.args[1])]: user for user in self.node.users if user.users}  # type: ignore[call-overload]


def join_derivatives(graph: fx.Graph) -> None:
    """Replace pairs of forms, the gradient of a form and the gradient of its gradients, if their results are added."""
    calls = [_Call(node) for node in graph.nodes if is_operator(node, "eqlayers.form.default")]
    firsts = {one.identity(1): one for one in calls}
    seconds = [(one, firsts.get(identity)) for one in calls if (identity := one.identity(2)) is not None]
    for second, first in seconds:
        if first is not None:
            _join(graph, first, second)
    graph.eliminate_dead_code()


def _join(graph: fx.Graph, first: _Call, second: _Call) -> None:
    """Replace both calls by one, and by one of the gradients that belong to the second alone."""
    count = len(describe("/".join(first.key[:-1])).form.operands)
    mine, theirs = first.gradients(), second.gradients()
    common = [number for number in theirs if number < count]
    order = {node: number for number, node in enumerate(graph.nodes)}
    late = any(order[one] > order[first.node] for one in second.operands)
    if late or not common or any(n not in mine or _sum_of(mine[n]) is not _sum_of(theirs[n]) for n in common):
        return
    has, requested = first.asks(1)
    moving = list(compress(range(count), second.asks(2)[1]))
    along = list(compress(moving, [flag == "1" for flag in second.asks(1)[0]]))
    flags = [*(number in along for number in range(count)), *[True] * has.count("1")]
    numbers = list(compress(range(count), requested))
    with graph.inserting_before(first.node):
        operands = [*second.operands, *first.operands[count:]]
        joined = _called(first.node, operands, [*first.key, f"a{_text(flags)}"])
        _take(joined, {numbers.index(number): one for number, one in mine.items()})
    for number in common:
        total = next(iter(theirs[number].users))
        total.replace_all_uses_with(next(one for one in total.all_input_nodes if one is not theirs[number]))
        graph.erase_node(total)
        graph.erase_node(theirs[number])
    rest = sorted(set(theirs).difference(common))
    if rest:
        wanted = [number in rest for number in range(len(second.operands) - len(along))]
        with graph.inserting_before(second.node):
            key = [*second.key[:-1], f"g{second.asks(1)[0]}:{_text(wanted)}"]
            _take(_called(second.node, second.operands, key), {at: theirs[n] for at, n in enumerate(rest)})


def _text(flags: Sequence[bool]) -> str:
    return "".join("01"[flag] for flag in flags)


def _called(like: fx.Node, operands: list[fx.Node], key: list[str]) -> fx.Node:
    """A call of another form with the same sizes."""
    call = like.graph.call_function(like.target, (operands, *like.args[1:5], "/".join(key), *like.args[6:]))  # type: ignore[arg-type]
    call.meta = dict(like.meta)
    return call


def _take(call: fx.Node, results: dict[int, fx.Node]) -> None:
    """Let results, by their numbers in a call, come from it."""
    for number, result in results.items():
        taken = call.graph.call_function(operator.getitem, (call, number))
        taken.meta = result.meta
        result.replace_all_uses_with(taken)
        call.graph.erase_node(result)


def _sum_of(node: fx.Node) -> fx.Node:
    """The last sum that a node is part of, and nothing else."""
    while len(node.users) == 1:
        user = next(iter(node.users))
        same = is_operator(user, "aten.add.Tensor") and not user.kwargs and len(user.all_input_nodes) == 2
        if not same or any(fake_of(one).shape != fake_of(user).shape for one in user.all_input_nodes):
            break
        node = user
    return node
