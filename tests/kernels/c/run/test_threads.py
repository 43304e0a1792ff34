"""The parallel loop: every item once, on several threads, whatever goes on around it."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import weakref

import pytest

from eqlayers_kernels.c.run import threads
from eqlayers_kernels.c.run.threads import run
from tests.each import each


def collect(total, chunks, workers):
    """The pieces that `run` asked for, in the order of their begin, and the threads that ran them."""
    pieces, names = [], set()

    def fn(begin, end):
        pieces.append((begin, end))
        names.add(threading.get_ident())

    run(fn, (), total, chunks, workers)
    return sorted(pieces), names


@each("workers", [1, 2, 5])
@each("total, chunks", [(0, 3), (1, 1), (1, 8), (7, 3), (100, 7), (8, 8), (2**40 + 3, 5)])
def test_pieces_cover_the_range_once(total, chunks, workers):
    pieces, _ = collect(total, chunks, workers)
    assert len(pieces) == min(chunks, total)
    edges = [0] + [end for _, end in pieces]
    assert [begin for begin, _ in pieces] == edges[:-1]
    assert edges[-1] == total
    assert all(begin < end for begin, end in pieces)
    assert pieces == collect(total, chunks, 3)[0]  # the bounds do not depend on the threads


def test_two_threads_work_at_the_same_time():
    """Each of two chunks waits for the other to begin: a serial loop would never get past the first."""
    barrier = threading.Barrier(2, timeout=20)
    run(lambda begin, end: barrier.wait(), (), 2, 2, 2)


def test_ctypes_functions_run_without_the_lock():
    """A C function runs without the lock: `pthread_barrier_wait` returns only once two threads are in it."""
    libc = ctypes.CDLL(None)
    barrier = (ctypes.c_char * 256)()
    assert libc.pthread_barrier_init(barrier, None, 2) == 0
    run(lambda begin, end: libc.pthread_barrier_wait(barrier), (), 2, 2, 2)


def test_little_work_stays_with_the_caller():
    caller = {threading.get_ident()}
    assert collect(1, 8, 4) == ([(0, 1)], caller)
    assert collect(50, 8, 1)[1] == caller


@pytest.mark.parametrize("bad", [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_bad_numbers(bad):
    with pytest.raises(ValueError, match=r"expected total >= 0 and chunks.* got total=.*; pass"):
        run(lambda begin, end: None, (), *bad)


@pytest.mark.parametrize("in_helper", [True, False])
def test_an_exception_reaches_the_caller_after_all_have_stopped(in_helper):
    caller, running, both = threading.get_ident(), [], threading.Barrier(2, timeout=20)
    begun = []

    def fn(begin, end):
        begun.append(begin)
        running.append(begin)
        if len(begun) <= 2:  # the first of each thread
            both.wait()
        if (threading.get_ident() != caller) == in_helper:
            raise ZeroDivisionError("chunk")
        time.sleep(0.05)
        running.remove(begin)

    with pytest.raises(ZeroDivisionError, match="chunk") as caught:
        run(fn, (), 1000, 1000, 2)
    assert caught.traceback[-1].name == "fn"
    assert len(running) == 1  # the one that raised; the other was waited for
    assert len(begun) < 10  # what had not begun was left out
    assert collect(10, 5, 2)[0][-1] == (8, 10)  # the pool is as good as new


def test_nested_calls_do_not_wait_for_each_other():
    counts, lock = [0] * 64, threading.Lock()

    def inner(base, begin, end):
        with lock:
            for i in range(begin, end):
                counts[base + i] += 1

    run(lambda begin, end: [run(inner, (8 * i,), 8, 4, 3) for i in range(begin, end)], (), 8, 8, 3)
    assert counts == [1] * 64


def test_many_python_threads_at_once():
    results = [[0] * 300 for _ in range(8)]

    def fn(row, begin, end):
        for i in range(begin, end):
            row[i] += i

    def caller(row):
        for _ in range(40):
            run(fn, (row,), 300, 6, 3)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        callers = [threading.Thread(target=caller, args=(row,)) for row in results]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert results == [[40 * i for i in range(300)]] * 8


def test_threads_are_kept_and_shared():
    collect(10, 10, 4)
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("eqlayers-")}
    for _ in range(5):
        collect(10, 10, 4)
    assert {t.name for t in threading.enumerate() if t.name.startswith("eqlayers-")} == names
    assert len(names) >= 3


@pytest.mark.parametrize("fails", ["nowhere", "in the caller", "in a helper"])
def test_operands_are_released(fails):
    """By the pool's threads and by a traceback, without waiting for the garbage collector."""

    class Operand:
        pass

    def use(caller, both):
        operand, captured = Operand(), Operand()

        def fn(operand, begin, end):
            both.wait()
            assert captured is not None
            here = "in the caller" if threading.get_ident() == caller else "in a helper"
            if here == fails:
                raise ZeroDivisionError

        try:
            run(fn, (operand,), 2, 2, 2)
        except ZeroDivisionError:
            assert fails != "nowhere"
        return weakref.ref(operand), weakref.ref(captured)

    gc.disable()
    try:
        kept = use(threading.get_ident(), threading.Barrier(2, timeout=20))
        deadline = time.monotonic() + 5
        while any(operand() is not None for operand in kept) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [operand() for operand in kept] == [None, None]
    finally:
        gc.enable()


