"""Work around printed kernels: pieces of nodes whose edges were cut and rows of edges are summed, rows are turned."""

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


@triton.jit(
    do_not_specialize=["pieces", "count", "width"],
    do_not_specialize_on_alignment=["firsts", "stops", "places", "edges"],
)
def sum_rows(
    rows,  # [E, width]
    result,  # [count, width]
    room,  # [spare, width]
    firsts,  # [pieces]
    stops,
    places,
    edges,  # [E]
    pieces,
    count,
    width,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Write the sum of the rows of every piece of a node into the node's row, or into the room."""
    piece = (tl.program_id(0) % pieces).to(tl.int64)
    column = (tl.program_id(0) // pieces) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    first = tl.load(firsts + piece)
    stop = tl.load(stops + piece)
    place = tl.load(places + piece)
    total = tl.zeros((AT_ONCE, BLOCK), rows.dtype.element_ty)
    for step in tl.range(first, stop, AT_ONCE):
        some = step + tl.arange(0, AT_ONCE)[:, None]
        there = some < stop
        edge = tl.load(edges + some, mask=there, other=0)
        total += tl.load(rows + edge * width + column[None, :], mask=there & inside[None, :], other=0.0)
    value = tl.sum(total, 0)
    spread = place + tl.zeros((BLOCK,), tl.int64)
    tl.store(result + place * width + column, value, mask=inside & (spread >= 0) & (spread < count))
    tl.store(room + (place - count) * width + column, value, mask=inside & (spread >= count))


@triton.jit(do_not_specialize=["count", "width"], do_not_specialize_on_alignment=["columns"])
def turn_rows(
    rows,  # [count, width]
    result,  # [count, width]
    columns,  # [width]
    count,
    width,
    BLOCK: tl.constexpr,
):
    """Write the columns of every row in another order; a program has all components of its channels in its cache."""
    row = (tl.program_id(0) % count).to(tl.int64)
    column = (tl.program_id(0) // count) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = tl.load(columns + column, mask=inside, other=0)
    value = tl.load(rows + row * width + place, mask=inside, other=0.0)
    tl.store(result + row * width + column, value, mask=inside)
