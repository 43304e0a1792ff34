"""Reports that kernels are being compiled, once a process has waited two seconds for its compiler.

Without a listener the report is one line of `logging`. A command sets a listener, which shows a progress bar.
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

#: Returns where compiled kernels are stored, as a phrase; called only when a message is printed.
Location = Callable[[], str]
#: Called with the numbers of compiled kernels and of kernels given to a compiler so far, and with the location.
Listener = Callable[[int, int, Location], None]


def sentence(location: Location, number: int | None = None) -> str:
    """The message: the number of kernels if it is known, and the folder in which they are stored."""
    return f"compiling {'' if number is None else f'{number} '}kernels, once; {location()}"


def _log_once(done: int, started: int, location: Location) -> None:
    if done < started and not _logged.get():
        _logged.get().append(True)
        _log.warning(sentence(location, started if started > done + 1 else None))


class _Count:
    """Counts kernels and seconds of compiling for one listener."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.done = self.started = 0
        self.seconds, self.since = 0.0, 0.0
        self.location: Location = str
        self.reported = False
        self.timer: threading.Timer | None = None
        self.lock = threading.RLock()

    def begin(self, location: Location) -> None:
        """Count a kernel that is given to the compiler."""
        with self.lock:
            self.location = location
            if self.done == self.started:
                self.since = time.monotonic()
                if not self.reported:
                    self.timer = threading.Timer(max(0.0, PATIENCE - self.seconds), self._report)
                    self.timer.daemon = True
                    self.timer.start()
            self.started += 1
            if self.reported:
                self.listener(self.done, self.started, self.location)

    def end(self) -> None:
        """Count a kernel that is compiled."""
        with self.lock:
            self.done += 1
            if self.done == self.started:
                self.seconds += time.monotonic() - self.since
                if self.timer is not None:
                    self.timer.cancel()
            if self.reported:
                self.listener(self.done, self.started, self.location)

    def _report(self) -> None:
        with self.lock:
            if self.done < self.started and not self.reported:
                self.reported = True
                self.listener(self.done, self.started, self.location)


_logged: PerProcess[list[bool]] = PerProcess(list)
_counts: PerProcess[list[_Count]] = PerProcess(lambda: [_Count(_log_once)])
_slots: PerProcess[threading.Semaphore] = PerProcess(lambda: threading.Semaphore(cores()))


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def listening(listener: Listener) -> Iterator[_Count]:
    """A block that calls ``listener`` once compiling in it took two seconds, then for each kernel; yields the count."""
    counts = _counts.get()
    counts.append(_Count(listener))
    try:
        yield counts[-1]
    finally:
        counts.pop()


@contextmanager
def compilation(location: Location) -> Iterator[None]:
    """A block around the compilation of one kernel; ``location()`` names the folder in which it is stored."""
    count = _counts.get()[-1]
    count.begin(location)
    try:
        yield
    finally:
        count.end()


@contextmanager
def slot() -> Iterator[None]:
    """A block around one run of the compiler: as many at a time as there are processors."""
    with _slots.get():
        yield