def test_a_busy_pool_neither_delays_a_call_nor_keeps_its_operands(monkeypatch):
    class Operand:
        pass

    monkeypatch.setattr(threads, "_pool", threads.PerProcess(threads._Pool))  # with one thread, which is taken
    inside, leave = threading.Barrier(3, timeout=20), threading.Event()

    def block(begin, end):
        inside.wait()
        leave.wait(30)

    other = threading.Thread(target=run, args=(block, (), 2, 2, 2))
    other.start()
    try:
        inside.wait()
        for hidden in (False, True):  # an argument, or held by the function
            operand = Operand()
            gone = weakref.ref(operand)
            if hidden:
                run(lambda begin, end, held=operand: None, (), 2, 2, 2)
            else:
                run(lambda held, begin, end: None, (operand,), 2, 2, 2)
            del operand
            assert gone() is None
        assert collect(4, 4, 2)[1] == {threading.get_ident()}
    finally:
        leave.set()
        other.join(30)


def test_no_threads_left_to_start(monkeypatch):
    """At the system's limit of threads the caller does the work."""
    monkeypatch.setattr(threads, "_pool", threads.PerProcess(threads._Pool))
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start")))
    assert collect(10, 5, 4) == ([(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)], {threading.get_ident()})


def in_child(check):
    """Runs `check` in a forked child, which must end by itself and successfully."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(20)  # a deadlock becomes a failure
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def child_works():
    barrier = threading.Barrier(2, timeout=10)
    run(lambda begin, end: barrier.wait(), (), 2, 2, 2)  # needs a second thread that is alive


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_pool_works_after_a_fork():
    run(lambda begin, end: None, (), 4, 4, 2)
    assert in_child(child_works) == 0
    assert in_child(lambda: in_child(child_works) == 0 or os._exit(3)) == 0
    child_works()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_is_in_the_loop():
    inside, leave = threading.Event(), threading.Event()

    def fn(begin, end):
        inside.set()
        leave.wait(30)

    other = threading.Thread(target=run, args=(fn, (), 2, 2, 2))
    other.start()
    try:
        assert inside.wait(10)
        with threads._pool.get().lock:  # and while the pool is growing
            assert in_child(child_works) == 0
    finally:
        leave.set()
        other.join(30)
    assert not other.is_alive()


@pytest.fixture
def interruptible():
    """A process that a shell starts in the background ignores SIGINT, and so does all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("later", [0.0, 0.1], ids=["in a chunk", "while waiting"])
def test_an_interrupt_waits_for_running_chunks(later):
    """Ctrl-C in the caller: helpers still write to the operands, so `run` returns only after they are done."""
    main, done, begun = threading.get_ident(), [], threading.Barrier(2, timeout=20)

    def fn(begin, end):
        begun.wait()
        if threading.get_ident() != main:
            time.sleep(later)
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.2)
            done.append(begin)
        elif not later:
            time.sleep(0.1)

    with pytest.raises(KeyboardInterrupt):
        run(fn, (), 2, 2, 2)
    assert len(done) == 1
