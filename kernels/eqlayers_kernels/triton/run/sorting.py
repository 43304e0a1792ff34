"""The tables of :mod:`.edges` on a GPU: one sort, one sum and three kernels, for both ends of the edges at once.

Torch's operators take a hundred launches for the same tables, more time than a small network takes.
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
def _first_not_below(values, first, stop, wanted, steps):
    """Place in the ascending ``values[first:stop]`` of the first that is not below ``wanted``, else ``stop``."""
    for _ in tl.range(0, steps):
        middle = (first + stop) // 2
        below = (first < stop) & (tl.load(values + middle, mask=first < stop, other=0) < wanted)
        stop = tl.where(below, stop, tl.minimum(middle, stop))
        first = tl.where(below, middle + 1, first)
    return first


@triton.jit
def _sum_before(sums, place, inside):
    """Of a running sum, what comes before a place."""
    return tl.load(sums + place - 1, mask=inside & (place > 0), other=0)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=["key0", "key1"])
def write_keys(
    keys,  # [walks * E]
    key0,  # [E] nodes of the first walk
    key1,  # [E] of the second
    count,  # E
    nodes0,  # their numbers
    nodes1,
    BLOCK: tl.constexpr,
):
    """Write the sort key of every edge. The second walk follows the first; indices out of range are at its ends."""
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = edge < count
    second = tl.program_id(1)
    nodes = tl.where(second == 0, nodes0, nodes1)
    node = tl.load(key0 + edge, mask=inside & (second == 0), other=0)
    node += tl.load(key1 + edge, mask=inside & (second == 1), other=0)
    key = tl.minimum(tl.maximum(node, -1), nodes) + 1 + second * (nodes0 + 2)
    tl.store(keys + second * count + edge, key.to(keys.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def count_pieces(
    keys,  # [total], sorted
    begins,  # [nodes of all walks + 2] where the edges of each node begin in its walk
    pieces,  # [2 * nodes of all walks] pieces of each node, and those of them that are written into the room
    total,  # walks * E
    count,
    longest,
    nodes0,
    nodes1,
    steps,
    BLOCK: tl.constexpr,
):
    """Cut the edges of every node."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    nodes = nodes0 + nodes1
    second = (entry > nodes0).to(tl.int64)
    start, stop = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64) + total
    begin = _first_not_below(keys, start, stop, entry + 1 + second, steps)
    end = _first_not_below(keys, begin, stop, entry + 2 + second, steps)
    tl.store(begins + entry, begin - second * count, mask=entry < nodes + 2)
    cut = tl.maximum((2 * (end - begin) + longest) // (2 * longest), 1)  # rounded, so that hardly any is much shorter
    node = entry - second
    inside = (entry < nodes + 1) & (entry != nodes0)  # an entry behind the nodes of a walk is its end
    tl.store(pieces + node, cut, mask=inside)
    tl.store(pieces + nodes + node, tl.where(cut > 1, cut, 0), mask=inside)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=["ends"])
def write_tables(
    packed,  # the tables of one walk behind the other's
    order,  # [walks * E] that sorts the keys
    ends,  # [walks, E] nodes at the other ends
    begins,
    sums,  # [2 * nodes of all walks] of the pieces, each with those before
    count,
    most,
    nodes0,
    nodes1,
    steps,
    behind,  # elements of the first walk's tables
    BLOCK: tl.constexpr,
):
    """Every element of the tables."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    second = tl.program_id(1).to(tl.int64)
    nodes = tl.where(second == 0, nodes0, nodes1).to(tl.int64)
    own = second * nodes0  # its first node among those of all walks
    all_nodes = nodes0 + nodes1
    table = packed + second * behind
    length = nodes + most

    before = _sum_before(sums, own, True)
    first = tl.zeros((BLOCK,), tl.int64) + own
    node = _first_not_below(sums, first, first + nodes, before + i + 1, steps) - own
    real = node < nodes
    node = tl.minimum(node, tl.maximum(nodes - 1, 0))
    known = (i < length) & (nodes > 0)
    earlier = _sum_before(sums, own + node, known)
    cut = tl.maximum(tl.load(sums + own + node, mask=known, other=0) - earlier, 1)
    step = i - (earlier - before)
    begin = tl.load(begins + own + second + node, mask=known, other=0)
    edges = tl.load(begins + own + second + node + 1, mask=known, other=0) - begin
    room_before = _sum_before(sums, all_nodes + own, True)
    place = tl.where(cut > 1, nodes + _sum_before(sums, all_nodes + own + node, known) - room_before + step, node)
    tl.store(table + i, node, mask=i < length)
    tl.store(table + length + i, tl.where(real, begin + edges * step // cut, 0), mask=i < length)
    tl.store(table + 2 * length + i, tl.where(real, begin + edges * (step + 1) // cut, 0), mask=i < length)
    tl.store(table + 3 * length + i, tl.where(real, place, -1), mask=i < length)

    edge = tl.load(order + second * count + i, mask=i < count, other=0) - second * count
    other = tl.load(ends + second * count + edge, mask=i < count, other=0)
    tl.store(table + 4 * length + i, edge, mask=i < count)
    tl.store(table + 4 * length + count + i, other, mask=i < count)
    room = _sum_before(sums, all_nodes + own + i, i <= nodes) - room_before
    tl.store(table + 4 * length + 2 * count + i, room, mask=i <= nodes)


def sorted_tables(
    keys: list[Tensor], ends: Tensor, nodes: list[int], longest: int, most: int, lengths: list[int]
) -> Tensor:
    """The packed tables of one walk or two, with so many elements each.

    ``keys`` are of each walk the node ``[E]`` of every edge, ``ends [walks, E]`` the nodes at the other ends,
    contiguous. A node's edges are cut into pieces of about ``longest`` edges at least; there are ``most`` beside one
    for each node.
    """
    walks, count = ends.shape
    first, second = (nodes[0], nodes[1]) if walks == 2 else (nodes[0], 0)
    total, packed = walks * count, ends.new_empty(sum(lengths))
    narrow = first + second < 2**31 - 8  # half the passes of the sort
    unsorted = ends.new_empty(total, dtype=torch.int32 if narrow else torch.int64)
    if count:
        write_keys[-(-count // BLOCK), walks](unsorted, keys[0], keys[-1], count, first, second, BLOCK=BLOCK)
    in_order, order = unsorted.sort(stable=True)
    begins, pieces = ends.new_empty(first + second + 2), ends.new_empty(2 * (first + second))
    cut = total, count, longest, first, second, total.bit_length()
    count_pieces[(-(-(first + second + 2) // BLOCK),)](in_order, begins, pieces, *cut, BLOCK=BLOCK)
    sums, steps = pieces.cumsum(0), max(first, second).bit_length()
    blocks, sizes = -(-max(max(nodes) + max(most, 1), count) // BLOCK), (count, most, first, second, steps, lengths[0])
    write_tables[blocks, walks](packed, order, ends, begins, sums, *sizes, BLOCK=BLOCK)
    return packed
