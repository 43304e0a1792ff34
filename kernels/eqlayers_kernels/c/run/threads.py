"""A pool of threads for C functions that ctypes calls without Python's lock.

There is no OpenMP here: a second OpenMP runtime beside torch's makes the two fight for the cores. A few daemon threads
wait on a queue. The caller always works itself, so a call made while every thread is busy goes on alone instead of
waiting for one: nothing here can deadlock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

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


class _Call:
    """One call of `run`, which the caller and helpers from the pool work on."""

    def __init__(self, work: Callable[[int], object], job: int) -> None:
        self.work, self.job = work, job
        self.lock = threading.Lock()
        self.active = 0  # helpers inside `work`
        self.closed = False  # the caller is leaving: no other helper may begin
        self.idle = threading.Semaphore(0)

    def help(self) -> None:
        """The share of a thread of the pool; nothing if the caller has left."""
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
        """The share of the caller, who then waits for helpers that have begun: they still write to the buffers."""
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
