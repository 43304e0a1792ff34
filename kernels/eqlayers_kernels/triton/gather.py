"""Adds up the pieces of nodes whose edges were cut; see edges.py."""

import triton
import triton.language as tl


# the table begins anywhere in a buffer
@triton.jit(do_not_specialize=["num_nodes", "width"], do_not_specialize_on_alignment=["room"])
def add_pieces(
    rows,  # [nodes, then pieces, ...] x width
    room,  # [nodes + 1]
    num_nodes,
    width,
    BLOCK: tl.constexpr,
):
    """Overwrite the row of every node that has pieces with their sum, in their order."""
    node = (tl.program_id(0) % num_nodes).to(tl.int64)
    first = tl.load(room + node)
    stop = tl.load(room + node + 1)
    if first < stop:
        column = (tl.program_id(0) // num_nodes) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        total = tl.zeros((BLOCK,), rows.dtype.element_ty)
        for piece in tl.range(first, stop):
            total += tl.load(rows + (num_nodes + piece) * width + column, mask=inside, other=0.0)
        tl.store(rows + node * width + column, total, mask=inside)
