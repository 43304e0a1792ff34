"""Kernels that are written by hand: the segment loop of sparse products, sums at nodes, tables of sorted edges.

:func:`segment_kernel` runs every sparse product of two operands, and the sparse scale of one. A tile is
``[BLOCK_N, BLOCK_U, BLOCK_V]``: rows of the batch and the two channel letters of the family. The first operand is
always a vector over u, and the ops differ only in the letters of the second operand and of the result:

    op        second   result   summed
    mul       u        u
    outer     v        u, v
    inner     u                 u
    vecmat    u, v     v        u
    vecsca             u
    scale     (none)   u

so that every op is ``sum += (s * a) * b`` with broadcasting, and what is summed over (u, n) is reduced once, at the
end. Sums are formed in ACC (float32 or float64). Every offset is int64.
"""

import triton
import triton.language as tl

# Sizes and strides change from call to call: nothing may be compiled for their values. A channel stride of 1 is worth a
# kernel of its own (it makes loads contiguous); whether it divides by 16 is not.
_SIZES = ["first", "batch", "chunk", "segments", "width_u", "width_v", "tiles_u", "tiles_v"]
_ROW_STRIDES = ["x_n", "x_m", "y_n", "y_m", "z_n", "z_m"]
_CHANNEL_STRIDES = ["x_u", "y_u", "y_v", "z_u", "z_v"]
_POINTERS = ["x", "y", "z", "scale", "index1", "index2", "seg_out", "gather_index", "index_out"]
#: The same of the kernels that make tables of sorted edges.
_COUNTS = ["count", "total", "longest", "most", "nodes0", "nodes1", "steps", "behind"]


