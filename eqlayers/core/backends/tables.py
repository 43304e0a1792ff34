"""Tables of graphs: edges sorted by receivers and by senders, in one tensor, as the kernels of their device read them.

C kernels have one layout, Triton kernels another, in which edges of a node are divided into parts (``triton.run.edges``
in the kernels). Tables of CPU tensors have the layout of C, and are converted for Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache

import torch
from torch import Tensor

from eqlayers_kernels.c.run import edges as c_edges
from eqlayers_kernels.forms.product import Reading
from eqlayers_kernels.triton.run import edges as triton_edges
from eqlayers_kernels.triton.run.edges import TraversalTables

from ..errors import DeviceError, DTypeError, IndexRangeError, ShapeError
from ..forms.request import Sizes
from ..graph import check_edge_index
from .registry import as_backend_error
from .rows import Endpoints

#: The offsets of tables, for calls over one graph.
offsets_of = lru_cache(maxsize=64)(c_edges.graph_offsets)
_TABLES = "the tables that edge_tables(edge_index, num_src, num_dst) makes"
_REMAKE = "Make them anew from the edges of this graph."


# -- making them ------------------------------------------------------------------------------------------------------


def edge_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """The edges ``[2, E]`` sorted by receiver and by sender; ShapeError or DTypeError for other tensors.

    IndexRangeError if an index lies outside its nodes or intervals, which is found on CPU only.
    """
    check_edges(edge_index, num_src, num_dst)
    return sort_edges(edge_index, num_src, num_dst)


def sort_edges(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """`edge_tables` of edges ``[2, E]`` and numbers of nodes that were checked before."""
    if not edge_index.is_cpu:
        return triton_edges.pack(edge_index, num_src, num_dst)
    edges = edge_index.to(torch.int64).contiguous()
    count = edges.shape[1]
    out = torch.empty(offsets_of(count, num_src, num_dst).length, dtype=torch.int64, device="cpu")
    wrong = _loaded("sort_edges")(edges.data_ptr(), count, num_src, num_dst, out.data_ptr())
    if wrong >= 0:
        edge, row = divmod(wrong, 2)
        name, nodes, what = (("src", num_src, "senders"), ("dst", num_dst, "receivers"))[row]
        raise IndexRangeError(
            f"edge_index[{row}] ({name}) must lie in [0, {nodes}), the number of {what}, got "
            f"{int(edges[row, edge])} at edge {edge}. Check that the rows are (src, dst), and pass num_nodes if there "
            f"are more receivers than senders."
        )
    return out


def interval_tables(
    graph: Tensor, edge_index: Tensor, interval: Tensor, num_src: int, num_dst: int, intervals: int
) -> Tensor:
    """The tables of a graph, and behind them the edges sorted by knot interval; errors as of `edge_tables`."""
    check_intervals(graph, edge_index, interval, num_src, num_dst)
    if edge_index.device.type != "cpu":
        return torch.cat([graph, triton_edges.pack_intervals(edge_index, interval, intervals)])
    edges, interval = edge_index.to(torch.int64).contiguous(), interval.contiguous()
    count, behind = edges.shape[1], graph.shape[0]
    out = torch.empty(behind + c_edges.interval_offsets(count, intervals).length, dtype=torch.int64, device="cpu")
    out[:behind] = graph
    addresses = edges.data_ptr(), interval.data_ptr()
    wrong = _loaded("sort_places")(*addresses, count, num_src, intervals, out.data_ptr() + 8 * behind)
    if wrong >= 0:
        raise IndexRangeError(
            f"intervals must lie in [0, {intervals}), the intervals of the table, got {int(interval[wrong])} at edge "
            f"{wrong}. Clamp them."
        )
    return out


@cache
def _loaded(name: str) -> Callable[..., int]:
    """A function of C that sorts edges; BackendError if there is no compiler."""
    with as_backend_error():
        return c_edges.load(name)


# -- lengths and checks ------------------------------------------------------------------------------------------------


def length_of(edges: int, num_src: int, num_dst: int, device: torch.device) -> int:
    """Number of elements of the tables of a graph."""
    if device.type == "cpu":
        return c_edges.graph_offsets(edges, num_src, num_dst).length  # in fakes numbers may be symbols
    return triton_edges.length(edges, num_src, num_dst)


def length_of_intervals(edges: int, intervals: int, device: torch.device) -> int:
    """Number of elements of the interval tables that are appended to the tables of a graph."""
    if device.type == "cpu":
        return c_edges.interval_offsets(edges, intervals).length
    return triton_edges.interval_length(edges, intervals)


def check_graph_tables(graph: Tensor, sizes: Sizes, device: torch.device, behind: int = 0) -> None:
    """Raise unless ``graph`` has the length of tables of a graph of these sizes, plus ``behind`` elements."""
    if graph.dtype is not torch.int64:
        raise DTypeError(f"graph must be {_TABLES}, int64, got {graph.dtype}. Pass them as they are.")
    if graph.device != device:
        raise DeviceError(f"graph must be on the device of x, {device}, got {graph.device}. Make it from edges there.")
    edges, senders, receivers = sizes[:3]
    if graph.ndim != 1 or graph.shape[0] != length_of(edges, senders, receivers, device) + behind:
        raise ShapeError(
            f"graph must be {_TABLES}, here of {edges} rows, {senders} senders and {receivers} receivers, got shape "
            f"{list(graph.shape)}. {_REMAKE}"
        )


def check_edges(edge_index: Tensor, num_src: int, num_dst: int) -> None:
    """Raise ShapeError or DTypeError unless ``edge_index`` is ``[2, E]`` integers and there are 0 nodes or more."""
    check_edge_index(edge_index)
    if num_src < 0 or num_dst < 0:
        raise ShapeError(f"num_src and num_dst must be 0 or more, got {num_src} and {num_dst}. Count the nodes.")


def check_intervals(graph: Tensor, edge_index: Tensor, interval: Tensor, num_src: int, num_dst: int) -> None:
    """Raise unless these are the tables of a graph, its edges, and a knot interval for each of them."""
    check_edges(edge_index, num_src, num_dst)
    count = edge_index.shape[1]
    check_graph_tables(graph, Sizes(count, num_src, num_dst), edge_index.device)
    if interval.shape != (count,):
        raise ShapeError(f"intervals must be [{count}], one for each edge, got {list(interval.shape)}. Look each up.")
    if interval.dtype is not torch.int64:
        raise DTypeError(f"intervals must be int64, got {interval.dtype}. Convert them with `.long()`.")


def not_of_this_graph() -> IndexRangeError:
    """The error of tables that have the right length and belong to another graph."""
    return IndexRangeError(f"graph must hold {_TABLES} of these operands, got other numbers. {_REMAKE}")


# -- reading them -----------------------------------------------------------------------------------------------------


def endpoints_of(graph: Tensor, sizes: Sizes) -> Endpoints:
    """The sender and the receiver of every row; IndexRangeError if the tables do not fit (found on CPU only)."""
    if graph.device.type == "cpu":
        src, dst = _sorted_edges(graph, *sizes[:3])
    else:
        tables = triton_edges.unpack(graph, *sizes[:3])
        src, dst = (tables[traversal].in_order() for traversal in ("by_dst", "by_src"))
    return Endpoints(src, dst, sizes.senders, sizes.receivers)


def by_traversal(graph: Tensor, sizes: Sizes, reading: Reading | None) -> dict[str, TraversalTables]:
    """The tables of a graph as Triton kernels read them, with tables of intervals if weights are interpolated.

    On the CPU they are converted; IndexRangeError if they are not sorted edges.
    """
    edges, senders, receivers, rows = sizes
    intervals = None if reading is None else reading.intervals(rows)
    if graph.device.type == "cpu":
        graph = _packed_anew(graph, edges, senders, receivers, intervals)
    return triton_edges.unpack(graph, edges, senders, receivers, intervals)


def _packed_anew(graph: Tensor, edges: int, senders: int, receivers: int, intervals: int | None) -> Tensor:
    behind = offsets_of(edges, senders, receivers).length
    index = _sorted_edges(graph[:behind], edges, senders, receivers)
    packed = triton_edges.pack(index, senders, receivers)
    if intervals is None:
        return packed
    parts = c_edges.interval_offsets(edges, intervals)
    interval = graph[behind + parts.interval : behind + parts.length]
    with suppress(IndexRangeError):
        if torch.equal(interval_tables(graph[:behind], index, interval, senders, receivers, intervals), graph):
            return torch.cat([packed, triton_edges.pack_intervals(index, interval, intervals)])
    raise not_of_this_graph()


def _sorted_edges(graph: Tensor, edges: int, senders: int, receivers: int) -> Tensor:
    """The edges ``[2, E]`` from tables in the layout of C; IndexRangeError if they are not sorted edges."""
    start, numbers, others = offsets_of(edges, senders, receivers).by_dst
    order, position = graph[numbers : numbers + edges], torch.arange(edges)
    if torch.equal(order.sort().values, position):
        index = graph.new_empty(2, edges)
        index[0, order] = graph[others : others + edges]
        index[1, order] = torch.searchsorted(graph[start + 1 : start + receivers + 1], position, right=True)
        with suppress(IndexRangeError):
            if torch.equal(edge_tables(index, senders, receivers), graph):
                return index
    raise not_of_this_graph()
