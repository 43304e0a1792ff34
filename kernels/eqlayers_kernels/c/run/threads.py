"""Runs C functions on several threads: on torch's own OpenMP threads, or on a pool.

A pool would fight with torch's threads, which keep spinning for a while after every parallel operator: a kernel that
follows one took twice as long. So kernels run on torch's own team, through the entry point that compilers use, wherever
its library can be found. A second OpenMP runtime would fight for the cores as well.

An OpenMP team waits for all its threads, also for an idle thread whose processor is busy with another program. If that
wait costs more than the thread gains, calls run for a while on the pool: daemon threads that wait on a queue. The
caller always works itself, so a call made while every thread is busy goes on alone: nothing here can deadlock.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
#: Nanoseconds that a thread may be without a processor in any call; waking a thread takes a part of them.
PATIENCE = 500_000
#: Seconds on the pool before the team is tried again.
PAUSE = 1.0

_log = logging.getLogger(__name__)
_pause: dict[str, float] = {}  # 'until': end of the pause, by `time.monotonic`
_imported_in = os.getpid()  # a fork takes the team's threads away; GNU's runtime then waits for them for ever


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


class _Call:
    """One call of `run`: the C function, its job, and the number of the pool's threads that are inside of it."""

    def __init__(self, work: Callable[[int], object], job: int) -> None:
        self.work, self.job = work, job
        self.lock = threading.Lock()
        self.active = 0  # helpers inside `work`
        self.closed = False  # the caller is leaving: no other helper may begin
        self.idle = threading.Semaphore(0)

    def help(self) -> None:
        """Call the C function on a thread of the pool; do nothing if the caller has returned from it."""
        with self.lock:
            if self.closed:
                return
            self.active += 1
        try:
            self.work(self.job)
        finally:
            with self.lock:
                self.active -= 1
                if self.closed and self.active == 0:
                    self.idle.release()

    def lead(self, helpers: int) -> None:
        """Call the C function on the caller's thread, then wait for threads of the pool that are inside of it.

        These still write to the buffers. At most ``helpers`` threads of the pool take part.
        """
        interrupt: KeyboardInterrupt | None = None
        try:
            _pool.get().submit(self, helpers)
            self.work(self.job)
        except KeyboardInterrupt as error:
            interrupt = error
        with self.lock:
            self.closed = True
            busy = self.active > 0
        while busy:
            try:
                self.idle.acquire()
                busy = False
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


class _Pool:
    """Daemon threads that wait for calls; started when first needed, as many as the largest request needs."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[_Call] = SimpleQueue()
        self.lock = threading.Lock()
        self.size = 0

    def submit(self, call: _Call, helpers: int) -> None:
        """Offer a call to at most `helpers` threads."""
        with self.lock:
            while self.size < helpers:
                try:
                    threading.Thread(target=self._serve, name=f"eqlayers-{self.size}", daemon=True).start()
                except RuntimeError:  # the system's limit, or the interpreter is leaving: those there are do the work
                    break
                self.size += 1
        for _ in range(min(helpers, self.size)):
            self.calls.put(call)

    def _serve(self) -> None:
        while True:
            self.calls.get().help()


_pool: PerProcess[_Pool] = PerProcess(_Pool)


def run(work: Callable[[int], object], job: int, threads: int) -> None:
    """Call the C function ``work(job)`` on this thread and, where free, on ``threads - 1`` of the pool.

    ``job`` is the address of a job in chunks. A call of ``work`` takes chunks until none are left, and raises nothing.
    `run` returns once all chunks are done, and may be called from several Python threads at once and after a fork.
    """
    _Call(work, job).lead(threads - 1)


@cache
def _entry() -> Callable[[int, int, int, int], None] | None:
    """``GOMP_parallel`` of the OpenMP runtime that torch is linked to, or None."""
    import torch

    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).with_name("lib") / name
        if path.exists():
            try:
                entry = ctypes.CDLL(str(path)).GOMP_parallel  # looked up in what the library depends on, too
            except (OSError, AttributeError):
                return None
            entry.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            entry.restype = None
            return entry
    return None


def parallel() -> Callable[[int, int, int, int], None] | None:
    """``parallel(function, data, threads, 0)`` calls a C function on every thread of torch's team; None without one.

    None as well in a child forked after this module was imported, where the team's threads are gone, and for a while
    after a call in which the team waited too long (`note`).
    """
    if _pause and time.monotonic() < _pause["until"]:
        return None
    return _entry() if os.getpid() == _imported_in else None


def clock() -> int:
    """Nanoseconds of CLOCK_MONOTONIC, which kernels read as well; 0 on systems without it."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) if hasattr(time, "CLOCK_MONOTONIC") else 0


def note(busy: int, lost: int, workers: int) -> None:
    """Pause the use of torch's threads for `PAUSE` seconds if a kernel on ``workers`` of them mostly waited.

    ``busy`` is the processor time of all threads in that kernel, ``lost`` the longest time that one thread was without
    a processor, both in nanoseconds. The kernel waited if ``lost`` is above `PATIENCE` and above ``busy / workers``.
    `parallel` returns None during the pause, so that kernels run on the pool.
    """
    if lost > PATIENCE and lost > busy / workers:
        _log.debug("kernels run on their own threads for %s s: one of torch's had no processor for %s ns", PAUSE, lost)
        _pause["until"] = time.monotonic() + PAUSE
