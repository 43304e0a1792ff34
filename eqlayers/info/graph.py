"""Edges of a graph, sorted once for all the convolutions over it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import DTypeError, IndexRangeError, ShapeError


def check_edge_index(edge_index: Any) -> Tensor:
    """The edges, if they are ``[2, E]`` integers.

    Raises:
        ShapeError, DTypeError: They are not.
    """
    if not isinstance(edge_index, Tensor) or edge_index.dtype not in (torch.int64, torch.int32):
        got = edge_index.dtype if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise DTypeError(
            f"edge_index must be an int64 or int32 tensor [2, E] or a Graph, got {got}. Convert it with `.long()`."
        )
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        fix = "Pass edge_index.t()." if edge_index.ndim == 2 and edge_index.shape[1] == 2 else "Stack [src, dst]."
        raise ShapeError(f"edge_index must be [2, E] = [src, dst], got {list(edge_index.shape)}. {fix}")
    return edge_index


def check_range(name: str, index: Tensor, size: int, what: str) -> None:
    """Raise IndexRangeError unless all of ``index`` lies in ``[0, size)``; looks on the CPU only.

    Elsewhere a look at the values would stall the stream.
    """
    if index.device.type == "cpu" and index.numel() and not 0 <= int(index.min()) <= int(index.max()) < size:
        raise IndexRangeError(
            f"{name} must lie in [0, {size}), the number of {what}, got values from {int(index.min())} to "
            f"{int(index.max())}. Count {what} from 0, within a batch throughout."
        )


class Graph:
    """Edges from senders to receivers. Convolutions over the same graph share its sorting; make one per batch.

    Args:
        edge_index: ``[2, E]`` int64 or int32, rows (src, dst) as in torch-geometric; in any order.
        num_src: Number of senders, rows of x.
        num_dst: Number of receivers, rows of the result; as many as senders if None.

    Raises:
        ShapeError, DTypeError: ``edge_index`` is no ``[2, E]`` tensor of integers. Indices outside their nodes are
            found when a convolution sorts the edges.

    Example:
        >>> Graph(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3)
        Graph(3 edges, 3 senders, 3 receivers)
    """

    def __init__(self, edge_index: Tensor, num_src: int, num_dst: int | None = None) -> None:
        self.edge_index = check_edge_index(edge_index)
        self.num_src = num_src
        self.num_dst = num_src if num_dst is None else num_dst
        self.tables: Tensor | None = None  # sorted edges, filled by the first convolution that needs them

    @property
    def num_edges(self) -> int:
        """E."""
        return self.edge_index.shape[1]

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Senders and receivers of the edges, ``[E]`` int64 each.

        Raises:
            IndexRangeError: One lies outside its nodes (found on CPU only).
        """
        src, dst = self.edge_index.to(torch.int64).unbind(0)
        check_range("edge_index[0] (src)", src, self.num_src, "senders")
        check_range("edge_index[1] (dst)", dst, self.num_dst, "receivers")
        return src, dst

    def to(self, device: torch.device | str) -> Graph:
        """The graph on another device; itself if it is there."""
        moved = self.edge_index.to(device)
        return self if moved is self.edge_index else Graph(moved, self.num_src, self.num_dst)

    def __repr__(self) -> str:
        return f"Graph({self.num_edges} edges, {self.num_src} senders, {self.num_dst} receivers)"
