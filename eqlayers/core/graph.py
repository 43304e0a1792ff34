"""Graphs: edges that are sorted once for all convolutions over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from .checks import check_flag, check_floating, check_items, check_tensor, check_type, got, is_integer
from .errors import DTypeError, IndexRangeError, ShapeError
from .forms.request import Sizes
from .torch_internals import (
    assert_later,
    being_traced,
    current_trace,
    is_plain,
    is_traced_size,
    outside_of_func,
    unwrapped,
    wrapped_by_func,
)

T = TypeVar("T")
#: Nodes whose tables can be addressed.
_MOST = 2**48


def check_edge_index(edge_index: Any) -> Tensor:
    """The edges, if they are ``[2, E]`` integers; ShapeError or DTypeError if they are not."""
    if not isinstance(edge_index, Tensor) or edge_index.dtype not in (torch.int64, torch.int32):
        value_text = edge_index.dtype if isinstance(edge_index, Tensor) else got(edge_index)
        raise DTypeError(
            f"edge_index must be an int64 or int32 tensor [2, E] or a Graph, got {value_text}. Convert it with "
            f"`{'.long()' if isinstance(edge_index, Tensor) else 'torch.as_tensor(...)'}`."
        )
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        fix = "Pass edge_index.t()." if edge_index.ndim == 2 and edge_index.shape[1] == 2 else "Stack [src, dst]."
        raise ShapeError(f"edge_index must be [2, E] = [src, dst], got {list(edge_index.shape)}. {fix}")
    return edge_index


def refuse_edges(name: str, value: Any, order: str) -> None:
    """Raise DTypeError for edges (a graph or integers) in place of numbers; ``order`` names the arguments."""
    if isinstance(value, Graph) or (isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)):
        edges = isinstance(value, Graph) or (value.ndim == 2 and value.shape[0] == 2)
        text = (repr if isinstance(value, Graph) else got)(value) + (", which looks like edge_index" if edges else "")
        raise DTypeError(
            f"{name} must be a floating-point tensor, got {text}. The order of arguments is {order}: check it, or pass "
            f"arguments by their names."
        )


def check_range(name: str, index: Tensor, size: int, what: str) -> None:
    """Raise IndexRangeError unless all of ``index`` lies in ``[0, size)``; only for CPU tensors.

    On a GPU reading values would wait for the stream. In a traced graph the check is a node that raises RuntimeError.
    """
    if index.device.type != "cpu":
        return
    if not is_plain((index,)):  # the cheaper question first
        if being_traced():
            whole = (index >= 0) & (index < size)
            assert_later(whole.all(), f"{name} must lie in range, within the number of {what}. Count {what} from 0.")
            return
        index = unwrapped(index)
    least, most = map(int, index.aminmax()) if index.numel() else (0, -1)
    if least < 0 or most >= size:
        raise IndexRangeError(
            f"{name} must lie in [0, {size}), the number of {what}, got values from {least} to {most}. Count {what} "
            f"from 0, within a batch throughout."
        )


def check_index(name: str, index: Any, rows: int, size: int, what: str) -> Tensor:
    """An index ``[rows]`` int64 in ``[0, size)``; DTypeError, ShapeError or IndexRangeError for other values."""
    if check_tensor(name, index, f"[{rows}]").dtype != torch.int64:
        raise DTypeError(f"{name} must be int64 [{rows}], got {index.dtype}. Convert it with `.long()`.")
    if index.ndim != 1 or index.shape[0] != rows:
        raise ShapeError(f"{name} must be [{rows}], got {list(index.shape)}. Give one of the {what} for each row.")
    check_range(name, index, size, what)
    return index


def check_mirrored(edge_index: Tensor, shifts: Tensor | None = None) -> None:
    """Raise ShapeError or IndexRangeError unless the second half of the edges is the first one, reversed.

    Values are checked on the CPU only, and not in a trace.
    """
    edges = edge_index.shape[1]
    if edges % 2:
        raise ShapeError(f"mirrored edges must be an even number, got {edges}. Leave out mirrored.")
    if not edge_index.is_cpu or not is_plain((edge_index,)):
        return
    there, back = edge_index.chunk(2, 1)
    alike = torch.equal(there, back.flip(0))
    if alike and shifts is not None:
        there, back = shifts.chunk(2)
        alike = torch.equal(there, -back)
    if not alike:
        raise IndexRangeError(
            f"mirrored edges must be the edges of one direction, then the same {edges // 2} edges with their ends (and "
            "shifts) reversed, got others. Make them by collate, or leave out mirrored."
        )


def check_graph(graph: Any) -> Graph:
    """The value if it is a `Graph`, or ConfigError."""
    return check_type("graph", graph, Graph, "an eqlayers.Graph", "Make one: eqlayers.Graph(edge_index, num_src).")


def check_lengths(lengths: Any, graph: Graph) -> Tensor:
    """One length for each edge of a graph, or DTypeError or ShapeError."""
    edges = graph.num_edges
    if check_floating("lengths", lengths, f"[{edges}]").shape != (edges,):
        raise ShapeError(
            f"lengths must be [{edges}], one for each edge of the graph, got {list(lengths.shape)}. Take both from one "
            "neighbour list."
        )
    return lengths


class Graph:
    """Edges from senders to receivers. Convolutions over the same graph share its sorting; make one per batch.

    A graph does not change: it keeps a copy of the edges.

    Args:
        edge_index: ``[2, E]`` int64 or int32, rows (src, dst) as in torch-geometric; in any order.
        num_src: Number of senders, rows of x.
        num_dst: Number of receivers, rows of the result; as many as senders if None.
        copy: Whether to keep a copy of ``edge_index``; without, it must not be changed as long as the graph is used.
        mirrored: Whether the second half of the edges is the first half with its ends reversed. Then what both
            directions of a pair share, such as radial functions, need only be computed for the first half.

    Raises:
        ShapeError, DTypeError: ``edge_index`` is no ``[2, E]`` tensor of integers, or a number of nodes is no
            number. Indices outside their nodes are found when a convolution sorts the edges.
        ShapeError, IndexRangeError: Edges are not mirrored (values are checked on the CPU only).

    Example:
        >>> Graph(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3)
        Graph(3 edges, 3 senders, 3 receivers)
    """

    def __init__(
        self, edge_index: Tensor, num_src: int, num_dst: int | None = None, copy: bool = True, mirrored: bool = False
    ) -> None:
        edge_index = check_edge_index(edge_index)
        self.mirrored = mirrored is not False and check_flag("mirrored", mirrored)
        if self.mirrored:
            check_mirrored(edge_index)
        self._edge_index = edge_index.clone() if copy is not False and check_flag("copy", copy) else edge_index
        simple = type(num_src) is int and 0 <= num_src <= _MOST
        self._num_src = num_src if simple else _check_number("num_src", num_src)
        self._num_dst = self._num_src if num_dst is None else _check_number("num_dst", num_dst)
        self._compiled = torch.compiler.is_compiling()  # whether the graph is made inside compiled code
        self._in_range = False  # whether all indices were checked
        self._tables: Tensor | None = None
        self._trace: object | None = None  # in which the tables were made
        self._intervals: tuple[Tensor, tuple[object, ...], Tensor] | None = None
        self._halves: tuple[object, Graph, Graph] | None = None

    @property
    def edge_index(self) -> Tensor:
        """``[2, E]``."""
        return self._edge_index

    @property
    def num_src(self) -> int:
        """Number of senders."""
        return self._num_src

    @property
    def num_dst(self) -> int:
        """Number of receivers."""
        return self._num_dst

    @property
    def num_edges(self) -> int:
        """E."""
        return self._edge_index.shape[1]

    @property
    def sizes(self) -> Sizes:
        """Numbers of edges, senders and receivers."""
        return Sizes(self._edge_index.shape[1], self._num_src, self._num_dst)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Senders and receivers, ``[E]`` int64 each; IndexRangeError outside the nodes (found on CPU only)."""
        src, dst = self._edge_index.to(torch.int64).unbind(0)
        traced = being_traced()
        if traced or not self._in_range:
            check_range("edge_index[0] (src)", src, self._num_src, "senders")
            check_range("edge_index[1] (dst)", dst, self._num_dst, "receivers")
            if not (traced or wrapped_by_func(src)):
                self._in_range = True
        return src, dst

    def of_pairs(self, values: Tensor) -> Tensor:
        """The rows of one edge of each pair, ``[E / 2, ...]`` of ``[E, ...]``; all rows if edges are not mirrored.

        Convolutions repeat weights of pairs for the other direction.

        Example:
            >>> graph = Graph(torch.tensor([[0, 1, 1, 2], [1, 2, 0, 1]]), 3, mirrored=True)
            >>> lengths = torch.tensor([0.7, 0.9, 0.7, 0.9])
            >>> graph.of_pairs(lengths), graph.of_edges(graph.of_pairs(lengths))
            (tensor([0.7000, 0.9000]), tensor([0.7000, 0.9000, 0.7000, 0.9000]))
        """
        return values[: self.num_edges // 2] if self.mirrored else values

    def of_edges(self, values: Tensor) -> Tensor:
        """A row for each edge, from rows of pairs, see `of_pairs`; other tensors are returned unchanged."""
        if not self.mirrored or 2 * values.shape[0] != self.num_edges:
            return values
        return values.expand(2, *values.shape).flatten(0, 1)  # second derivatives of cat and stack are slow

    def tables(self, sort: Callable[[Tensor, int, int], Tensor], plain: bool = False) -> Tensor:
        """The sorted edges, from ``sort(edge_index, num_src, num_dst)`` at the first call, then cached.

        ``plain``: whether the caller knows that nothing is traced or compiled.
        """
        if plain and self._trace is None and (self._tables is not None or not torch.is_inference_mode_enabled()):
            if self._tables is None:
                self._tables = sort(self._edge_index, self._num_src, self._num_dst)
            return self._tables
        trace = current_trace()
        if self._outlives():
            known = self._tables if self._trace is None else None
            return sort(self._edge_index, self._num_src, self._num_dst) if known is None else known
        if self._tables is None or self._trace is not trace:
            if wrapped_by_func(self._edge_index):
                return sort(self._edge_index, self._num_src, self._num_dst)  # differ from sample to sample: not cached
            self._trace = trace
            self._tables = self._outside(lambda edge_index: sort(edge_index, self._num_src, self._num_dst))
        return self._tables

    def _outside(self, make: Callable[[Tensor], T]) -> T:
        """The result of ``make(edge_index)``, computed outside of torch.func and inference mode, to be cached."""
        with outside_of_func():
            if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
                return make(self._edge_index)
            with torch.inference_mode(False):
                return make(self._edge_index.clone())

    def interval_tables(self, interval: Tensor, intervals: int, sort: Callable[[Tensor], Tensor]) -> Tensor:
        """The sorted edges with appended edges sorted by knot interval, from ``sort(interval)``.

        ``interval`` ``[E]`` has the knot interval of each edge; ``intervals`` is their number. The tables of the latest
        ``interval`` are cached, because all layers of a network share it.
        """
        if wrapped_by_func(interval) or wrapped_by_func(self._edge_index) or self._outlives():
            return sort(interval)
        compiling = torch.compiler.is_compiling()
        changes = 0 if compiling or interval.is_inference() else interval._version  # in place, since they were sorted
        state = current_trace(), not compiling and torch.is_inference_mode_enabled(), intervals, changes
        if self._intervals is None or self._intervals[0] is not interval or self._intervals[1] != state:
            self._intervals = interval, state, sort(interval)
        return self._intervals[2]

    def _outlives(self) -> bool:
        """Whether the graph outlives a call that is compiled, whose results may be overwritten: it caches none."""
        return torch.compiler.is_compiling() and not self._compiled

    def halves(self) -> tuple[Graph, Graph]:
        """Two graphs with the same edges: from senders to the edges themselves, and from these to the receivers.

        With these, kernels of convolutions gather operands or sum results with a row for each edge. Both graphs are
        cached, so that layers over one graph share their sorting.

        Example:
            >>> Graph(torch.tensor([[0, 1, 2], [1, 1, 0]]), 4).halves()
            (Graph(3 edges, 4 senders, 3 receivers), Graph(3 edges, 3 senders, 4 receivers))
        """
        trace = current_trace()
        if self._halves is None or self._halves[0] is not trace:
            if wrapped_by_func(self._edge_index) or self._outlives():
                return self._cut(self._edge_index)  # differ from sample to sample: not cached
            self._halves = trace, *self._outside(self._cut)
        return self._halves[1:]

    def _cut(self, edge_index: Tensor) -> tuple[Graph, Graph]:
        src, dst = edge_index.unbind(0)
        edge, count = torch.arange(edge_index.shape[1], dtype=src.dtype, device=src.device), edge_index.shape[1]
        first = Graph(torch.stack([src, edge]), self._num_src, count, copy=False)
        return first, Graph(torch.stack([edge, dst]), count, self._num_dst, copy=False)

    @classmethod
    def of(cls, batch: Any) -> Graph:
        """The edges of an object with ``edge_index`` and ``num_nodes``; ShapeError or DTypeError for others.

        Example:
            >>> from types import SimpleNamespace
            >>> Graph.of(SimpleNamespace(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3))
            Graph(2 edges, 3 senders, 3 receivers)
        """
        edge_index, nodes = (getattr(batch, name, None) for name in ("edge_index", "num_nodes"))
        return cls(edge_index, nodes, copy=False)  # type: ignore[arg-type]

    @classmethod
    def joined(cls, graphs: Sequence[Graph]) -> Graph:
        """Several graphs as one batch, the nodes of each behind the nodes of the one before; ShapeError for none.

        Loaders of torch-geometric collect graphs that are attributes of samples in a list.

        Example:
            >>> pair = Graph(torch.tensor([[0, 1], [1, 0]]), 2)
            >>> Graph.joined([pair, pair]).edge_index.tolist()
            [[0, 1, 2, 3], [1, 0, 3, 2]]
        """
        parts = check_items("graphs", graphs, "a list of graphs", "Pass the graphs of a batch.", DTypeError)
        if not parts:
            raise ShapeError("graphs must be at least one, got none. Leave out empty batches.")
        for number, one in enumerate(parts):
            check_type(f"graphs[{number}]", one, Graph, "a Graph", "Build it with Graph(edge_index, n).", DTypeError)
        src = list(accumulate((g.num_src for g in parts), initial=0))
        dst = list(accumulate((g.num_dst for g in parts), initial=0))
        moved = [
            g.edge_index + torch.tensor([[a], [b]], dtype=g.edge_index.dtype, device=g.edge_index.device)
            for g, a, b in zip(parts, src, dst, strict=False)
        ]
        return cls(torch.cat(moved, 1), src[-1], dst[-1], copy=False)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Graph:
        """The graph on another device; itself if it is there."""
        moved = self._edge_index.to(device, non_blocking=non_blocking)
        return self if moved is self._edge_index else Graph(moved, self._num_src, self._num_dst, False, self.mirrored)

    def __repr__(self) -> str:
        kind = "mirrored edges" if self.mirrored else "edges"
        return f"Graph({self.num_edges} {kind}, {self._num_src} senders, {self._num_dst} receivers)"


def _check_number(name: str, value: Any) -> Any:
    if is_traced_size(value):
        return value  # torch.jit.trace makes tensors of sizes, to follow them
    if not is_integer(value) or value < 0:
        raise ShapeError(f"{name} must be a number of nodes, 0 or more, got {got(value)}. Pass {name}=x.shape[0].")
    if isinstance(value, int) and value > _MOST:
        raise ShapeError(
            f"{name} must be a number of nodes, at most {_MOST}, got {got(value)}. Count the nodes of one batch."
        )
    return value


def as_graph(edge_index: Any, num_src: int, num_dst: int | None = None) -> Graph:
    """``edge_index`` as a graph: itself if it is one; ShapeError or DTypeError if it cannot be one.

    Example:
        >>> import torch
        >>> as_graph(torch.tensor([[0, 1], [1, 0]]), num_src=2)
        Graph(2 edges, 2 senders, 2 receivers)
    """
    if not isinstance(edge_index, Graph):
        return Graph(edge_index, num_src, num_dst, copy=False)
    # no `in`: torch's tracer takes a size that is known and one that is traced for different ones there
    if edge_index.num_src != num_src or (num_dst is not None and edge_index.num_dst != num_dst):
        expected = f"{num_src} senders" + ("" if num_dst is None else f" and {num_dst} receivers")
        raise ShapeError(
            f"the graph must have {expected}, got {edge_index!r}. Build it with "
            f"Graph(edge_index, num_src={num_src}, num_dst=...)."
        )
    return edge_index
