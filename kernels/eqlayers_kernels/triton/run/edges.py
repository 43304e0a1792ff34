"""Edges sorted by receiver and by sender, divided into parts that fill a GPU.

One program processes one part: the edges of a node, or some of them if a node has many (a split node). One molecule,
and one node with most of the edges, both give enough programs. The tables are made without reading values on the host,
so no stream waits and CUDA graphs can contain it. On GPUs one sort, one sum and three kernels make them: torch's
operators take a hundred launches, more time than a small network.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from .. import availability

#: About the least number of edges in a part of a split node, so that its partial sum is worth its traffic.
LEAST = 8
#: Most parts of all edges, beside one for every node; the same for every card.
MOST_PARTS = 1024
#: Elements of one program of the kernels that make tables.
BLOCK = 256
#: Options of these kernels. Releases of Triton differ in the default of the second, and 3.9 warns where it is not said.
OPTIONS = {"BLOCK": BLOCK, "enable_fp_fusion": True}


class TraversalTables(NamedTuple):
    """The sorted edges of one traversal, divided into V parts; all tensors are ``int64``."""

    nodes: Tensor  # ``[V]`` node of every part
    first: Tensor  # ``[V]`` its edges, as indices of ``edges``
    stop: Tensor
    #: ``[V]`` row that it writes: the node if it has one part, else the number of nodes plus a row of the workspace;
    #: -1 for unused parts.
    targets: Tensor
    edges: Tensor  # ``[E]`` numbers of the edges in the order of their nodes, then the other node of each
    others: Tensor
    workspace_ptr: Tensor  # ``[nodes + 1]`` first workspace row of each node; nodes of one part have none
    #: ``[E]`` if weights are interpolated in a table: in the traversal by interval the receivers, in the order of
    #: ``edges``; in others the interval of each edge, by its number.
    endpoints: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.workspace_ptr.shape[0] - 1

    def in_order(self) -> Tensor:
        """``[E]`` the other node of each edge, by the number of the edge."""
        return torch.empty_like(self.edges).scatter_(0, self.edges, self.others)

    @property
    def workspace_rows(self) -> int:
        """Workspace rows for partial sums of split nodes."""
        return max(1, 2 * _most(self.edges.shape[0]))


def _longest(count: int) -> int:
    each = -(-count // MOST_PARTS)
    # max() would fix symbolic sizes; for numbers it takes a tenth of the time
    return max(LEAST, each) if isinstance(each, int) else torch.sym_max(LEAST, each)


def _most(count: int) -> int:
    """Most parts of split nodes, for ``count`` edges, beside the one part that every node has."""
    return count // _longest(count)


def _lengths(count: int, nodes: int) -> list[int]:
    parts = nodes + _most(count)
    return [parts] * 4 + [count] * 2 + [nodes + 1]


def length(count: int, num_src: int, num_dst: int) -> int:
    """Number of elements of the packed tables of a graph."""
    return sum(_lengths(count, num_dst)) + sum(_lengths(count, num_src))


def unpack(
    packed: Tensor, count: int, num_src: int, num_dst: int, intervals: int | None = None
) -> dict[str, TraversalTables]:
    """The tables of a graph by traversal, as views; with tables of ``intervals`` intervals if they are appended."""
    interval_lengths = [] if intervals is None else [*_lengths(count, intervals), count, count]
    parts = packed.split([*_lengths(count, num_dst), *_lengths(count, num_src), *interval_lengths])
    views = {"by_dst": TraversalTables(*parts[:7]), "by_src": TraversalTables(*parts[7:14])}
    if intervals is None:
        return views
    views = {traversal: table._replace(endpoints=parts[-1]) for traversal, table in views.items()}
    return {**views, "by_place": TraversalTables(*parts[14:-1])}


def pack(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """Sort ``[2, E]`` edges (src, dst) by receiver and by sender into one tensor, unchecked; see :func:`unpack`."""
    edge_index = edge_index.to(torch.int64)
    src, dst = edge_index.unbind(0)
    if _launches(edge_index):
        return _by_kernels([dst, src], edge_index, [num_dst, num_src])
    return torch.cat([*_sorted(dst, src, num_dst)[:7], *_sorted(src, dst, num_src)[:7]])


def interval_length(count: int, intervals: int) -> int:
    """Number of elements of the packed tables of edges sorted by knot interval."""
    return sum(_lengths(count, intervals)) + 2 * count


def pack_intervals(edge_index: Tensor, interval: Tensor, intervals: int) -> Tensor:
    """Sort ``[2, E]`` edges (src, dst) by their ``[E]`` knot intervals, to append to the tables of the graph."""
    src, dst = edge_index.to(torch.int64).unbind(0)
    interval = interval.to(torch.int64)
    if _launches(edge_index):
        packed = _by_kernels([interval], src[None], [intervals])
        return torch.cat([packed, dst[packed.split(_lengths(src.shape[0], intervals))[4]], interval])
    tables = _sorted(interval, src, intervals)
    return torch.cat([*tables[:7], dst[tables.edges], interval])


def _launches(edge_index: Tensor) -> bool:
    """Whether Triton kernels make the tables: on GPUs where Triton runs; in its interpreter torch is faster."""
    return edge_index.device.type == "cuda" and availability.why_not() is None and not availability.interpreted()


def _by_kernels(keys: list[Tensor], endpoints: Tensor, nodes: list[int]) -> Tensor:
    """The packed tables of one or two traversals, made by Triton kernels.

    ``keys`` has for each traversal the node ``[E]`` of every edge, ``endpoints [traversals, E]`` the other node;
    ``nodes`` are the numbers of nodes.
    """
    from .. import kernels

    keys, endpoints = [key.contiguous() for key in keys], endpoints.contiguous()
    traversals, count = endpoints.shape
    lengths, longest, most = [sum(_lengths(count, number)) for number in nodes], _longest(count), _most(count)
    first, second = (nodes[0], nodes[1]) if traversals == 2 else (nodes[0], 0)
    total, packed = traversals * count, endpoints.new_empty(sum(lengths))
    narrow = first + second < 2**31 - 8  # half the passes of the sort
    unsorted = endpoints.new_empty(total, dtype=torch.int32 if narrow else torch.int64)
    with torch.cuda.device(endpoints.device) if endpoints.is_cuda else nullcontext():
        if count:
            nodes_of = keys[0], keys[-1], count, first, second
            kernels.write_keys[-(-count // BLOCK), traversals](unsorted, *nodes_of, **OPTIONS)
        in_order, order = unsorted.sort(stable=True)
        begins, parts = endpoints.new_empty(first + second + 2), endpoints.new_empty(2 * (first + second))
        cut = total, count, longest, first, second, total.bit_length()
        kernels.count_parts[(-(-(first + second + 2) // BLOCK),)](in_order, begins, parts, *cut, **OPTIONS)
        sums, steps = parts.cumsum(0), max(first, second).bit_length()
        blocks = -(-max(max(nodes) + max(most, 1), count) // BLOCK)
        sizes = count, most, first, second, steps, lengths[0]
        kernels.write_tables[blocks, traversals](packed, order, endpoints, begins, sums, *sizes, **OPTIONS)
    return packed


def _sorted(key: Tensor, other: Tensor, num_nodes: int) -> TraversalTables:
    count, longest = key.shape[0], _longest(key.shape[0])

    def numbers(stop: int) -> Tensor:
        return torch.arange(stop, dtype=torch.int64, device=key.device)

    keys, edges = torch.sort(key, stable=True)
    ptr = torch.searchsorted(keys, numbers(num_nodes + 1))
    counts = ptr.diff()
    parts = ((2 * counts + longest) // (2 * longest)).clamp(min=1)  # rounded, so that parts have about equal lengths
    zero = ptr.new_zeros(1)
    begin = torch.cat([zero, parts.cumsum(0)])
    workspace_ptr = torch.cat([zero, torch.where(parts > 1, parts, 0).cumsum(0)])
    number = numbers(num_nodes + _most(count))
    nodes = torch.searchsorted(begin, number, right=True) - 1
    exists = nodes < num_nodes
    nodes = nodes.clamp(max=max(num_nodes - 1, 0))
    if num_nodes == 0:  # no nodes and no edges
        none = torch.zeros_like(number)
        return TraversalTables(none, none, none, none - 1, edges, other[edges], workspace_ptr)
    step = number - begin[nodes]
    first, stop = (ptr[nodes] + counts[nodes] * bound // parts[nodes] for bound in (step, step + 1))
    targets = torch.where(parts[nodes] > 1, num_nodes + workspace_ptr[nodes] + step, nodes)
    first, stop, targets = (torch.where(exists, t, none) for t, none in ((first, 0), (stop, 0), (targets, -1)))
    return TraversalTables(nodes, first, stop, targets, edges, other[edges], workspace_ptr)
