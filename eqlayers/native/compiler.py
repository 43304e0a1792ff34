"""Turns the graph of a potential into steps: formulas of elements, products of matrices, forms, and sorts of edges."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ..core.traces.trace import fake_of
from .elements import FORMULAS
from .memory import INPUTS, OUTPUTS, NotCompiled
from .operators import Operators
from .rows import kind_of
from .sizes import Size, Symbols
from .values import View

#: Operators whose result has the numbers of their operand.
SAME = ("clone", "detach", "alias", "contiguous", "lift_fresh_copy")
#: Operators whose result has numbers of atoms if their first operand has.
MOVES = (
    *SAME,
    *("view", "expand", "unsqueeze", "squeeze", "select", "slice", "unbind", "stack", "t", "transpose", "index_select"),
)
#: Operators whose index has numbers of atoms.
READS_ROWS = ("index", "embedding", "gather", "index_add", "index_put", "scatter_add", "scatter_reduce")
#: Operators that read no numbers of their operand, or sort by them.
SIZES = (
    "sym_size",
    "sym_numel",
    "edge_tables",
    "place_tables",
    "new_zeros",
    "new_ones",
    "new_full",
    "zeros_like",
    "ones_like",
)


class Compiler(Operators):
    """The steps of a graph, in their order.

    Args:
        module: Has inputs ``z [A]``, ``vectors [E, 3]``, ``edge_index [2, E]`` and ``factors [A]``, and all constants.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        placeholders = module.graph.find_nodes(op="placeholder")
        z, vectors, *_ = (fake_of(node) for node in placeholders)
        super().__init__(Symbols(z.shape[0], vectors.shape[0]))
        self.dtype = vectors.dtype
        self.values: dict[fx.Node, Any] = {}
        self.inputs = [self._outside(node, name) for node, name in zip(placeholders, INPUTS, strict=True)]
        self.values |= zip(placeholders, self.inputs, strict=True)
        self.numbers = {placeholders[2]}  # nodes that have numbers of atoms or edges
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self.values[node] = getattr(module, node.target).detach()
            elif node.op == "call_function":
                self.node = node
                self._follow_numbers(node)
                try:
                    self.values[node] = self._call(node)
                except NotCompiled:
                    raise
                except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError) as error:
                    raise self.refuse(f"{error}" or type(error).__name__) from error
            elif node.op == "output":
                self.node, ends = node, node.args[0]
                self.outputs = [self._output(one, name) for one, name in zip(ends, OUTPUTS, strict=True)]

    def _outside(self, node: fx.Node, name: str) -> View:
        view = self.new(self.shape_of(node), fake_of(node).dtype)
        view.buffer.name, view.buffer.outside = name, True
        return view

    def _output(self, node: fx.Node, name: str) -> View:
        view = self._outside(node, name)
        self.fill(view, self.values[node])
        return view

    @classmethod
    def knows(cls, name: str) -> bool:
        """Whether programs have an operator of torch; others become operators that torch computes them by."""
        kind = name.removesuffix("_")
        return kind in SAME or kind in FORMULAS or hasattr(cls, f"_op_{kind}")

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> Any:
        args: Any = fx.map_arg(node.args, self.values.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, self.values.__getitem__)
        fake = node.meta.get("val")
        if node.target is operator.getitem:
            return args[0][args[1]]
        if fake is not None and not isinstance(fake, (Tensor, list, tuple)):
            return Size(self.size(fake))
        name = str(node.target)
        if name == "eqlayers.form.default":
            return self.form(node, *args)
        if name in ("eqlayers.edge_tables.default", "eqlayers.place_tables.default"):
            return self.sort(name.split(".")[1], *args)
        kind = kind_of(node)
        make: Callable[..., Any] | None = getattr(self, f"_op_{kind}", None) if kind else None
        if make is not None:
            return make(node, *args, **kwargs)
        if kind in SAME:
            return args[0]
        return self._elements(node, kind, args, kwargs)

    def _follow_numbers(self, node: fx.Node) -> None:
        """Note that an operator computes with numbers of atoms or edges, which are others in a part of a structure."""
        kind, args = str(node.target).partition(".")[2].partition(".")[0].removesuffix("_"), node.args
        known = self.numbers.intersection(node.all_input_nodes)
        if kind == "arange" and node.all_input_nodes:
            self.numbers.add(node)
        elif not known or kind in SIZES:
            return
        elif (
            node.target is operator.getitem
            or kind in MOVES
            or (kind == "_to_copy" and fake_of(node).dtype is torch.int64)
        ):
            if kind != "index_select" or args[0] in known:
                self.numbers.add(node)
        elif kind == "eq" and all(self.end_at(one) in ("src", "dst") for one in args) and _counts_at_zero(node):
            return
        elif kind not in READS_ROWS or known.intersection((args[0], *args[2 if kind == "index_put" else 3 : 4])):
            self.undivide("it computes with the numbers of atoms or edges")


def _counts_at_zero(node: fx.Node) -> bool:
    """Whether a comparison of the ends of edges counts only where lengths are 0: there, no sender is an image."""
    users = [user for one in node.users for user in _readers(one)]
    return all(str(one.target) == "aten.where.self" and one.args[0] is node for one in node.users) and all(
        str(user.target) == "aten.where.self"
        and user.args[1] is one
        and str(getattr(user.args[0], "target", "")) == "aten.eq.Scalar"
        and user.args[0].args[1] == 0  # type: ignore[union-attr]
        for one, user in users
    )


def _readers(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """The users of a node, each with the node that it reads: this one, or a copy in another dtype."""
    pairs = [_readers(user) if "_to_copy" in str(user.target) else [(node, user)] for user in node.users]
    return [pair for one in pairs for pair in one]
