"""Edges in the order of their receivers and of their senders, cut into pieces that fill a GPU.

One program walks one piece: the edges of a node, or a run of them where a node has many. So one molecule, and one node
with most of the edges, both make enough programs. Built without a look at the values: no stream waits, and graphs of
CUDA can hold it. Torch's operators define the tables; on GPUs :mod:`.sorting` makes them in a tenth of the launches.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from .. import availability

#: Edges of a piece that a node's edges are cut into, at least about: its partial sum should be worth its traffic.
LEAST = 8
#: Pieces that edges are cut into at most, beside one for every node; the same however many programs a card runs.
PIECES = 1024


class TraversalTables(NamedTuple):
    """The pieces of one walk; all ``int64``."""

    nodes: Tensor  # ``[V]`` node of every piece
    first: Tensor  # ``[V]`` its edges, as places in ``edges``
    stop: Tensor
    #: ``[V]`` row that it writes: the node's if it has one piece, else, counted on from the nodes' number, one of
    #: the room; -1 for pieces that are none, which write nothing.
    places: Tensor
    edges: Tensor  # ``[E]`` numbers of the edges in the order of their nodes, and the nodes at their other ends
    others: Tensor
    room: Tensor  # ``[nodes + 1]`` where the rows of each node's pieces begin; equal to the next for nodes of one piece
    #: ``[E]`` where weights are read from a table: of the walk by its intervals the receivers, in the order of
    #: ``edges``; of others the interval of each edge, by its number.
    ends: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.room.shape[0] - 1

    @property
    def spare(self) -> int:
        """Rows of the room for pieces."""
        return max(1, 2 * _most(self.edges.shape[0]))


def _longest(count: int) -> int:
    each = -(-count // PIECES)
    # of sizes that are symbols max() would look at the number; of numbers it takes a tenth of the time
    return max(LEAST, each) if isinstance(each, int) else torch.sym_max(LEAST, each)


def _most(count: int) -> int:
    """Pieces beside one per node."""
    return count // _longest(count)


def _lengths(count: int, nodes: int) -> list[int]:
    pieces = nodes + _most(count)
    return [pieces] * 4 + [count] * 2 + [nodes + 1]


def length(count: int, num_src: int, num_dst: int) -> int:
    """Elements of the packed tables of a graph."""
    return sum(_lengths(count, num_dst)) + sum(_lengths(count, num_src))


def unpack(
    packed: Tensor, count: int, num_src: int, num_dst: int, intervals: int | None = None
) -> dict[str, TraversalTables]:
    """The tables of a graph by walk, as views; with the tables of so many intervals behind them, if there are any."""
    own = [] if intervals is None else [*_lengths(count, intervals), count, count]
    parts = packed.split([*_lengths(count, num_dst), *_lengths(count, num_src), *own])
    views = {"by_dst": TraversalTables(*parts[:7]), "by_src": TraversalTables(*parts[7:14])}
    if intervals is None:
        return views
    views = {walk: table._replace(ends=parts[-1]) for walk, table in views.items()}
    return {**views, "by_place": TraversalTables(*parts[14:-1])}


def pack(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """Sort ``[2, E]`` edges (src, dst) by receiver and by sender, unchecked; see :func:`unpack`."""
    edge_index = edge_index.to(torch.int64)
    src, dst = edge_index.unbind(0)
    if _launches(edge_index):
        return _by_kernels([dst, src], edge_index, [num_dst, num_src])
    return torch.cat([*_sorted(dst, src, num_dst)[:7], *_sorted(src, dst, num_src)[:7]])


def interval_length(count: int, intervals: int) -> int:
    """Elements of the packed tables of the knot intervals in which edges lie."""
    return sum(_lengths(count, intervals)) + 2 * count


def pack_intervals(edge_index: Tensor, interval: Tensor, intervals: int) -> Tensor:
    """Sort ``[2, E]`` edges (src, dst) by their ``[E]`` intervals, to stand behind the tables of the graph."""
    src, dst = edge_index.to(torch.int64).unbind(0)
    interval = interval.to(torch.int64)
    if _launches(edge_index):
        packed = _by_kernels([interval], src[None], [intervals])
        return torch.cat([packed, dst[packed.split(_lengths(src.shape[0], intervals))[4]], interval])
    tables = _sorted(interval, src, intervals)
    return torch.cat([*tables[:7], dst[tables.edges], interval])


def _launches(edge_index: Tensor) -> bool:
    """Whether kernels make the tables: on a GPU where Triton runs. In the interpreter torch's operators are faster."""
    return edge_index.device.type == "cuda" and availability.why_not() is None and not availability.interpreted()


def _by_kernels(keys: list[Tensor], ends: Tensor, nodes: list[int]) -> Tensor:
    """The packed tables of walks by their keys ``[E]``; ends ``[walks, E]``."""
    from .sorting import sorted_tables

    count = ends.shape[1]
    keys, ends = [key.contiguous() for key in keys], ends.contiguous()
    with torch.cuda.device(ends.device) if ends.is_cuda else nullcontext():
        lengths = [sum(_lengths(count, number)) for number in nodes]
        return sorted_tables(keys, ends, nodes, _longest(count), _most(count), lengths)


def _sorted(key: Tensor, other: Tensor, num_nodes: int) -> TraversalTables:
    count, longest = key.shape[0], _longest(key.shape[0])

    def numbers(stop: int) -> Tensor:
        return torch.arange(stop, dtype=torch.int64, device=key.device)

    keys, edges = torch.sort(key, stable=True)
    ptr = torch.searchsorted(keys, numbers(num_nodes + 1))
    counts = ptr.diff()
    pieces = ((2 * counts + longest) // (2 * longest)).clamp(min=1)  # rounded, so that hardly any is much shorter
    zero = ptr.new_zeros(1)
    begin = torch.cat([zero, pieces.cumsum(0)])
    room = torch.cat([zero, torch.where(pieces > 1, pieces, 0).cumsum(0)])
    number = numbers(num_nodes + _most(count))
    nodes = torch.searchsorted(begin, number, right=True) - 1
    real = nodes < num_nodes
    nodes = nodes.clamp(max=max(num_nodes - 1, 0))
    if num_nodes == 0:  # and so no edge that exists
        none = torch.zeros_like(number)
        return TraversalTables(none, none, none, none - 1, edges, other[edges], room)
    step = number - begin[nodes]
    first, stop = (ptr[nodes] + counts[nodes] * place // pieces[nodes] for place in (step, step + 1))
    places = torch.where(pieces[nodes] > 1, num_nodes + room[nodes] + step, nodes)
    return TraversalTables(
        nodes,
        torch.where(real, first, 0),
        torch.where(real, stop, 0),
        torch.where(real, places, -1),
        edges,
        other[edges],
        room,
    )
