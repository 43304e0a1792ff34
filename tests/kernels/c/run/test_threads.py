"""The pool of threads: all work is done when a call returns, whatever goes on around it."""

import ctypes
import os
import signal
import sys
import threading
import time

import pytest

from eqlayers_kernels.c.run import threads
from eqlayers_kernels.c.run.threads import run
from tests.each import each
from tests.kernels.forking import in_child


class Job:
    """Chunks that each call of `take` takes until none are left, and the threads that took them."""

    def __init__(self, chunks):
        self.left, self.taken, self.names = iter(range(chunks)), [], set()

    def take(self, job):
        for index in self.left:
            self.taken.append(index)
            self.names.add(threading.get_ident())


def two_at_once():
    """Each of two threads waits for the other to begin: the caller alone would never get past it."""
    barrier = threading.Barrier(2, timeout=10)
    run(lambda job: barrier.wait(), 0, 2)


@each("workers", [1, 2, 5])
def test_all_chunks_are_done_when_it_returns(workers):
    job = Job(100)
    run(job.take, 0, workers)
    assert sorted(job.taken) == list(range(100))
    assert len(job.names) <= workers


def test_two_threads_work_at_the_same_time():
    two_at_once()


def test_ctypes_functions_run_without_the_lock():
    """A C function runs without the lock: `pthread_barrier_wait` returns only once two threads are in it."""
    libc = ctypes.CDLL(None)
    barrier = (ctypes.c_char * 256)()
    assert libc.pthread_barrier_init(barrier, None, 2) == 0
    libc.pthread_barrier_wait.argtypes = (ctypes.c_void_p,)
    run(libc.pthread_barrier_wait, ctypes.addressof(barrier), 2)


def test_many_python_threads_at_once():
    jobs = [[Job(6) for _ in range(40)] for _ in range(8)]

    def caller(own):
        for job in own:
            run(job.take, 0, 3)
            assert sorted(job.taken) == list(range(6))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        callers = [threading.Thread(target=caller, args=(own,)) for own in jobs]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert all(len(job.taken) == 6 for own in jobs for job in own)


def test_threads_are_kept_and_shared():
    run(Job(10).take, 0, 4)
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("eqlayers-")}
    for _ in range(5):
        run(Job(10).take, 0, 4)
    assert {t.name for t in threading.enumerate() if t.name.startswith("eqlayers-")} == names
    assert len(names) >= 3


def test_a_busy_pool_does_not_delay_a_call_and_never_begins_it_late(monkeypatch):
    monkeypatch.setattr(threads, "_pool", threads.PerProcess(threads._Pool))  # with one thread, which is taken
    inside, leave, calls = threading.Barrier(3, timeout=20), threading.Event(), []

    def block(job):
        inside.wait()
        leave.wait(30)

    other = threading.Thread(target=run, args=(block, 0, 2))
    other.start()
    try:
        inside.wait()
        run(lambda job: calls.append(threading.get_ident()), 0, 2)
    finally:
        leave.set()
        other.join(30)
    two_at_once()  # the thread is free again and has seen the offer
    assert calls == [threading.get_ident()]


def test_no_threads_left_to_start(monkeypatch):
    """At the system's limit of threads the caller does the work."""
    monkeypatch.setattr(threads, "_pool", threads.PerProcess(threads._Pool))
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start")))
    job = Job(5)
    run(job.take, 0, 4)
    assert (sorted(job.taken), job.names) == (list(range(5)), {threading.get_ident()})


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_pool_works_after_a_fork():
    run(lambda job: None, 0, 2)
    assert in_child(two_at_once) == 0
    assert in_child(lambda: in_child(two_at_once) == 0 or os._exit(3)) == 0
    two_at_once()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_is_in_the_loop():
    inside, leave = threading.Event(), threading.Event()

    def work(job):
        inside.set()
        leave.wait(30)

    other = threading.Thread(target=run, args=(work, 0, 2))
    other.start()
    try:
        assert inside.wait(10)
        with threads._pool.get().lock:  # and while the pool is growing
            assert in_child(two_at_once) == 0
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
@pytest.mark.parametrize("later", [0.0, 0.1], ids=["at work", "while waiting"])
def test_an_interrupt_waits_for_running_chunks(later):
    """Ctrl-C in the caller: helpers still write to the operands, so `run` returns only after they are done."""
    main, done, begun = threading.get_ident(), [], threading.Barrier(2, timeout=20)

    def work(job):
        begun.wait()
        if threading.get_ident() != main:
            time.sleep(later)
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.2)
            done.append(job)
        elif not later:
            time.sleep(0.1)

    with pytest.raises(KeyboardInterrupt):
        run(work, 0, 2)
    assert len(done) == 1


@pytest.mark.parametrize(
    ("busy", "lost", "pauses"),
    [(10**6, 2 * 10**6, True), (10**7, 2 * 10**6, False), (10**4, 10**5, False), (0, 0, False)],
)
def test_a_short_wait_beside_the_work_is_none(
    monkeypatch: pytest.MonkeyPatch, busy: int, lost: int, pauses: bool
) -> None:
    """The pool is for calls that a thread without a processor makes longer than its absence would."""
    pause: dict[str, float] = {}
    monkeypatch.setattr(threads, "_pause", pause)
    threads.note(busy, lost, 2)
    assert bool(pause) == pauses


def test_the_team_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that was forked has no team: its threads are in the parent alone."""
    now = [100.0]
    monkeypatch.setattr(threads, "_pause", {})
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads, "_entry", lambda: print)
    assert threads.parallel() is print
    threads.note(busy=0, lost=threads.PATIENCE + 1, workers=2)
    assert threads.parallel() is None
    now[0] += 0.9 * threads.PAUSE
    assert threads.parallel() is None
    now[0] += 0.1 * threads.PAUSE
    assert threads.parallel() is print
    monkeypatch.setattr(threads, "_imported_in", threads._imported_in + 1)
    assert threads.parallel() is None


def test_every_thread_of_the_team_calls_the_function_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_pause", {})
    team = threads.parallel()
    if team is None:
        pytest.skip("torch is not linked to an OpenMP runtime with GNU's entry point")
    calls: list[tuple[int, int]] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: calls.append((data, threading.get_native_id())))
    team(ctypes.cast(function, ctypes.c_void_p).value, 77, 3, 0)
    assert [data for data, _ in calls] == [77] * 3
    assert len({thread for _, thread in calls}) == 3
    assert 0 < threads.clock() <= threads.clock()
