"""Launch tables: block sizes of the segment kernel by op, and what printed kernels may take by architecture.

A row bounds the tile; the channel counts choose within it. The length of the batch has no say, so that a new batch
size compiles nothing. At these bounds no kernel of the published problems spills registers on sm_80, sm_90, sm_100 or
gfx942 (tests/kernels and printed_kernels.py of the studies compile them); their run times have not been measured.
"""

from __future__ import annotations

from collections.abc import Iterator
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


#: Shares of the registers that are planned with where kernels do not compile.
FEWER = (2 / 3, 1 / 2)


class Processor(NamedTuple):
    """The resources of an architecture for one program of a printed kernel, and how it is compiled."""

    lanes: int  # threads of a program: one warp, so that sums over channels need no barrier
    registers: int  # of a thread, that kernels are planned with; the rest goes to addresses and to the compiler's needs
    wide: int  # the same for kernels with more than two channels per thread, which hold more than is counted
    second: int  # the same for second derivatives, of which values and their derivatives are alive together
    narrow: int  # the most of these where operands have 2 bytes: some are then read without a pipeline, into registers
    accesses: int  # loads and stores of a kernel: loads of the next row are on their way, in registers or shared memory
    most_registers: int  # that no compiled kernel may exceed (printed_kernels.py of the studies), for occupancy
    shared_bytes: int  # that no compiled kernel may exceed: what a program has if the registers bound their number
    #: Steps of the loop over rows that overlap, as Triton counts them: with 3 on CUDA, operands of the next row are
    #: on their way while this one is computed, and the edge after that is looked up.
    stages: int
    #: Of Triton's compiler. Left without a bound, ptxas lowers the number of registers for the sake of occupancy and
    #: moves a few values to memory; with one it takes what it needs, which is far from the bound.
    options: dict[str, int]
    fused: bool = True  # whether products and sums are contracted; releases of Triton differ in the default

    def planned(self, order: int, itemsize: int) -> Processor:
        """The row that kernels of an order of derivative, for operands of so many bytes, are planned with."""
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
    """The row of an architecture, as Triton numbers or names it; ``release`` is Triton's, the newest if empty.

    Triton 3.6 dies of some printed kernels for sm_100 and newer, where it packs products of pairs: an assertion of
    LLVM, "Cannot BITCAST between types of different sizes", which sums that are not contracted avoid.

    Example:
        >>> processor("cuda", 90).lanes, processor("hip", "gfx942").lanes
        (32, 64)
        >>> processor("cuda", 100).fused, processor("cuda", 100, (3, 6)).fused
        (True, False)
    """
    newer = backend == "cuda" and int(arch) >= 100
    row = PROCESSORS["sm_100" if newer else backend]
    broken = newer and release and release < (3, 7)
    return row._replace(fused=False, registers=180, second=180) if broken else row  # and holds more


def attempts(on: Processor) -> Iterator[Processor]:
    """The rows that kernels are planned with until they compile: first as they should be, then with fewer registers.

    At last the compiler's own options are left out as well: a bound of registers is one more way to fail.
    """
    yield on
    for share in FEWER:
        registers, wide, second, narrow = (int(share * most) for most in (on.registers, on.wide, on.second, on.narrow))
        options = on.options if share > min(FEWER) else {}
        yield on._replace(registers=registers, wide=wide, second=second, narrow=narrow, options=options)


class Tile(NamedTuple):
    """The tile of one kernel."""

    n: int
    u: int
    v: int
    num_warps: int


