"""A parallel loop over chunks of a range, for C functions that ctypes calls without Python's lock.

There is no OpenMP here: a second OpenMP runtime beside torch's makes the two fight for the cores. A few daemon threads
wait on a queue. The caller always takes chunks itself, so a call made while every thread is busy (from a second Python
thread, or from inside a chunk) goes on alone instead of waiting for one: nothing here can deadlock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that each process creates anew: after a fork, threads are gone and locks may be held."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._values: dict[str, T] = {}
        self._registered = False

    def get(self) -> T:
        """The value of this process; the same object for all its threads."""
        try:
            return self._values["value"]
        except KeyError:
            if not self._registered:  # at the first use and not before: importing changes nothing in the process
                os.register_at_fork(after_in_child=self._values.clear)
                self._registered = True
            return self._values.setdefault("value", self._create())


class _Job:
    """One call of `run`, whose chunks are given in order to the caller and to helper threads."""

    def __init__(self, fn: Callable[..., object], args: tuple[Any, ...], total: int, chunks: int) -> None:
        self.fn, self.args, self.total, self.chunks = fn, args, total, chunks
        self.tickets = iter(range(chunks))  # next() on it is one step under Python's lock
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self.active = 0  # helpers inside `take_chunks`
        self.closed = False  # the caller is leaving: no other helper may begin
        self.idle = threading.Semaphore(0)

    def take_chunks(self) -> None:
        """Run chunks until none is left, or one has failed."""
        for index in self.tickets:
            if self.error is not None:
                return
            self.fn(*self.args, self.total * index // self.chunks, self.total * (index + 1) // self.chunks)

    def help(self) -> None:
        """Run chunks on a thread of the pool; errors are stored for the caller."""
        with self.lock:
            if self.closed:
                return
            self.active += 1
        try:
            self.take_chunks()
        except BaseException as error:
            self.error = self.error or error
        finally:
            with self.lock:
                self.active -= 1
                if self.closed and self.active == 0:
                    self.idle.release()

    def lead(self) -> None:
        """Run chunks on the calling thread, wait for helpers, and raise the first error."""
        try:
            self.take_chunks()
        except BaseException as error:  # KeyboardInterrupt too: helpers must stop before the caller frees anything
            self.error = error
        self._close()
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # else it and its traceback keep each other, and the operands, alive

    def _close(self) -> None:
        """Stop new helpers from beginning, and wait for running ones."""
        with self.lock:
            self.closed = True
            busy = self.active > 0
        while busy:
            try:
                self.idle.acquire()
                busy = False
            except KeyboardInterrupt as error:
                self.error = error  # no new chunks; those that run are waited for
        del self.fn, self.args  # the job may lie in the queue behind a long one; the operands must not live that long


class _Pool:
    """Daemon threads that wait for jobs; started when first needed, as many as the largest request needs."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.lock = threading.Lock()
        self.size = 0

    def submit(self, job: _Job, helpers: int) -> None:
        """Offers `job` to at most `helpers` threads."""
        if self.size < helpers:
            self._grow(helpers)
        for _ in range(min(helpers, self.size)):
            self.jobs.put(job)

    def _grow(self, size: int) -> None:
        with self.lock:
            while self.size < size:
                try:
                    threading.Thread(target=self._serve, name=f"eqlayers-{self.size}", daemon=True).start()
                except RuntimeError:  # the system's limit, or the interpreter is leaving: those there are do the work
                    return
                self.size += 1

    def _serve(self) -> None:
        while True:
            self.jobs.get().help()


_pool: PerProcess[_Pool] = PerProcess(_Pool)


def run(fn: Callable[..., object], args: tuple[Any, ...], total: int, chunks: int, threads: int) -> None:
    """Calls ``fn(*args, begin, end)`` for consecutive chunks of ``[0, total)``, on several threads.

    The bounds depend on `total` and `chunks` alone, never on the number of threads or their timing. May be called from
    several Python threads at once, from inside `fn`, and after a fork. What `fn` returns is dropped: give a C function
    an ``errcheck`` if its status can be an error. ``threads`` counts the caller, too.

    Example:
        >>> out = [0] * 10
        >>> def square(out, begin, end):
        ...     out[begin:end] = [i * i for i in range(begin, end)]
        >>> run(square, (out,), total=10, chunks=3, threads=2)
        >>> out
        [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    """
    if total < 0 or chunks < 1 or threads < 1:
        raise ValueError(
            f"expected total >= 0 and chunks, threads >= 1, got total={total}, chunks={chunks}, threads={threads}; "
            f"pass the number of rows, and torch.get_num_threads() as threads"
        )
    if total == 0:
        return
    chunks = min(chunks, max(1, total))
    if chunks == 1:
        fn(*args, 0, total)
        return
    job = _Job(fn, args, total, chunks)
    if threads > 1:
        _pool.get().submit(job, min(threads, chunks) - 1)
    job.lead()
