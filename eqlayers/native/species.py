"""Tables of values that depend on the species of atoms alone, which a program looks up and does not compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..core.traces.trace import fake_of

#: Atomic numbers that a program reads are below this number.
NUMBERS = 120
#: Operators that look up rows.
LOOKS_UP = ("aten.index.Tensor", "aten.embedding.default", "aten.index_select.default")


def look_up_species(module: fx.GraphModule, species: tuple[int, ...]) -> None:
    """Replace the rows of atoms that depend on their species alone by rows of a table, one for each species.

    A node is replaced if its rows are the same for other numbers of atoms in another order, and for one atom of each
    species alone, which is tried.
    """
    graph = module.graph
    z = next(node for node in graph.nodes if node.op == "placeholder")
    numbers = torch.tensor(species)
    count = len(species)
    orders = [torch.arange(count), torch.arange(2 * count + 1).flip(0) % count, *torch.arange(count)[:, None]]
    values = [_values(module, z, numbers[order]) for order in orders]
    alone = values[0].keys()
    known = _constant(graph, module, "species", _positions(species))
    with graph.inserting_after(known):
        index = graph.call_function(torch.ops.aten.index.Tensor, (known, [z]))
    index.meta = {"val": fake_of(z)}
    after: fx.Node | None = None
    for node in [one for one in graph.nodes if one in alone and one.op == "call_function"]:
        table = values[0][node]
        tried = (_is_row_by_row(table, one[node], order) for one, order in zip(values, orders, strict=True))
        if all(user in alone for user in node.users) or not all(tried):
            continue
        if str(node.target) in LOOKS_UP and node.args[0].op == "get_attr":
            continue
        place = _constant(graph, module, f"by_species_{len(dict(module.named_buffers()))}", table.contiguous())
        with graph.inserting_after(index if after is None else after):
            rows = after = graph.call_function(torch.ops.aten.index_select.default, (place, 0, index))
        rows.meta = node.meta
        node.replace_all_uses_with(rows, lambda user: user not in alone)
    graph.eliminate_dead_code()
    module.recompile()


def _values(module: fx.GraphModule, z: fx.Node, numbers: Tensor) -> dict[fx.Node, Any]:
    """Values of the nodes that depend on atomic numbers alone, for these numbers."""
    values: dict[fx.Node, Any] = {z: numbers}
    constants = {node: getattr(module, node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for node in module.graph.nodes:
        inputs = node.all_input_nodes
        if node.op != "call_function" or not any(one in values for one in inputs):
            continue
        if all(one in values or one in constants for one in inputs):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: (values | constants)[one])
            values[node] = node.target(*args, **kwargs)
    return values


def _is_row_by_row(table: Any, other: Any, order: Tensor) -> bool:
    """Whether the rows of another value are the rows of a table, but for rounding."""
    if not isinstance(table, Tensor) or not table.is_floating_point() or table.ndim < 2 or not table.numel():
        return False
    if len(table) <= int(order.max()) or other.shape != (len(order), *table.shape[1:]):
        return False
    rounding = 100 * torch.finfo(table.dtype).eps * table.abs().max()
    return bool((other - table[order]).abs().max() <= rounding)


def _positions(species: tuple[int, ...]) -> Tensor:
    """The position of each atomic number among the species."""
    positions = torch.zeros(NUMBERS, dtype=torch.int64)
    positions[list(species)] = torch.arange(len(species))
    return positions


def _constant(graph: fx.Graph, module: fx.GraphModule, name: str, value: Tensor) -> fx.Node:
    """A node of a constant, right after the inputs."""
    module.register_buffer(name, value, persistent=False)
    with graph.inserting_after([node for node in graph.nodes if node.op == "placeholder"][-1]):
        return graph.get_attr(name)
