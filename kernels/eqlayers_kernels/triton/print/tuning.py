"""Block sizes of the segment kernel by op, and the resources that printed kernels may use by architecture.

A row bounds the tile; the channel counts choose within it. The length of the batch does not matter, so a new batch size
compiles nothing. At these bounds no kernel of the published problems spills registers on sm_80, sm_90, sm_100 or
gfx942 (tests/kernels and printed_kernels.py of the studies compile them); their run times have not been measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

#: Number of parts that a sum over the batch is divided into, enough to fill a large GPU a few times. A constant, not
#: the number of multiprocessors: sums must not change from card to card.
PROGRAMS = 2048
#: Least tiles of the batch in one part of such a sum, so that its partial result is worth its traffic.
TILES_PER_CHUNK = 4


class Tuning(NamedTuple):
    """Bounds of the tile of one op of the segment kernel."""

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


#: Shares of the registers that kernels are planned for if they do not compile with all.
FEWER = (2 / 3, 1 / 2)


class Processor(NamedTuple):
    """The resources of an architecture for one program of a printed kernel, and how it is compiled."""

    lanes: int  # threads of a program: one warp, so that sums over channels need no barrier
    registers: int  # of a thread, for values; the rest is for addresses and the compiler
    wide: int  # the same for kernels with more than two channels per thread, which hold more than is counted
    second: int  # the same for second derivatives, of which values and their derivatives are alive together
    narrow: int  # the most of these where operands have 2 bytes: some are then read without a pipeline, into registers
    accesses: int  # loads and stores of a kernel: loads of the next row are on their way, in registers or shared memory
    most_registers: int  # that no compiled kernel may exceed (printed_kernels.py of the studies), for occupancy
    shared_bytes: int  # that no compiled kernel may exceed: what a program has if the registers bound their number
    #: Steps of the loop over rows that overlap, as Triton counts them: with 3 on CUDA, operands of the next row are
    #: on their way while this one is computed, and the edge after that is looked up.
    stages: int
    #: Options of Triton's compiler. Without a bound, ptxas lowers the number of registers for occupancy and spills some
    #: values; with a bound it uses as many as it needs.
    options: dict[str, int]
    fused: bool = True  # whether products and sums are contracted; releases of Triton differ in the default

    def planned(self, order: int, itemsize: int) -> Processor:
        """The resources for kernels of an order of derivative and an operand size in bytes."""
        most = self.narrow if itemsize < 4 else self.registers
        return self._replace(registers=min(most, self.second if order == 2 else self.registers))


#: By Triton backend, and for sm_100 and newer. A multiprocessor of sm_90 has 64 Ki registers, for 8 programs within
#: these bounds, and 228 KiB of shared memory, of which every program takes one more, for 7; sm_80 has 164 KiB, for 5.
#: From sm_100 on products of pairs are packed, which holds more. A SIMD of gfx942 has 512 registers of 64 lanes, for 2.
PROCESSORS = {
    "cuda":   Processor(32, 225, 140, 210, 180, 200, 255, 28 * 1024, 3, {"maxnreg": 255}),
    "sm_100": Processor(32, 200, 140, 190, 135, 200, 255, 28 * 1024, 3, {"maxnreg": 255}),
    "hip":    Processor(64, 108, 100, 108, 108,  74, 256, 28 * 1024, 2, {}),
}  # fmt: skip


def processor(backend: str, arch: int | str, release: tuple[int, ...] = ()) -> Processor:
    """The resources of an architecture, by Triton's number or name; ``release`` is Triton's (empty: the newest).

    Triton 3.6 dies of some printed kernels for sm_100 and newer, where it packs products of pairs: an assertion of
    LLVM, "Cannot BITCAST between types of different sizes", which sums that are not contracted avoid.
    """
    newer = backend == "cuda" and int(arch) >= 100
    row = PROCESSORS["sm_100" if newer else backend]
    broken = newer and release and release < (3, 7)
    return row._replace(fused=False, registers=180, second=180) if broken else row  # and holds more


def attempts(on: Processor) -> Iterator[Processor]:
    """Resources to plan kernels for, one after the other until they compile: first all, then fewer registers.

    The last attempt also drops the compiler options, because a bound of registers may make compiling fail.
    """
    yield on
    for share in FEWER:
        registers, wide, second, narrow = (int(share * most) for most in (on.registers, on.wide, on.second, on.narrow))
        options = on.options if share > min(FEWER) else {}
        yield on._replace(registers=registers, wide=wide, second=second, narrow=narrow, options=options)


class Tile(NamedTuple):
    """The tile of one launch of the segment kernel: rows, channels u and v, and warps."""

    n: int
    u: int
    v: int
    num_warps: int


def blocks(op: str, width_u: int, width_v: int, *, batched: bool, double: bool) -> Tile:
    """The tile, in powers of two, of a row of :data:`TABLE` for channel axes of these lengths (1 without the axis)."""
    row = TABLE[op]
    u, v = min(_power(width_u), row.block_u), min(_power(width_v), row.block_v)
    n = max(1, row.elements // (u * v * (2 if double else 1))) if batched else 1
    return Tile(n, u, v, row.num_warps)


def chunks(tiles: int, others: int) -> int:
    """Number of parts of a sum over ``tiles`` tiles of the batch, with ``others`` programs per tile."""
    return max(1, min(-(-tiles // TILES_PER_CHUNK), PROGRAMS // max(1, others)))


def _power(width: int) -> int:
    return 1 << max(0, width - 1).bit_length()


#: What a load or store in the loop issues, roughly: a copy, its address, and the read of the copied data.
ISSUED_PER_ACCESS = 3
#: Bytes that the last cache of an H200 delivers while its schedulers issue one instruction: 5.5e12 / (528 * 1.755e9).
BYTES_PER_INSTRUCTION = 6
#: The same while its units for shared memory and exchanges between lanes serve one request: 5.5e12 / (132 * 1.755e9).
BYTES_PER_REQUEST = 24
#: The same, for each of 160,000 edges, in the 10 us that one more kernel takes to begin and to end.
BYTES_PER_KERNEL = 350
#: Ratio of estimated work below which fewer kernels are preferred.
CLOSE = 1.03
#: Loads and stores of a kernel of a formula, whose loads are not overlapped with the loop's arithmetic.
FORMULA_ACCESSES = 200
#: Loads of a formula's kernel that may be on their way together.
FORMULA_RUN = 16
#: Registers of a formula's kernel beside its values.
FORMULA_POINTERS = 4
#: Registers of a formula's kernel that its values take at most; with more, second derivatives of sums over rows spill.
FORMULA_REGISTERS = 190
#: Register bounds of ptxas for a formula's kernels: with more it loads ahead and spills. The second is for sums over
#: rows, and for kernels whose values take more registers than the third.
FORMULA_MAXNREG, FORMULA_MAXNREG_OF_MANY, FORMULA_MANY = 192, 240, 184
#: Most work of a formula's kernels, relative to the least, that is accepted for more channels per thread.
TWICE = 1.25
#: For a program that sums the rows of a node: most columns, and least rows and elements that it reads at once.
SUMMED_COLUMNS, SUMMED_AT_ONCE, SUMMED_ELEMENTS = 128, 8, 128
#: Warps of a program whose lanes are rows of the batch.
LANE_WARPS = 4
#: Most channels that one thread of a printed kernel holds; wide loads need several.
CHANNELS_PER_THREAD = 4
#: Rows per program if nothing is summed over rows.
ROWS = 4
#: Most programs of a sum over rows; each writes a row of partial sums.
SUMMED_CHUNKS = 1024
#: Programs of one launch that sum over edges, each into a row of its own; the next launch adds to the same rows.
SUMMED_SEGMENTS = 4096


class Cost(NamedTuple):
    """Estimated resources of a kernel: values held at once, loads and stores."""

    vectors: int  # values over channels
    scalars: int
    accesses: int  # loads and stores
    loads: int = 0  # of the next row of the loop, over channels; on CUDA they wait in shared memory
    numbers: int = 0  # the same without channels

    def registers(self, per_thread: int, double: bool) -> int:
        """Registers of a thread with ``per_thread`` channels."""
        return (self.vectors * per_thread + self.scalars) * (2 if double else 1)

    def shared(self, per_thread: int, double: bool, on: Processor) -> int:
        """Bytes of shared memory of a program for prefetched rows, with ``per_thread`` channels per thread."""
        return (self.loads * per_thread * on.lanes + self.numbers) * (8 if double else 4) * (on.stages - 1)


def fits(cost: Cost, channels: int, double: bool, on: Processor, most: int = 2) -> bool:
    """Whether one kernel has enough registers and shared memory, with up to ``most`` channels per thread."""
    per_thread = min(1 if double else most, max(1, channels // on.lanes))
    held = cost.registers(per_thread, double) <= on.registers and cost.shared(per_thread, double, on) <= on.shared_bytes
    return held and cost.accesses <= on.accesses


def channel_block(cost: Cost, channels: int, double: bool, on: Processor) -> int:
    """Channels of one program: as many per thread as the registers allow."""
    per_thread = CHANNELS_PER_THREAD
    while per_thread > 1 and (
        per_thread * on.lanes > _power(max(channels, on.lanes))
        or cost.registers(per_thread, double) > (on.wide if per_thread > 2 else on.registers)
        or cost.shared(per_thread, double, on) > on.shared_bytes
    ):
        per_thread //= 2
    return per_thread * on.lanes


def formula_options(on: Processor, sums: bool, held: int) -> dict[str, int]:
    """Options of Triton's compiler for a kernel of a formula that holds ``held`` registers, with ``sums`` over rows."""
    bound = FORMULA_MAXNREG_OF_MANY if sums or held > FORMULA_MANY else FORMULA_MAXNREG
    return {**on.options, **({"maxnreg": bound} if "maxnreg" in on.options else {})}


def row_chunk(rows: int, summed: bool) -> int:
    """Rows of one program; if it sums over them, as many as keep the partial sums few.

    Example:
        >>> row_chunk(100_000, False), row_chunk(100_000, True), row_chunk(0, True)
        (4, 98, 1)
    """
    return max(1, -(-rows // SUMMED_CHUNKS)) if summed else ROWS
