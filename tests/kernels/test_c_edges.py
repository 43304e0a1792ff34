"""Sorting of edges: stable, checked, within its buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eqlayers_kernels.c.edges import sort_edges

MARK = -77


def sort(key: Any, other: Any, nodes: int) -> tuple[int, list[np.ndarray]]:
    """What `sort_edges` returns, and ptr, edges and others; the elements behind them must stay what they were."""
    key, other = np.array(key, dtype=np.int64), np.array(other, dtype=np.int64)
    buffers = [np.full(n + 5, MARK, dtype=np.int64) for n in (nodes + 2, key.size, key.size)]
    wrong = sort_edges(
        key.ctypes.data, other.ctypes.data, key.size, nodes, *(buffer.ctypes.data for buffer in buffers)
    )
    assert all((buffer[-5:] == MARK).all() for buffer in buffers)
    return wrong, [buffers[0][: nodes + 1], *(buffer[:-5] for buffer in buffers[1:])]


@pytest.mark.parametrize(("nodes", "count"), [(1, 4), (5, 0), (0, 0), (7, 3), (9, 200), (1000, 999)])
@pytest.mark.usefixtures("kernels")
def test_edges_are_sorted_by_node_and_keep_their_order(nodes: int, count: int) -> None:
    rng = np.random.default_rng(count)
    key, other = rng.integers(max(nodes, 1), size=(2, count))
    other += 2**40
    wrong, (ptr, edges, others) = sort(key, other, nodes)
    order = np.argsort(key, kind="stable")
    assert wrong == -1
    np.testing.assert_array_equal(edges, order)
    np.testing.assert_array_equal(others, other[order])
    np.testing.assert_array_equal(ptr, np.searchsorted(key[order], np.arange(nodes + 1)))


@pytest.mark.parametrize(
    ("key", "nodes", "wrong"),
    [([0, 1, 2, 0], 2, 2), ([0, -1], 5, 1), ([3], 3, 0), ([0], 0, 0), ([1, 2**62, -(2**62)], 2, 1)],
)
@pytest.mark.usefixtures("kernels")
def test_the_first_edge_outside_is_named_and_nothing_is_written_outside(key: Any, nodes: int, wrong: int) -> None:
    assert sort(key, [0] * len(key), nodes)[0] == wrong
