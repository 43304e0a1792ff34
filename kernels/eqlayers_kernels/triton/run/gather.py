"""Kernels beside printed ones: sums of split nodes, sums of edges at nodes, and permutations of columns."""

import triton
import triton.language as tl


# the table begins anywhere in a buffer
@triton.jit(do_not_specialize=["num_nodes", "width"], do_not_specialize_on_alignment=["workspace_ptr"])
def add_parts(
    rows,  # [nodes, width]
    workspace,  # [workspace rows, width], partial sums of split nodes
    workspace_ptr,  # [nodes + 1], first row of each node in the workspace
    num_nodes,
    width,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Overwrite the row of every split node with the sum of its partial sums, in a fixed order."""
    node = (tl.program_id(0) % num_nodes).to(tl.int64)
    first = tl.load(workspace_ptr + node)
    stop = tl.load(workspace_ptr + node + 1)
    if first < stop:
        column = (tl.program_id(0) // num_nodes) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        total = tl.zeros((BLOCK,), rows.dtype.element_ty)
        for part in tl.range(first, stop, AT_ONCE):  # a hub has a thousand
            some = part + tl.arange(0, AT_ONCE)[:, None]
            mask = (some < stop) & inside[None, :]
            total += tl.sum(tl.load(workspace + some * width + column[None, :], mask=mask, other=0.0), 0)
        tl.store(rows + node * width + column, total, mask=inside)


@triton.jit(
    do_not_specialize=["parts", "count", "width"],
    do_not_specialize_on_alignment=["firsts", "stops", "targets", "edges"],
)
def sum_rows(
    rows,  # [E, width]
    result,  # [count, width]
    workspace,  # [workspace rows, width], partial sums of split nodes
    firsts,  # [parts]
    stops,
    targets,
    edges,  # [E]
    parts,
    count,
    width,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Write the sum of the rows of every part into its node's row, or into the workspace."""
    part = (tl.program_id(0) % parts).to(tl.int64)
    column = (tl.program_id(0) // parts) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    first = tl.load(firsts + part)
    stop = tl.load(stops + part)
    target = tl.load(targets + part)
    total = tl.zeros((AT_ONCE, BLOCK), rows.dtype.element_ty)
    for step in tl.range(first, stop, AT_ONCE):
        some = step + tl.arange(0, AT_ONCE)[:, None]
        exists = some < stop
        edge = tl.load(edges + some, mask=exists, other=0)
        total += tl.load(rows + edge * width + column[None, :], mask=exists & inside[None, :], other=0.0)
    value = tl.sum(total, 0)
    spread = target + tl.zeros((BLOCK,), tl.int64)
    tl.store(result + target * width + column, value, mask=inside & (spread >= 0) & (spread < count))
    tl.store(workspace + (target - count) * width + column, value, mask=inside & (spread >= count))


@triton.jit(do_not_specialize=["count", "width"], do_not_specialize_on_alignment=["columns"])
def permute_columns(
    rows,  # [count, width]
    result,  # [count, width]
    columns,  # [width]
    count,
    width,
    BLOCK: tl.constexpr,
):
    """Write the columns of every row in another order."""
    row = (tl.program_id(0) % count).to(tl.int64)
    column = (tl.program_id(0) // count) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    target = tl.load(columns + column, mask=inside, other=0)
    value = tl.load(rows + row * width + target, mask=inside, other=0.0)
    tl.store(result + row * width + column, value, mask=inside)
