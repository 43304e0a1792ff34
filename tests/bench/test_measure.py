"""The instruments: order of the runs, statistics, memory of torch and of native code, and the head of a result."""

import ctypes
import math
import mmap

import numpy as np
import pytest
import torch

from eqlayers.bench import measure
from eqlayers.bench.measure import (
    RESOLUTION,
    alternate,
    copy_bandwidth,
    describe,
    peak_extra,
    ratio,
    refusal,
    summary,
    threads,
)

MIB = 2**20


def test_calls_alternate_in_the_same_order() -> None:
    order: list[str] = []
    seconds = alternate([lambda: order.append("a"), lambda: order.append("b")], 3, warmup=1)
    assert "".join(order) == "ab" + "ababab"
    assert [len(times) for times in seconds] == [3, 3]


def test_every_call_gets_its_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the calls move."""
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def costs(amount: float) -> None:
        now[0] += amount

    assert alternate([lambda: costs(1.0), lambda: costs(5.0)], 4, warmup=2) == [[1.0] * 4, [5.0] * 4]


def test_a_gpu_is_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that the calls move, and emptying the cache before each of them; waiting is not part of a time."""
    now, flushes = [0.0], []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def elapsed_time(self, end: "Event") -> float:
            return 1000 * (end.at - self.at)

    class Buffer:
        def zero_(self) -> None:
            flushes.append(costs(1000.0))

    def costs(amount: float) -> None:
        now[0] += amount

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: costs(100.0))
    calls = [lambda: costs(1.0), lambda: costs(5.0)]
    assert alternate(calls, 3, "cuda") == [[1.0] * 3, [5.0] * 3]
    assert not flushes
    assert alternate(calls, 3, "cuda", flush=Buffer()) == [[1.0] * 3, [5.0] * 3]
    assert len(flushes) == 2 * (3 + 3)  # timed alone, then before every run: one takes longer than the host
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    assert alternate(calls, 3, "cuda", host=True) == [[1.0] * 3, [5.0] * 3]
    flushes.clear()
    slow_to_issue = [lambda: costs(4500.0)]  # the host takes as long as 4.5 writes
    assert alternate(slow_to_issue, 2, "cuda", flush=Buffer()) == [[4500.0] * 2]
    assert len(flushes) == 3 + 2 * math.ceil(1.5 * 4.5)


def test_ratio_and_its_quantiles_are_of_rounds() -> None:
    theirs, mine = [10.0, 20.0, 60.0], [1.0, 4.0, 3.0]
    ratios = ratio(theirs, mine)
    assert ratios["median"] == pytest.approx(10)
    assert ratios["q20"] == pytest.approx(5 + 0.4 * 5)


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 7])
def test_a_ratio_lies_in_its_own_interval(runs: int) -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        ratios = ratio(*draw.lognormal(size=(2, runs)).tolist())
        assert ratios["q20"] <= ratios["median"] <= ratios["q80"]


def test_summary_of_one() -> None:
    assert summary([5.0]) == {"median": 5.0, "q20": 5.0, "q80": 5.0}


def test_copy_bandwidth_counts_reading_and_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 4096)
    monkeypatch.setattr(measure, "alternate", lambda calls, runs, device: [[2.0] * runs])
    assert copy_bandwidth()["median"] == 4096.0


@pytest.mark.skipif(refusal(torch.device("cpu")) is not None, reason="the kernel cannot reset the peak here")
class TestPeak:
    """The slack is the kernel's: it counts pages in batches."""

    def test_torch(self) -> None:
        size = 64 * MIB
        assert peak_extra(lambda: torch.ones(size // 4)) == pytest.approx(size, abs=RESOLUTION)

    def test_what_is_freed_before_the_end_counts(self) -> None:
        def call() -> torch.Tensor:
            large = torch.ones(64 * MIB // 4)
            return large[:10].clone()

        assert peak_extra(call) == pytest.approx(64 * MIB, abs=RESOLUTION)

    def test_many_small_blocks(self) -> None:
        """The C library keeps such blocks after they are freed; a second call must not find them."""
        assert peak_extra(lambda: [torch.ones(25_000) for _ in range(320)]) == pytest.approx(32e6, abs=2 * RESOLUTION)

    def test_native_allocations(self) -> None:
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]

        def call() -> None:
            block = libc.malloc(32 * MIB)
            ctypes.memset(block, 1, 32 * MIB)
            libc.free(block)

        assert peak_extra(call) == pytest.approx(32 * MIB, abs=RESOLUTION)

    def test_memory_past_the_allocators(self) -> None:
        def call() -> None:
            with mmap.mmap(-1, 32 * MIB) as block:
                block.write(b"\1" * (32 * MIB))

        assert peak_extra(call) >= 32 * MIB  # and the bytes that are written

    def test_nothing(self) -> None:
        assert peak_extra(lambda: None) < RESOLUTION

    def test_an_older_peak_does_not_count(self) -> None:
        torch.ones(64 * MIB)
        assert peak_extra(lambda: torch.ones(8 * MIB // 4)) == pytest.approx(8 * MIB, abs=RESOLUTION)


def test_a_result_says_where_it_comes_from() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        facts = describe()
    assert facts["machine"]["threads"] == before + 1
    assert torch.get_num_threads() == before
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["machine"]["cores"] >= 1
    assert "T" in facts["date"]
