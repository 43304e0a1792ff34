"""Edges in the order of their nodes, by counting: one pass to count and check, one to place."""

from __future__ import annotations

import ctypes
from functools import cache

from . import compiler

_SOURCE = f"""#include <stdint.h>
#include <string.h>
{compiler.EXPORT} int64_t sort_edges(const int64_t *key, const int64_t *other, int64_t count, int64_t nodes,
                                     int64_t *ptr, int64_t *edges, int64_t *others) {{
  /* stable; returns the first edge whose key lies outside [0, nodes), or -1. ptr has nodes + 2 places: the last moves */
  memset(ptr, 0, (nodes + 2) * sizeof *ptr);
  for (int64_t e = 0; e < count; e++) {{
    if (key[e] < 0 || key[e] >= nodes) return e;
    ptr[key[e] + 2]++;
  }}
  for (int64_t n = 2; n <= nodes + 1; n++) ptr[n] += ptr[n - 1];
  for (int64_t e = 0; e < count; e++) {{
    const int64_t place = ptr[key[e] + 1]++;
    edges[place] = e;
    others[place] = other[e];
  }}
  return -1;
}}
"""


@cache
def _function() -> ctypes._CFuncPtr:
    found = compiler.load(_SOURCE, "edges").sort_edges
    found.argtypes = (*[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3)
    found.restype = ctypes.c_int64
    return found


def sort_edges(key: int, other: int, count: int, nodes: int, ptr: int, edges: int, others: int) -> int:
    """Sort edges by node; all but the numbers are addresses of contiguous int64.

    Args:
        key, other: ``[count]`` the node to sort by, and the node at the other end.
        count, nodes: Number of edges and of nodes.
        ptr: ``[nodes + 2]``, written: where the edges of each node begin; the last place is scratch.
        edges, others: ``[count]``, written: numbers of the edges in order, and their other ends.

    Returns:
        The first edge whose key is no node, or -1; then nothing else is to be used.

    Raises:
        CompilerError: There is no compiler, or it failed.
    """
    return int(_function()(key, other, count, nodes, ptr, edges, others))
