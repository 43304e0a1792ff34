"""Sorting of edges: stable, by both ends, checked, within its buffer."""

from typing import Any

import numpy as np
import pytest

from eqlayers_kernels.c.run.edges import graph_offsets, load
from tests.each import each

MARK = -77


def sort(src: Any, dst: Any, senders: int, receivers: int) -> tuple[int, np.ndarray]:
    """The result of 'sort_edges', and its buffer; the elements around that must stay what they were."""
    edges = np.array([src, dst], dtype=np.int64)
    length = graph_offsets(edges.shape[1], senders, receivers).length
    buffer = np.full(length + 10, MARK, dtype=np.int64)
    out = buffer[5 : 5 + length]
    wrong = load("sort_edges")(edges.ctypes.data, edges.shape[1], senders, receivers, out.ctypes.data)
    assert (buffer[:5] == MARK).all()
    assert (buffer[-5:] == MARK).all()
    return wrong, out


@each("senders, receivers, count", [(1, 1, 4), (5, 3, 0), (0, 0, 0), (7, 2, 3), (2, 9, 200), (1000, 900, 999)])
def test_edges_are_sorted_by_both_ends_and_keep_their_order(
    kernels: Any, senders: int, receivers: int, count: int
) -> None:
    rng = np.random.default_rng(count)
    src, dst = (rng.integers(max(nodes, 1), size=count) for nodes in (senders, receivers))
    graph = kernels.Edges(src, dst, senders, receivers)
    wrong, out = sort(src, dst, senders, receivers)
    assert wrong == -1
    places = graph_offsets(count, senders, receivers)
    for traversal in ("by_dst", "by_src"):
        for start, want in zip(getattr(places, traversal), graph.tables(traversal), strict=True):
            np.testing.assert_array_equal(out[start : start + want.size], want)


@each(
    "src, dst, row, edge",
    [
        ([0, 1], [1, 3], 1, 1), ([0, 2], [1, 0], 0, 1), ([-1, 0], [0, 0], 0, 0), ([0, 0], [0, -1], 1, 1),
        ([0, 2**62], [0, 0], 0, 1), ([5, 5], [0, -(2**62)], 1, 1),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("kernels")
def test_an_end_outside_is_named_and_nothing_is_written_outside(src: Any, dst: Any, row: int, edge: int) -> None:
    assert sort(src, dst, 2, 3)[0] == 2 * edge + row


@pytest.mark.usefixtures("kernels")
def test_without_nodes_every_edge_is_wrong() -> None:
    assert sort([0], [0], 3, 0)[0] == 1
    assert sort([0], [0], 0, 3)[0] == 0
