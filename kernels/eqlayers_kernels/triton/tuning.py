"""Block sizes of the segment kernel: one table, a row per op.

A row bounds the tile; the channel counts choose within it. The length of the batch has no say, so that a new batch
size compiles nothing. At these bounds no kernel spills registers on sm_80, sm_90 or gfx942 (tests/kernels compile
them); their run times have not been measured.
"""

from __future__ import annotations

from typing import NamedTuple

#: Programs that fill a large GPU a few times over: how many pieces a sum over the batch is cut into. A constant, not
#: the number of multiprocessors: sums must not change from card to card.
PROGRAMS = 2048
#: Tiles of the batch that one piece of such a sum covers at least, so that its partial result is worth its traffic.
TILES_PER_CHUNK = 4


class Tuning(NamedTuple):
    """Bounds of one op's tile."""

    block_u: int  # at most this many of channel axis u
    block_v: int  # at most this many of channel axis v
    elements: int  # of the whole tile, batch rows included
    num_warps: int


TABLE = {
    "mul":    Tuning(block_u=128, block_v=1,  elements=512,  num_warps=4),
    "vecsca": Tuning(block_u=128, block_v=1,  elements=512,  num_warps=4),
    "scale":  Tuning(block_u=128, block_v=1,  elements=512,  num_warps=4),
    "inner":  Tuning(block_u=128, block_v=1,  elements=512,  num_warps=4),
    "outer":  Tuning(block_u=16,  block_v=64, elements=1024, num_warps=4),
    "vecmat": Tuning(block_u=8,   block_v=32, elements=512,  num_warps=4),
}  # fmt: skip


#: Options of the compiler, per Triton backend. Left without a bound, ptxas lowers the number of registers for the sake
#: of occupancy and moves a few values to memory; with one it takes what it needs, which is far from the bound.
OPTIONS: dict[str, dict[str, int]] = {"cuda": {"maxnreg": 255}, "hip": {}}


class Blocks(NamedTuple):
    """The tile of one kernel."""

    n: int
    u: int
    v: int
    num_warps: int


def blocks(op: str, width_u: int, width_v: int, *, batched: bool, double: bool) -> Blocks:
    """The tile for an op with channel axes of these lengths.

    Args:
        op: A row of :data:`TABLE`.
        width_u, width_v: Lengths of the channel axes; 1 where the op has no such axis.
        batched: Whether either operand has a batch axis.
        double: Whether sums are formed in float64, whose registers are twice as large.

    Returns:
        Powers of two.

    Example:
        >>> blocks("mul", 60, 1, batched=True, double=False)
        Blocks(n=8, u=64, v=1, num_warps=4)
    """
    row = TABLE[op]
    u, v = min(_power(width_u), row.block_u), min(_power(width_v), row.block_v)
    n = max(1, row.elements // (u * v * (2 if double else 1))) if batched else 1
    return Blocks(n, u, v, row.num_warps)


def chunks(tiles: int, others: int) -> int:
    """Pieces that a sum over ``tiles`` tiles of the batch is cut into, beside ``others`` programs per tile.

    Example:
        >>> chunks(3, 10), chunks(10_000, 16), chunks(10_000, 5000)
        (1, 128, 1)
    """
    return max(1, min(-(-tiles // TILES_PER_CHUNK), PROGRAMS // max(1, others)))


def _power(width: int) -> int:
    return 1 << max(0, width - 1).bit_length()


#: Registers of a thread that printed kernels plan with, of 255: the rest goes to addresses and to what ptxas needs.
REGISTERS = 170
#: Loads and stores of one printed kernel at most: the time to compile grows faster than their number.
ACCESSES = 80
#: Most channels that one thread of a printed kernel holds; wide loads need several.
CHANNELS_PER_THREAD = 4
#: Threads of one program of a printed kernel: one warp, so that sums over channels need no barrier.
LANES = 32
#: Rows that one program walks where nothing is summed over rows.
ROWS = 4
#: Programs that a sum over rows is cut into at most; each leaves a row of partial sums.
SUMMED_CHUNKS = 1024
#: Steps of the loop over rows whose loads are under way at once.
STAGES = 2


def fits(vectors: int, scalars: int, accesses: int, channels: int, double: bool) -> bool:
    """Whether a kernel holds so many values at once, for two channels per thread where there are as many.

    Example:
        >>> fits(60, 20, 70, 128, False), fits(90, 20, 70, 128, False), fits(60, 20, 90, 128, False)
        (True, False, False)
    """
    if accesses > ACCESSES:
        return False
    per_thread = min(2, max(1, channels // LANES))
    return (vectors * per_thread + scalars) * (2 if double else 1) <= REGISTERS


def channel_block(vectors: int, scalars: int, channels: int, double: bool) -> int:
    """Channels of one program: as many per thread as the registers allow.

    Example:
        >>> channel_block(20, 10, 128, False), channel_block(60, 20, 128, False), channel_block(5, 5, 7, False)
        (128, 64, 32)
    """
    per_thread = CHANNELS_PER_THREAD
    while per_thread > 1 and (
        per_thread * LANES > _power(max(channels, LANES))
        or (vectors * per_thread + scalars) * (2 if double else 1) > REGISTERS
    ):
        per_thread //= 2
    return per_thread * LANES


def row_chunk(rows: int, summed: bool) -> int:
    """Rows that one program walks; where it sums over them, so many that the partial sums stay few.

    Example:
        >>> row_chunk(100_000, False), row_chunk(100_000, True), row_chunk(0, True)
        (4, 98, 1)
    """
    return max(1, -(-rows // SUMMED_CHUNKS)) if summed else ROWS
