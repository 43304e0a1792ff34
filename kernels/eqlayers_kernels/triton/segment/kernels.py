"""The segment loop: one kernel for every sparse product of two operands, and for the sparse scale of one.

A tile is ``[BLOCK_N, BLOCK_U, BLOCK_V]``: rows of the batch and the two channel letters of the family. The first
operand is always a vector over u, and the ops differ only in the letters of the second operand and of the result:

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
