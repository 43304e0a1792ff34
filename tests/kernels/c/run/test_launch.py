"""Calls of printed kernels: on torch's threads or the pool, from several threads, after a fork, on far addresses."""

import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.c.print.layout import head
from eqlayers_kernels.c.print.loops import run_function
from eqlayers_kernels.c.print.printer import Kernel
from eqlayers_kernels.c.run import launch, threads
from eqlayers_kernels.forms.program import LAYOUTS
from tests.cases import reserved
from tests.kernels.forking import in_child

SPECS = (("uvu", (9, 1, 0), (3, 5, 3)), ("uuu", (4, 4, 0), (3, 1, 3)))
ROWS = 400


@pytest.fixture(scope="module")
def case(kernels: Any) -> tuple[Kernel, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A kernel of gradients with shared weights, its operands, and its results on one thread in 16 chunks."""
    program = kernels.random_program("mul_ir", True, SPECS)
    kernel = Kernel(program, Task(1, ("x", "y", "w")), "float32", shared=True)
    arrays = kernels.draw(program, "float32", ROWS, shared=True)
    return kernel, arrays, kernels.check(kernel, arrays, chunks=16)


@pytest.fixture(params=["torch's team", "the pool"])
def team(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Both ways to run on several threads; holds which were used."""
    used: list[str] = []
    monkeypatch.setattr(threads, "_pause", {})  # a busy machine may have called for one
    real = threads.parallel()
    if request.param == "the pool":
        monkeypatch.setattr(threads, "parallel", lambda: None)
        real_run = threads.run

        def counted_run(*args: Any, **kwargs: Any) -> None:
            used.append("the pool")
            real_run(*args, **kwargs)

        monkeypatch.setattr(threads, "run", counted_run)
    else:
        if real is None:
            pytest.skip("torch is not linked to an OpenMP runtime with GNU's entry point")

        def counted(*args: int) -> None:
            used.append("torch's team")
            real(*args)

        monkeypatch.setattr(threads, "parallel", lambda: counted)
    yield used
    assert set(used) <= {request.param}


def assert_same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("workers", [2, 3, 7, 40])
def test_the_threads_do_not_change_a_bit(kernels: Any, case: Any, team: list[str], workers: int) -> None:
    kernel, arrays, want = case
    assert_same(kernels.run(kernel, arrays, chunks=16, workers=workers), want)
    assert len(team) == 1


def hand_written(name: str, *lines: str) -> launch.Compiled:
    """A kernel whose chunks run these lines."""
    return launch.Compiled(
        name, ("\n".join(["#define _POSIX_C_SOURCE 199309L\n#include <time.h>", head("float"), run_function(lines)]),)
    )


def test_two_threads_work_at_the_same_time(kernels: Any, team: list[str]) -> None:
    """Each chunk waits until the other has begun: one thread alone waits in vain, and says so."""
    both = hand_written(
        "both",
        "int *const begun = (int *)arg[3];",
        "__atomic_fetch_add(begun, 1, __ATOMIC_SEQ_CST);",
        "const struct timespec nap = {0, 1000000};",
        "for (int i = 0; i < 20000; i++) {",
        "  if (__atomic_load_n(begun, __ATOMIC_SEQ_CST) >= 2) return 0;",
        "  nanosleep(&nap, 0);",
        "}",
        "return 1;",
    )
    begun = np.zeros(1, dtype=np.int32)
    both(2, [begun.ctypes.data, 0], chunks=2, workers=2)
    assert begun[0] == 2
    assert len(team) == 1


@pytest.mark.parametrize("workers", [1, 3])
def test_no_room_for_scratch_is_an_error(kernels: Any, team: list[str], workers: int) -> None:
    failing = hand_written("failing", "return begin <= 5 && 5 < end;")
    with pytest.raises(MemoryError, match="expected room for the scratch of a kernel, found none; free memory"):
        failing(10, [], chunks=10, workers=workers)
    failing(5, [], chunks=5, workers=workers)


@pytest.mark.parametrize("workers", [1, 3])
def test_tables_of_another_graph_are_an_error(kernels: Any, team: list[str], workers: int) -> None:
    failing = hand_written("no_tables", "return begin <= 5 && 5 < end ? 2 : 0;")
    with pytest.raises(IndexError, match="expected the tables of a graph of these sizes, got others; make them with"):
        failing(10, [], chunks=10, workers=workers)
    failing(5, [], chunks=5, workers=workers)


def test_several_python_threads_at_once(kernels: Any, case: Any, team: list[str]) -> None:
    kernel, arrays, want = case
    begin, wrong = threading.Barrier(4), []

    def call() -> None:
        begin.wait(20)
        try:
            for _ in range(10):
                assert_same(kernels.run(kernel, arrays, chunks=16, workers=3), want)
        except BaseException as error:
            wrong.append(error)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert not any(thread.is_alive() for thread in callers)
    assert wrong == []
    assert len(team) == 40


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("before", ["nothing", "torch", "kernels"])
def test_a_forked_child_works_whatever_threads_the_parent_used(kernels: Any, case: Any, before: str) -> None:
    """The threads of the team do not survive the fork, and GNU's runtime would wait for them for ever."""
    kernel, arrays, want = case
    torch.set_num_threads(2)
    if before == "torch":
        torch.randn(1 << 18).sin_()
    elif before == "kernels":
        assert_same(kernels.run(kernel, arrays, chunks=16, workers=2), want)

    def check() -> None:
        assert threads.parallel() is None
        assert_same(kernels.run(kernel, arrays, chunks=16, workers=2), want)

    assert in_child(check) == 0
    assert in_child(lambda: in_child(check) == 0 or os._exit(3)) == 0
    assert_same(kernels.run(kernel, arrays, chunks=16, workers=2), want)  # and the parent goes on


def test_small_work_is_one_chunk_and_shared_gradients_have_as_many_on_any_number_of_threads() -> None:
    small, large = 2 * launch.CHUNK_ELEMENTS - 1, 2 * launch.CHUNK_ELEMENTS
    assert [launch.chunks_for(small, workers, shared) for workers in (1, 8) for shared in (False, True)] == [1] * 4
    assert launch.chunks_for(large, 1, False) == 1
    assert launch.chunks_for(64 * large, 8, False) == launch.CHUNKS_PER_THREAD * 8
    assert launch.chunks_for(large, 8, False) == 2  # no chunk is too small
    assert launch.chunks_for(16 * large, 1, True) == launch.chunks_for(16 * large, 8, True) == launch.SHARED_CHUNKS


def test_the_team_is_left_alone_after_it_waited_for_a_thread_without_a_processor(
    kernels: Any, case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that sleep are as those of a thread that another program keeps from its processor."""
    now = [100.0]
    monkeypatch.setattr(threads, "_pause", {})
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    if threads.parallel() is None:
        pytest.skip("torch is not linked to an OpenMP runtime with GNU's entry point")
    nap = "const struct timespec nap = {0, 20000000}; nanosleep(&nap, 0);"
    sleeping = hand_written("sleeping", nap, "return 0;")
    sleeping(2, [], chunks=2, workers=2)
    assert threads.parallel() is None
    kernel, arrays, want = case
    assert_same(kernels.run(kernel, arrays, chunks=16, workers=2), want)
    now[0] += threads.PAUSE
    assert threads.parallel() is not None


def test_what_a_thread_does_with_its_processor_is_not_waiting() -> None:
    """Work that is uneven keeps a team waiting, too, but its threads have their processors."""
    busy = hand_written(
        "busy",
        "struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);",
        "const int64_t from = t.tv_sec * 1000000000 + t.tv_nsec;",
        "while (t.tv_sec * 1000000000 + t.tv_nsec < from + 30000000)",
        "  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);",
        "return 0;",
    )
    begun = threads.clock()
    packed = (ctypes.c_int64 * 3)(2, 2, 0)
    job = (ctypes.c_int64 * 7)(ctypes.addressof(packed), 2, 0, 0, begun, 0, 0)
    busy._take(ctypes.addressof(job))  # what every thread does
    took = threads.clock() - begun
    assert 60_000_000 <= job[5] <= took
    assert 0 <= job[6] <= took - job[5]


def far_rows(count: int, width: int, step: int) -> np.ndarray:
    """Rows that lie ``step`` float32 apart in memory that is not there until someone touches it."""
    flat = np.frombuffer(reserved(4 * ((count - 1) * step + width)), dtype=np.float32)
    return np.lib.stride_tricks.as_strided(flat, (count, width), (4 * step, 4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_offsets_beyond_32_bits(kernels: Any, layout: str) -> None:
    """Operands and results whose rows are 2^30 elements apart; only the rows themselves are touched."""
    program = kernels.random_program(layout, True, SPECS)
    step = 2**30
    for task in (Task(0, ("z",)), Task(1, ("x", "y", "w"))):
        kernel = Kernel(program, task, "float32")
        arrays = kernels.draw(program, "float32", rows=4)
        want = kernels.run(kernel, arrays)
        inputs, packed = {}, []
        for name, operand in task.pointers:
            inputs[name] = far_rows(4, program.widths["xywz".index(operand)], step)
            if name in arrays:
                inputs[name][...] = arrays[name]
            packed += (inputs[name].ctypes.data, step)
        launch.load(kernel)(4, packed, chunks=2, workers=2, past_caches=True)
        for name, operand in task.pointers[-len(task.results) :]:
            np.testing.assert_array_equal(inputs[name], want[operand])
