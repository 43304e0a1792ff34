"""Sorts edges by receiver and by sender in C: one pass counts and checks them, one pass writes them in order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

from ..build import compiler

_SOURCE = f"""#include <stdint.h>
#include <string.h>
static int64_t sort(const int64_t *key, const int64_t *other, const int64_t *order, int64_t count, int64_t nodes,
                    int64_t other_nodes, int64_t *ptr, int64_t *edges, int64_t *others) {{
  /* edges of equal keys stay in this order, or as they are; the first whose key lies outside [0, nodes), or -1 */
  memset(ptr, 0, (nodes + 2) * sizeof *ptr);
  for (int64_t e = 0; e < count; e++) {{
    if (key[e] < 0 || key[e] >= nodes) return e;
    ptr[key[e] + 2]++;
  }}
  for (int64_t n = 2; n <= nodes + 1; n++) ptr[n] += ptr[n - 1];
  for (int64_t i = 0; i < count; i++) {{
    const int64_t e = order == NULL ? i : order[i], place = ptr[key[e] + 1]++;
    edges[place] = e;
    others[place] = other[e];
  }}
  ptr[nodes + 1] = -1 - other_nodes;
  return -1;
}}
static int64_t sort_ends(const int64_t *src, const int64_t *dst, int64_t count, int64_t num_src, int64_t num_dst,
                         int64_t *tables) {{
  /* -1, or 2 * edge + row of the first index out of range */
  int64_t *const by_src = tables + num_dst + 2 + 2 * count;
  int64_t *const by_dst = tables + num_dst + 2;
  int64_t wrong = sort(dst, src, NULL, count, num_dst, num_src, tables, by_dst, by_dst + count);
  if (wrong >= 0) return 2 * wrong + 1;
  wrong = sort(src, dst, by_dst, count, num_src, num_dst, by_src, by_src + num_src + 2, by_src + num_src + 2 + count);
  return wrong >= 0 ? 2 * wrong : -1;
}}
{compiler.EXPORT} int64_t sort_edges(const int64_t *edge_index, int64_t count, int64_t num_src, int64_t num_dst,
                                     int64_t *tables) {{
  return sort_ends(edge_index, edge_index + count, count, num_src, num_dst, tables);
}}
{compiler.EXPORT} int64_t sort_places(const int64_t *edge_index, const int64_t *place, int64_t count, int64_t num_src,
                                      int64_t num_places, int64_t *tables) {{
  /* -1, or the first edge whose place is out of range */
  int64_t *const edges = tables + num_places + 2, *const src = edges + count, *const dst = src + count;
  const int64_t wrong = sort(place, edge_index, NULL, count, num_places, num_src, tables, edges, src);
  if (wrong >= 0) return wrong;
  for (int64_t e = 0; e < count; e++) dst[e] = edge_index[count + edges[e]];
  memcpy(dst + count, place, count * sizeof *place);
  return -1;
}}
"""


class GraphOffsets(NamedTuple):
    """Offsets of the six tables of a graph in one int64 buffer, and its length.

    For receivers, then for senders: the first edge of each node (ptr) with the number -1 - n after its end, where n is
    the number of nodes at the other endpoint; the numbers of the edges in that order; and their other nodes.

    The edges of a sender are sorted by receiver, as a walk by receivers meets them.

    The number -1 - n is the only negative one, and its offset follows from the numbers of edges and nodes. A kernel
    that reads it at that offset knows that the tables have these sizes.
    """

    by_dst: tuple[int, int, int]
    by_src: tuple[int, int, int]
    to_src: tuple[int, int, int]  # as by_dst
    length: int


def graph_offsets(count: int, num_src: int, num_dst: int) -> GraphOffsets:
    """The offsets of the tables of a graph."""
    second = num_dst + 2 + 2 * count
    by_dst, by_src = (0, num_dst + 2, num_dst + 2 + count), (second, second + num_src + 2, second + num_src + 2 + count)
    return GraphOffsets(by_dst, by_src, by_dst, by_src[2] + count)


class IntervalOffsets(NamedTuple):
    """Offsets of the tables of edges sorted by knot interval in one int64 buffer, and its length.

    The first edge of each interval (ptr, with the number -1 - n after its end); the numbers of the edges in that order;
    their senders and receivers; and the interval of each edge.
    """

    ptr: int
    edges: int
    senders: int
    receivers: int
    interval: int
    length: int


def interval_offsets(count: int, intervals: int) -> IntervalOffsets:
    """The offsets of the tables of intervals."""
    first = intervals + 2
    return IntervalOffsets(0, first, first + count, first + 2 * count, first + 3 * count, first + 4 * count)


def load(name: str) -> Callable[..., int]:
    """The compiled C function ``name``, which sorts edges; CompilerError if there is no compiler.

    'sort_edges' takes the address of edges ``[2, count]`` contiguous int64 (src, dst), count, num_src, num_dst, and the
    address of the buffer described by `graph_offsets`. The result is -1, or 2 * edge + row of the first index that is
    no node. 'sort_places' takes the addresses of edges that are nodes and of their ``[count]`` knot intervals, count,
    num_src, the number of intervals, and the address of the buffer described by `interval_offsets`. The result is -1,
    or the first edge whose interval is none. Numbers must be 0 or more: C would write outside the buffer.
    """
    function: Callable[..., int] = getattr(compiler.load(_SOURCE, "edges"), name)
    addresses = 1 if name == "sort_edges" else 2
    arguments = *[ctypes.c_void_p] * addresses, *[ctypes.c_int64] * 3, ctypes.c_void_p
    function.argtypes, function.restype = arguments, ctypes.c_int64  # type: ignore[attr-defined]
    return function