def blocks(op: str, width_u: int, width_v: int, *, batched: bool, double: bool) -> Tile:
    """The tile, of powers of two, for a row of :data:`TABLE` with channel axes of these lengths, 1 if it has none.

    Example:
        >>> blocks("mul", 60, 1, batched=True, double=False)
        Tile(n=8, u=64, v=1, num_warps=4)
    """
    row = TABLE[op]
    u, v = min(_power(width_u), row.block_u), min(_power(width_v), row.block_v)
    n = max(1, row.elements // (u * v * (2 if double else 1))) if batched else 1
    return Tile(n, u, v, row.num_warps)


def chunks(tiles: int, others: int) -> int:
    """Pieces that a sum over ``tiles`` tiles of the batch is cut into, beside ``others`` programs per tile."""
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
#: What such counts cannot tell apart: of about the same work, fewer kernels are taken.
CLOSE = 1.03
#: Loads and stores of a kernel of a formula, whose loads are not overlapped with the loop's arithmetic.
FORMULA_ACCESSES = 200
#: Loads of a formula's kernel that may be on their way together.
FORMULA_RUN = 16
#: Registers of a formula's kernel beside its values.
FORMULA_POINTERS = 4
#: Registers of a formula's kernel that its values take at most; with more, second derivatives of sums over rows spill.
FORMULA_REGISTERS = 190
#: Bounds of ptxas for a formula's kernels: what it may have, it uses to load ahead, and then moves values to memory.
#: The second is for sums over rows, and for values in more registers than the third, which do not fit the first.
FORMULA_MAXNREG, FORMULA_MAXNREG_OF_MANY, FORMULA_MANY = 192, 240, 184
#: Work of a formula's kernels, relative to the least, that is done for the sake of more channels per thread.
TWICE = 1.25
#: Where one program sums the rows of a node: columns at most, and rows and elements at least that it reads at once.
SUMMED_COLUMNS, SUMMED_AT_ONCE, SUMMED_ELEMENTS = 128, 8, 128
#: Warps of a program whose lanes are rows of the batch.
LANE_WARPS = 4
#: Most channels that one thread of a printed kernel holds; wide loads need several.
CHANNELS_PER_THREAD = 4
#: Rows that one program walks where nothing is summed over rows.
ROWS = 4
#: Programs that a sum over rows is cut into at most; each leaves a row of partial sums.
SUMMED_CHUNKS = 1024
#: Programs of one launch that sum over edges, each into a row of its own; the next launch adds to the same rows.
SUMMED_SEGMENTS = 4096


class Cost(NamedTuple):
    """The values that a kernel holds at once."""

    vectors: int  # values over channels
    scalars: int
    accesses: int  # loads and stores
    loads: int = 0  # of the next row of the loop, over channels; on CUDA they wait in shared memory
    numbers: int = 0  # the same without channels

    def registers(self, per_thread: int, double: bool) -> int:
        """Registers of a thread that has so many channels."""
        return (self.vectors * per_thread + self.scalars) * (2 if double else 1)

    def shared(self, per_thread: int, double: bool, on: Processor) -> int:
        """Bytes of shared memory of a program whose threads have so many channels; two rows are on their way."""
        return (self.loads * per_thread * on.lanes + self.numbers) * (8 if double else 4) * (on.stages - 1)


def fits(cost: Cost, channels: int, double: bool, on: Processor, most: int = 2) -> bool:
    """Whether one kernel can hold so much, for ``most`` channels per thread where there are as many."""
    per_thread = min(1 if double else most, max(1, channels // on.lanes))
    held = cost.registers(per_thread, double) <= on.registers and cost.shared(per_thread, double, on) <= on.shared_bytes
    return held and cost.accesses <= on.accesses


def channel_block(cost: Cost, channels: int, double: bool, on: Processor) -> int:
    """Channels of one program: as many per thread as the registers allow.

    Example:
        >>> on = PROCESSORS["cuda"]
        >>> [channel_block(Cost(*cost, 9), 128, False, on) for cost in ((20, 10), (60, 20))]
        [128, 64]
        >>> channel_block(Cost(5, 5, 9), 7, False, on)
        32
    """
    per_thread = CHANNELS_PER_THREAD
    while per_thread > 1 and (
        per_thread * on.lanes > _power(max(channels, on.lanes))
        or cost.registers(per_thread, double) > (on.wide if per_thread > 2 else on.registers)
        or cost.shared(per_thread, double, on) > on.shared_bytes
    ):
        per_thread //= 2
    return per_thread * on.lanes


def formula_options(on: Processor, sums: bool, held: int) -> dict[str, int]:
    """Options of Triton's compiler for a kernel of a formula, with sums over rows or not, and so many registers."""
    bound = FORMULA_MAXNREG_OF_MANY if sums or held > FORMULA_MANY else FORMULA_MAXNREG
    return {**on.options, **({"maxnreg": bound} if "maxnreg" in on.options else {})}


def row_chunk(rows: int, summed: bool) -> int:
    """Rows that one program walks; where it sums over them, so many that the partial sums stay few.

    Example:
        >>> row_chunk(100_000, False), row_chunk(100_000, True), row_chunk(0, True)
        (4, 98, 1)
    """
    return max(1, -(-rows // SUMMED_CHUNKS)) if summed else ROWS
