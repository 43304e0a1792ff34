"""Says that kernels are being compiled, once a process has waited two seconds for its compiler.

Without a listener that is one line through `logging`. A command sets a listener, which shows a bar.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .c.run.threads import PerProcess

PATIENCE = 2.0  # seconds of compiling before anything is printed
_log = logging.getLogger("eqlayers")

#: Says where the compiled kernels are kept: a few words, looked up only when they are printed.
Place = Callable[[], str]
#: Takes the numbers of kernels that are compiled and that were handed to a compiler so far, and where they are kept.
Listener = Callable[[int, int, Place], None]


def sentence(place: Place, number: int | None = None) -> str:
    """The message: the number of kernels if it is known, and the folder that keeps them."""
    return f"compiling {'' if number is None else f'{number} '}kernels, once; {place()}"


def _log_once(done: int, wanted: int, place: Place) -> None:
    if done < wanted and not _logged.get():
        _logged.get().append(True)
        _log.warning(sentence(place, wanted if wanted > done + 1 else None))


class _Count:
    """Kernels and seconds of one listener."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.done = self.wanted = 0
        self.seconds, self.since = 0.0, 0.0
        self.place: Place = str
        self.told = False
        self.timer: threading.Timer | None = None
        self.lock = threading.RLock()

    def begin(self, place: Place) -> None:
        """A kernel goes to the compiler."""
        with self.lock:
            self.place = place
            if self.done == self.wanted:
                self.since = time.monotonic()
                if not self.told:
                    self.timer = threading.Timer(max(0.0, PATIENCE - self.seconds), self._tell)
                    self.timer.daemon = True
                    self.timer.start()
            self.wanted += 1
            if self.told:
                self.listener(self.done, self.wanted, self.place)

    def end(self) -> None:
        """A kernel came back."""
        with self.lock:
            self.done += 1
            if self.done == self.wanted:
                self.seconds += time.monotonic() - self.since
                if self.timer is not None:
                    self.timer.cancel()
            if self.told:
                self.listener(self.done, self.wanted, self.place)

    def _tell(self) -> None:
        with self.lock:
            if self.done < self.wanted and not self.told:
                self.told = True
                self.listener(self.done, self.wanted, self.place)


_logged: PerProcess[list[bool]] = PerProcess(list)
_counts: PerProcess[list[_Count]] = PerProcess(lambda: [_Count(_log_once)])
_slots: PerProcess[threading.Semaphore] = PerProcess(lambda: threading.Semaphore(cores()))


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def listening(listener: Listener) -> Iterator[_Count]:
    """A block that tells the listener, one call at a time, from its own two seconds on; yields the count."""
    counts = _counts.get()
    counts.append(_Count(listener))
    try:
        yield counts[-1]
    finally:
        counts.pop()


@contextmanager
def compilation(place: Place) -> Iterator[None]:
    """A block around the compilation of one kernel, which is kept in ``place``."""
    count = _counts.get()[-1]
    count.begin(place)
    try:
        yield
    finally:
        count.end()


@contextmanager
def slot() -> Iterator[None]:
    """A block around one run of the compiler: as many at a time as there are processors."""
    with _slots.get():
        yield