@triton.jit(do_not_specialize=_SIZES + _ROW_STRIDES, do_not_specialize_on_alignment=_CHANNEL_STRIDES + _POINTERS)
def segment_kernel(
    x,  # [N, M1, U]
    y,  # [N, M2, U or V or both or none]; None for op "scale"
    z,  # [N, rows, channels], or [chunks, rows, channels] where the batch is summed
    scale,  # [T] in ACC, or None
    index1,  # [T], or None
    index2,  # [T], or None
    seg_out,  # [segments + 1], or None
    gather_index,  # [seg_out[-1]], or None
    index_out,  # [segments], or None
    first,  # number of the first tile of the batch in this launch
    batch,
    chunk,  # rows of the batch that one program covers, a multiple of BLOCK_N
    segments,
    width_u,
    width_v,
    tiles_u,
    tiles_v,
    x_n,
    x_m,
    x_u,
    y_n,
    y_m,
    y_u,
    y_v,
    z_n,
    z_m,
    z_u,
    z_v,
    OP: tl.constexpr,
    ACC: tl.constexpr,
    BATCHED_X: tl.constexpr,
    BATCHED_Y: tl.constexpr,
    SUM_N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_U: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Sum one segment's terms into one tile of one output row; see the top of this file."""
    SUM_U: tl.constexpr = OP == "inner" or OP == "vecmat"
    Y_HAS_U: tl.constexpr = OP == "mul" or OP == "inner" or OP == "vecmat"
    HAS_V: tl.constexpr = OP == "outer" or OP == "vecmat"

    # All tiles lie along axis 0 of the grid: the other two end at 65535.
    rest = tl.program_id(0)
    v = tl.zeros((1, 1, 1), tl.int32)
    if HAS_V:
        v = ((rest % tiles_v) * BLOCK_V + tl.arange(0, BLOCK_V))[None, None, :]
        rest = rest // tiles_v
    v_in = v < width_v
    v_long = v.to(tl.int64)  # counters are int32 and spare registers, offsets are int64
    u_first = (rest % tiles_u) * BLOCK_U
    rest = rest // tiles_u
    segment = (rest % segments).to(tl.int64)
    tile_n = (rest // segments).to(tl.int64) + first
    n_first = tile_n * chunk
    n_count = tl.minimum(batch - n_first, chunk).to(tl.int32)
    # One step along an axis that is not summed: a constant, so that the loop is compiled away.
    steps_u = 1
    if SUM_U:
        steps_u = tl.cdiv(width_u, BLOCK_U)
    steps_n = 1
    if SUM_N:
        steps_n = tl.cdiv(n_count, BLOCK_N)

    k_first = segment
    k_stop = segment + 1
    if seg_out is not None:
        k_first = tl.load(seg_out + segment).to(tl.int64)
        k_stop = tl.load(seg_out + segment + 1).to(tl.int64)

    lanes_n = tl.arange(0, BLOCK_N)[:, None, None]
    lanes_u = tl.arange(0, BLOCK_U)[None, :, None]
    total = tl.zeros((BLOCK_N, BLOCK_U, BLOCK_V), ACC)
    step_n = 0
    while step_n < steps_n:
        n_in = step_n * BLOCK_N + lanes_n < n_count
        n = n_first + step_n * BLOCK_N + lanes_n
        step_u = 0
        while step_u < steps_u:
            u = u_first + step_u * BLOCK_U + lanes_u
            u_long = u.to(tl.int64)
            x_in = u < width_u
            x_tile = x + u_long * x_u
            if BATCHED_X:
                x_in = x_in & n_in
                x_tile = x_tile + n * x_n
            if OP != "scale":
                y_in = v_in
                y_tile = y + v_long * y_v
                if Y_HAS_U:
                    y_in = y_in & (u < width_u)
                    y_tile = y_tile + u_long * y_u
                if BATCHED_Y:
                    y_in = y_in & n_in
                    y_tile = y_tile + n * y_n
            k = k_first
            while k < k_stop:
                t = k
                if gather_index is not None:
                    t = tl.load(gather_index + k).to(tl.int64)
                i1 = t
                if index1 is not None:
                    i1 = tl.load(index1 + t).to(tl.int64)
                term = tl.load(x_tile + i1 * x_m, mask=x_in, other=0.0).to(ACC)
                if scale is not None:
                    term = term * tl.load(scale + t)
                if OP != "scale":
                    i2 = t
                    if index2 is not None:
                        i2 = tl.load(index2 + t).to(tl.int64)
                    term = term * tl.load(y_tile + i2 * y_m, mask=y_in, other=0.0).to(ACC)
                if SUM_N and not (BATCHED_X and BATCHED_Y):
                    # lanes behind the batch must add nothing, also where the shared operand is not finite
                    term = tl.where(n_in, term, 0.0)
                total += term
                k += 1
            step_u += 1
        step_n += 1

    row = segment
    if index_out is not None:
        row = tl.load(index_out + segment).to(tl.int64)
    z_in = v_in
    z_tile = z + row * z_m + v_long * z_v
    if SUM_U:
        total = tl.sum(total, 1, keep_dims=True)
    else:
        u = u_first + lanes_u
        z_in = z_in & (u < width_u)
        z_tile = z_tile + u.to(tl.int64) * z_u
    if SUM_N:
        total = tl.sum(total, 0, keep_dims=True)
        z_tile = z_tile + tile_n * z_n
    else:
        z_in = z_in & (lanes_n < n_count)
        z_tile = z_tile + (n_first + lanes_n) * z_n
    tl.store(z_tile, total, mask=z_in)


@triton.jit
def smallest_kernel(out):
    """Write one number; compiled to test whether Triton works."""
    tl.store(out, 1.0)


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


@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=["key0", "key1"])
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
    second = tl.program_id(1)
    nodes = tl.where(second == 0, nodes0, nodes1)
    # no comparison of one number in a mask: Triton 3.9 interprets it as an integer, and refuses it
    node = tl.load(key0 + edge, mask=edge < tl.where(second == 0, count, 0), other=0)
    node += tl.load(key1 + edge, mask=edge < tl.where(second == 1, count, 0), other=0)
    key = tl.minimum(tl.maximum(node, -1), nodes) + 1 + second * (nodes0 + 2)
    tl.store(keys + second * count + edge, key.to(keys.dtype.element_ty), mask=edge < count)


@triton.jit(do_not_specialize=_COUNTS)
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


@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=["endpoints"])
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
    """Write the tensors of `TraversalTables` one behind the other, of one or two traversals of E edges.

    The edges sorted by their key are in ``order``, the first edge of each node in ``begins``. ``most`` parts may come
    on top of one for each node, and a search in ``sums`` takes ``steps`` steps.
    """
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
    known = i < tl.where(nodes > 0, length, 0)
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
