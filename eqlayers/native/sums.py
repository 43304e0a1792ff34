"""Rewrites sums of a graph, so that a program keeps less from stage to stage."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from eqlayers_kernels.forms.expression import Expression, Node, is_number
from eqlayers_kernels.forms.formula import Formula, formula

from ..core.forms.description import describe, register_formula
from ..core.traces.simplify import FORM
from ..core.traces.trace import fake_of

#: Operators that are linear in their first operand, and in each of two operands.
LINEAR = ("squeeze", "unsqueeze", "view", "expand", "select", "slice", "t", "_to_copy", "clone", "neg", "div")
BILINEAR = ("mul", "mm")
#: In `Node.meta` of a node whose elements are stored, whatever reads them.
STORED = "stored"
ADD: Any = torch.ops.aten.add.Tensor


# ---- slopes ---------------------------------------------------------------------------------------------------------


def divide_slopes(module: fx.GraphModule) -> None:
    """Replace the slopes by the sum of the slopes that each layer's gradients give.

    These gradients, by harmonics and radial functions, have several times as many numbers as slopes, and would be kept
    until the last stage adds them.
    """
    (output,) = module.graph.find_nodes(op="output")
    energies, slopes = output.args[0]
    total, *rest = _Parts(module).of(slopes).values()
    with module.graph.inserting_before(output):
        for part in rest:
            total.meta = {**total.meta, STORED: True}
            total = module.graph.call_function(ADD, (total, part))
            total.meta = {"val": fake_of(slopes)}
    output.args = ([energies, total],)
    module.graph.eliminate_dead_code()
    module.recompile()


class _Parts:
    """Divides a gradient, which is a linear function of gradients of the graph's products, into one for each of them.

    Args:
        module: Its last input has the factors of energies, in which all gradients are linear.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module, self.known = module, dict[fx.Node, dict[fx.Node, fx.Node]]()
        self.number = {node: number for number, node in enumerate(module.graph.nodes)}
        self.last = list(module.graph.nodes)  # of the nodes that were inserted after each
        self.gradients = set(module.graph.find_nodes(op="placeholder")[-1:])
        for node in self.number:
            if self.gradients.intersection(node.all_input_nodes):
                self.gradients.add(node)

    def of(self, node: fx.Node) -> dict[fx.Node, fx.Node]:
        """The gradients whose sum a node is, by the nodes that they come from, in the order of the graph."""
        if node not in self.known:
            parts = {one: self.of(one) for one in self._linear(node)}
            sources = sorted({source for part in parts.values() for source in part}, key=self.number.__getitem__)
            of = {source: {one: part.get(source) for one, part in parts.items()} for source in sources or [node]}
            self.known[node] = {s: self._part(node, one) if len(sources) > 1 else node for s, one in of.items()}
        return self.known[node]

    def _linear(self, node: fx.Node) -> list[fx.Node]:
        """The gradients among the operands of a node that is linear in them, else none."""
        moving = [one for one in node.all_input_nodes if one in self.gradients]
        kind, args = str(node.target), node.args
        name = kind.split(".")[1] if kind.startswith("aten.") else ""
        if kind == FORM:
            root, _, step = str(args[5]).rpartition("/")
            saved: Any = args[0][: len(describe(root).form.operands)] if step.startswith("g") else args[0]  # type: ignore[index]
            is_linear = describe(str(args[5])).form.family == "formula" and not set(moving).intersection(saved)
        elif name == "add":
            shapes = {str(fake_of(one).shape) for one in (node, *moving)}
            is_linear = len(moving) == 2 and len(shapes) == 1 and not node.kwargs
        elif name == "where":
            others = [one for one in args[1:] if one not in moving]
            is_linear = len(moving) == len(others) == 1 and args[0] not in moving and self._is_zero(others[0])
        else:
            is_real = name != "" and fake_of(node).dtype.is_floating_point
            is_plain = kind != "aten.view.dtype" and "rounding_mode" not in node.kwargs and args[0] in moving
            of_one = name in BILINEAR or (name in LINEAR and is_plain)
            is_linear = len(moving) == 1 and (node.target is operator.getitem or (is_real and of_one))
        return moving if is_linear else []

    def _is_zero(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and node.op == "get_attr" and not getattr(self.module, node.target).any()  # type: ignore[arg-type]

    def _part(self, node: fx.Node, parts: dict[fx.Node, fx.Node | None]) -> fx.Node:
        """A node with parts of its operands; None stands for a part that is 0."""
        present = [one for one in parts.values() if one is not None]
        if str(node.target) == str(ADD) and len(present) == 1:
            return present[0]
        args: Any = fx.map_arg(node.args, lambda one: parts.get(one, one))
        if str(node.target) == FORM:
            root, _, step = str(args[5]).rpartition("/")
            has, requested = step[1:].split(":")
            cotangents = iter(args[0][len(describe(root).form.operands) :])
            has = "".join(str(int(one == "1" and next(cotangents) is not None)) for one in has)
            operands = [one for one in args[0] if one is not None]
            args = (operands, *args[1:5], f"{root}/g{has}:{requested}", *args[6:])
        reads = list[fx.Node]()
        fx.map_arg(args, reads.append)
        number = max(self.number[one] for one in reads)
        with self.module.graph.inserting_after(self.last[number]):
            made = self.last[number] = self.module.graph.call_function(node.target, args, node.kwargs)  # type: ignore[arg-type]
        made.meta, self.number[made] = node.meta, number
        return made


# ---- operands of formulas -------------------------------------------------------------------------------------------


def add_operands(module: fx.GraphModule) -> None:
    """Replace two inputs that formulas only add, as a gate does, by one input, their sum."""
    pairs = dict[tuple[fx.Node, ...], list[fx.Node]]()
    for node in module.graph.nodes:
        if str(node.target) == FORM and (pair := _pair(node)):
            pairs.setdefault(tuple(node.args[0][number] for number in pair[:2]), []).append(node)
    for (first, second), nodes in pairs.items():
        if first.users.keys() | second.users.keys() == set(nodes):
            with module.graph.inserting_before(nodes[0]):
                total = module.graph.call_function(ADD, (first, second))
            total.meta = {"val": fake_of(first)}
            for node in nodes:
                _read_sum(module.graph, node, total)
    module.graph.eliminate_dead_code()
    module.recompile()


def _pair(node: fx.Node) -> tuple[int, int, Formula] | None:
    """The indices of two inputs that a formula only adds, and the formula that takes their sum as one input."""
    key = str(node.args[5])
    root, _, step = key.rpartition("/")
    base: Any = describe(root if step.startswith("g") else key).form
    return _added(base) if base.family == "formula" else None


@lru_cache(maxsize=64)
def _added(base: Formula) -> tuple[int, int, Formula] | None:
    """See `_pair`: each component of both operands must be read once, where both are added."""
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(base.nodes):
        for arg in () if is_number(node) else node.args:
            readers.setdefault(arg, []).append(number)
    written = {node for outputs in base.outputs for node in outputs}
    loads = {node.args: number for number, node in enumerate(base.nodes) if node.op == "load"}
    for first, one in enumerate(base.operands):
        for second, other in enumerate(base.operands):
            columns = [(loads.get((first, c)), loads.get((second, c))) for c in range(one.components)]
            sums = [readers.get(a, []) if a is not None else [] for a, _ in columns]
            if (
                second > first
                and one[1:] == other[1:]
                and all(
                    len(adds) == 1
                    and {a, b}.isdisjoint(written)
                    and readers.get(b) == adds  # type: ignore[arg-type]
                    and base.nodes[adds[0]] == Node("add", (a, b))
                    for (a, b), adds in zip(columns, sums, strict=True)
                )
            ):
                nodes = [
                    one._replace(args=(one.args[0] - (one.args[0] > second), one.args[1])) if one.op == "load" else one
                    for one in base.nodes
                ]
                for c, adds in enumerate(sums):
                    nodes[adds[0]] = Node("load", (first, c))
                rest = [item for number, item in enumerate(base.operands) if number != second]
                made = formula(Expression(nodes), rest, base.results, base.outputs, base.channels)
                return first, second, register_formula(made)
    return None


def _read_sum(graph: fx.Graph, node: fx.Node, total: fx.Node) -> None:
    """Replace a form that adds two operands by one that reads their sum."""
    first, second, base = _pair(node) or (0, 0, None)
    assert base is not None
    operands: Any = [total if n == first else one for n, one in enumerate(node.args[0]) if n != second]  # type: ignore[arg-type]
    step, key, results = str(node.args[5]).rpartition("/")[2], base.key, list(node.meta["val"])
    where = list(range(len(results)))  # the new number of each result
    if step.startswith("g"):
        has, requested = step[1:].split(":")
        flags = [one == "1" for one in requested]
        wanted = [n for n, one in enumerate(flags) if one]
        flags[first] = flags[first] or flags[second]
        kept = [n for n, one in enumerate(flags) if one and n != second]
        where = [kept.index(first if n == second else n) for n in wanted]
        results = [next(r for r, to in zip(results, where, strict=True) if to == n) for n in range(len(kept))]
        key += f"/g{has}:" + "".join(str(int(one)) for n, one in enumerate(flags) if n != second)
    with graph.inserting_before(node):
        made = graph.call_function(node.target, (operands, *node.args[1:5], key, *node.args[6:]), node.kwargs)  # type: ignore[arg-type]
    made.meta = {**node.meta, "val": results}
    for user in list(node.users):
        user.args = (made, where[user.args[1]])  # type: ignore[index]
    graph.erase_node(node)
