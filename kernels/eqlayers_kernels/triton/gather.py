"""Adds up the pieces of nodes whose edges were cut; see edges.py."""

import triton
import triton.language as tl


# the table begins anywhere in a buffer
@triton.jit(do_not_specialize=["num_nodes", "width"], do_not_specialize_on_alignment=["room"])
def add_pieces(
    rows,  # [nodes, width]
    pieces,  # [spare, width]
    room,  # [nodes + 1]
    num_nodes,
    width,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Overwrite the row of every node that has pieces with their sum, in a fixed order."""
    node = (tl.program_id(0) % num_nodes).to(tl.int64)
    first = tl.load(room + node)
    stop = tl.load(room + node + 1)
    if first < stop:
        column = (tl.program_id(0) // num_nodes) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        total = tl.zeros((BLOCK,), rows.dtype.element_ty)
        for piece in tl.range(first, stop, AT_ONCE):  # a hub has a thousand
            some = piece + tl.arange(0, AT_ONCE)[:, None]
            mask = (some < stop) & inside[None, :]
            total += tl.sum(tl.load(pieces + some * width + column[None, :], mask=mask, other=0.0), 0)
        tl.store(rows + node * width + column, total, mask=inside)
