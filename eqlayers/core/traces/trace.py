"""Traces functions of tensors: graphs of operators that hold for all sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import ConfigError
from ..torch_internals import TraceFailure, fake_operands, graph_of, views, writes

#: Sizes of a trace by name. A size of 0 or 1 would become a constant, and so would one that equals another.
SIZES = {"atoms": 10_007, "edges": 1_000_003, "structures": 1_009}
#: Names of the axes of an operand, None for a fixed size; or None for an operand whose sizes are all fixed.
Axes = tuple[str | None, ...] | None
Function = Callable[..., Sequence[Tensor]]


class Refused(ConfigError):
    """A function cannot be traced."""


def trace(
    function: Function,
    operands: Sequence[Tensor],
    axes: Sequence[Axes],
    what: str,
    simple: Callable[[str], bool] | None = None,
) -> fx.GraphModule:
    """The graph of ``function(*operands)``, which returns tensors; numbers of the operands are not read.

    Python runs once, so its branches become fixed. Operands have the dtypes and devices of later calls; ``axes`` are
    the names of the free sizes of each. Operators of torch that ``simple`` refuses become operators that torch computes
    them by.

    Raises:
        Refused: The function, which is called ``what``, reads numbers of tensors, or fixes a free size; with the line
            that does. Or it changes an operand in place, such as a mean of a training that is kept in a buffer.
    """
    try:
        with torch.inference_mode(False):  # in which nothing could be differentiated
            fakes, mode = fake_operands(operands, axes, SIZES)
            graph, fixed = graph_of(function, fakes, mode, simple)
    except TraceFailure as error:
        raise _refusal(what, "numbers", str(error)) from error
    if fixed:
        raise _refusal(what, "sizes", fixed)
    changing = [node for node in graph.graph.nodes if writes(node.target)]
    if (node := next((one for one in changing if owner_of(one.args[0]).op != "call_function"), None)) is not None:
        raise _refusal(what, "changes", f"{node.target} of a weight, a buffer, an input or a constant")
    if changing:  # no node says that it depends on what another wrote into its memory
        graph, _ = graph_of(torch.func.functionalize(fx.Interpreter(graph).run), fakes, mode, simple)
    return graph


def _refusal(what: str, read: str, detail: str) -> Refused:
    return Refused(
        f"{what} must be traced once for all structures, without {read} of tensors in Python, got {detail}. Write it "
        "with operators of torch, or do not compile."
    )


def owner_of(node: fx.Node) -> fx.Node:
    """The node that made the memory of a node's tensor, of which it may be a view."""
    while node.op == "call_function":
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            break
        item = node.target is operator.getitem and (source.op != "call_function" or views(source.target))
        if not (item or views(node.target)):  # several results of an operator have memory of their own
            break
        node = source
    return node


def is_operator(node: fx.Node, name: str) -> bool:
    """Whether a node calls an operator such as ``eqlayers.form.default``."""
    return node.op == "call_function" and str(node.target) == name


def fake_of(node: fx.Node) -> Any:
    """The value that a node had in the trace: a tensor without numbers, or a size."""
    return node.meta["val"]
