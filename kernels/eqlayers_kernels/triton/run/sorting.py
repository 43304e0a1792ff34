"""Makes the tables of :mod:`.edges` on a GPU with one sort, one sum and three kernels, for senders and receivers.

Torch's operators take a hundred launches for the same tables, more time than a small network.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Elements of one program.
BLOCK = 256
_SIZES = ["count", "total", "longest", "most", "nodes0", "nodes1", "steps", "behind"]


@triton.jit
def _first_not_below(values, first, stop, value, steps):
    """Index of the first of the ascending ``values[first:stop]`` that is not below ``value``, else ``stop``."""
    for _ in tl.range(0, steps):
        middle = (first + stop) // 2
        below = (first < stop) & (tl.load(values + middle, mask=first < stop, other=0) < value)
        stop = tl.where(below, stop, tl.minimum(middle, stop))
        first = tl.where(below, middle + 1, first)
    return first


@triton.jit
def _sum_before(sums, row, inside):
    """The running sum before an index: ``sums[row - 1]``, or 0."""
    return tl.load(sums + row - 1, mask=inside & (row > 0), other=0)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=["key0", "key1"])
def write_keys(
    keys,  # [traversals * E]
    key0,  # [E] nodes of the first traversal
    key1,  # [E] nodes of the second
    count,  # E
    nodes0,  # their numbers
    nodes1,
    BLOCK: tl.constexpr,
):
    """Write the sort key of every edge, second traversal after the first; indices out of range come first or last."""
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = edge < count
    second = tl.program_id(1)
    nodes = tl.where(second == 0, nodes0, nodes1)
    node = tl.load(key0 + edge, mask=inside & (second == 0), other=0)
    node += tl.load(key1 + edge, mask=inside & (second == 1), other=0)
    key = tl.minimum(tl.maximum(node, -1), nodes) + 1 + second * (nodes0 + 2)
    tl.store(keys + second * count + edge, key.to(keys.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def count_parts(
    keys,  # [total], sorted
    begins,  # [nodes of all traversals + 2] first edge of each node in its traversal
    parts,  # [2 * nodes of all traversals] parts of each node, then workspace rows of each node
    total,  # traversals * E
    count,
    longest,
    nodes0,
    nodes1,
    steps,
    BLOCK: tl.constexpr,
):
    """Write the first edge, the number of parts, and the number of workspace rows of every node."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    nodes = nodes0 + nodes1
    second = (entry > nodes0).to(tl.int64)
    start, stop = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64) + total
    begin = _first_not_below(keys, start, stop, entry + 1 + second, steps)
    end = _first_not_below(keys, begin, stop, entry + 2 + second, steps)
    tl.store(begins + entry, begin - second * count, mask=entry < nodes + 2)
    cut = tl.maximum((2 * (end - begin) + longest) // (2 * longest), 1)  # rounded, so that hardly any is much shorter
    node = entry - second
    inside = (entry < nodes + 1) & (entry != nodes0)  # the entry after the nodes of a traversal is its end
    tl.store(parts + node, cut, mask=inside)
    tl.store(parts + nodes + node, tl.where(cut > 1, cut, 0), mask=inside)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=["endpoints"])
def write_tables(
    packed,  # the tables of the first traversal, then of the second
    order,  # [traversals * E] that sorts the keys
    endpoints,  # [traversals, E] other node of each edge
    begins,
    sums,  # [2 * nodes of all traversals] cumulative sums of `parts`
    count,
    most,
    nodes0,
    nodes1,
    steps,
    behind,  # elements of the first traversal's tables
    BLOCK: tl.constexpr,
):
    """Write every element of the tables of `TraversalTables`."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    second = tl.program_id(1).to(tl.int64)
    nodes = tl.where(second == 0, nodes0, nodes1).to(tl.int64)
    offset = second * nodes0  # its first node among the nodes of all traversals
    all_nodes = nodes0 + nodes1
    table = packed + second * behind
    length = nodes + most

    before = _sum_before(sums, offset, True)
    first = tl.zeros((BLOCK,), tl.int64) + offset
    node = _first_not_below(sums, first, first + nodes, before + i + 1, steps) - offset
    real = node < nodes
    node = tl.minimum(node, tl.maximum(nodes - 1, 0))
    known = (i < length) & (nodes > 0)
    earlier = _sum_before(sums, offset + node, known)
    cut = tl.maximum(tl.load(sums + offset + node, mask=known, other=0) - earlier, 1)
    step = i - (earlier - before)
    begin = tl.load(begins + offset + second + node, mask=known, other=0)
    edges = tl.load(begins + offset + second + node + 1, mask=known, other=0) - begin
    workspace_before = _sum_before(sums, all_nodes + offset, True)
    row = tl.where(cut > 1, nodes + _sum_before(sums, all_nodes + offset + node, known) - workspace_before + step, node)
    tl.store(table + i, node, mask=i < length)
    tl.store(table + length + i, tl.where(real, begin + edges * step // cut, 0), mask=i < length)
    tl.store(table + 2 * length + i, tl.where(real, begin + edges * (step + 1) // cut, 0), mask=i < length)
    tl.store(table + 3 * length + i, tl.where(real, row, -1), mask=i < length)

    edge = tl.load(order + second * count + i, mask=i < count, other=0) - second * count
    other = tl.load(endpoints + second * count + edge, mask=i < count, other=0)
    tl.store(table + 4 * length + i, edge, mask=i < count)
    tl.store(table + 4 * length + count + i, other, mask=i < count)
    workspace = _sum_before(sums, all_nodes + offset + i, i <= nodes) - workspace_before
    tl.store(table + 4 * length + 2 * count + i, workspace, mask=i <= nodes)


def sorted_tables(
    keys: list[Tensor], endpoints: Tensor, nodes: list[int], longest: int, most: int, lengths: list[int]
) -> Tensor:
    """The packed tables of one or two traversals, with ``lengths`` elements each.

    ``keys`` has for each traversal the node ``[E]`` of every edge, ``endpoints [traversals, E]`` the other node. A
    node's edges are divided into parts of about ``longest`` edges; there are ``most`` parts beside one for each node.
    """
    traversals, count = endpoints.shape
    first, second = (nodes[0], nodes[1]) if traversals == 2 else (nodes[0], 0)
    total, packed = traversals * count, endpoints.new_empty(sum(lengths))
    narrow = first + second < 2**31 - 8  # half the passes of the sort
    unsorted = endpoints.new_empty(total, dtype=torch.int32 if narrow else torch.int64)
    if count:
        write_keys[-(-count // BLOCK), traversals](unsorted, keys[0], keys[-1], count, first, second, BLOCK=BLOCK)
    in_order, order = unsorted.sort(stable=True)
    begins, parts = endpoints.new_empty(first + second + 2), endpoints.new_empty(2 * (first + second))
    cut = total, count, longest, first, second, total.bit_length()
    count_parts[(-(-(first + second + 2) // BLOCK),)](in_order, begins, parts, *cut, BLOCK=BLOCK)
    sums, steps = parts.cumsum(0), max(first, second).bit_length()
    blocks, sizes = -(-max(max(nodes) + max(most, 1), count) // BLOCK), (count, most, first, second, steps, lengths[0])
    write_tables[blocks, traversals](packed, order, endpoints, begins, sums, *sizes, BLOCK=BLOCK)
    return packed
