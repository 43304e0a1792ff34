"""Plans of kernels stay within the resources of a processor, with fewer where they do not compile."""

import itertools

from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.print.tuning import PROCESSORS, Cost, attempts, processor
from tests.each import each


def test_numbers_of_two_bytes_and_second_derivatives_have_fewer_registers() -> None:
    """Values held beside the counted ones: reads without a pipeline, and derivatives beside values."""
    for name, row in tuning.PROCESSORS.items():
        planned = {(order, size): row.planned(order, size).registers for order in (0, 1, 2) for size in (2, 4, 8)}
        assert planned[0, 4] == planned[1, 8] == row.registers, name
        assert planned[2, 4] == row.second, name
        assert planned[0, 2] == row.narrow, name
        assert planned[2, 2] == min(row.narrow, row.second), name
    older, newer = (tuning.processor("cuda", arch) for arch in (90, 120))
    assert newer.registers < older.registers
    assert newer.narrow < older.narrow


@each("name", PROCESSORS)
def test_attempts_have_fewer_registers_and_at_last_no_options(name: str) -> None:
    first, second, third = attempts(PROCESSORS[name])
    assert first is PROCESSORS[name]
    for share, row in ((2 / 3, second), (1 / 2, third)):
        for field in ("registers", "wide", "second", "narrow"):
            assert share * getattr(first, field) - 1 < getattr(row, field) <= share * getattr(first, field)
        assert (row.lanes, row.accesses, row.shared_bytes) == (first.lanes, first.accesses, first.shared_bytes)
    assert second.options == first.options
    assert third.options == {}
    assert tuning.formula_options(first, True, 0).get("maxnreg", 0) <= first.most_registers
    assert ("maxnreg" in tuning.formula_options(first, True, 0)) == ("maxnreg" in first.options)


def test_processors_are_found_by_their_number_and_the_release_of_triton() -> None:
    assert processor("cuda", 90) == processor("cuda", "80") == PROCESSORS["cuda"]
    assert processor("cuda", 100) == processor("cuda", 120, (3, 7)) == PROCESSORS["sm_100"]
    assert processor("hip", "gfx942", (3, 6)) == PROCESSORS["hip"]
    older = processor("cuda", 100, (3, 6, 1))
    assert not older.fused
    assert older.registers < PROCESSORS["sm_100"].registers
    assert processor("cuda", 90, (3, 6)).fused


def test_blocks_are_powers_of_two_within_their_bounds() -> None:
    """Tiles of the segment kernel, pieces of sums over the batch, and channels of a program."""
    for op, u, v, batched, double in itertools.product(tuning.TABLE, (1, 7, 64, 1000), (1, 5), (0, 1), (0, 1)):
        row, tile = tuning.TABLE[op], tuning.blocks(op, u, v, batched=bool(batched), double=bool(double))
        assert all(size & (size - 1) == 0 for size in tile[:3])
        assert tile.u <= row.block_u
        assert tile.v <= row.block_v
        assert tile.u == row.block_u or u <= tile.u < 2 * u
        assert tile.n == 1 or tile.n * tile.u * tile.v * (2 if double else 1) <= row.elements
    assert [tuning.chunks(tiles, 1) for tiles in (0, 1, 4, 5, 10**6)] == [1, 1, 1, 2, tuning.PROGRAMS]
    assert tuning.chunks(10**6, 2 * tuning.PROGRAMS) == 1
    for on in PROCESSORS.values():
        sizes = itertools.product((5, 40, 90, 300), (0, 20, 60), (1, 33, 64, 500), (False, True))
        for vectors, loads, channels, double in sizes:
            cost = Cost(vectors, 10, 9, loads=loads)
            per_thread = tuning.channel_block(cost, channels, double, on) // on.lanes
            assert per_thread in (1, 2, 4)
            if per_thread > 1:
                assert cost.registers(per_thread, double) <= on.registers
                assert cost.shared(per_thread, double, on) <= on.shared_bytes
                assert per_thread * on.lanes < 2 * channels, "lanes without channels"
    assert Cost(3, 2, 0).registers(2, True) == 2 * (3 * 2 + 2)
