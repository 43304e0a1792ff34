"""Runs C functions on torch's own OpenMP threads, through the entry point that compilers use.

A pool of our own would fight with torch's threads, which keep spinning for a while after every parallel operator: a
kernel that follows one took twice as long. So kernels run on torch's own team wherever its library can be found.

An OpenMP team waits for all its threads, also for an idle thread whose processor is busy with another program. If that
wait costs more than the thread gains, calls run for a while on our own pool, which waits only for threads that began.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

#: Nanoseconds that a thread may be without a processor in any call; waking a thread takes a part of them.
PATIENCE = 500_000
#: Seconds on the pool before the team is tried again.
PAUSE = 1.0

_log = logging.getLogger(__name__)
_pause: dict[str, float] = {}  # 'until': end of the pause, by `time.monotonic`
_imported_in = os.getpid()  # a fork takes the team's threads away; GNU's runtime then waits for them for ever


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
    """Run kernels on our own pool for `PAUSE` seconds if a call on ``workers`` threads of torch mostly waited.

    Of that call, in nanoseconds: ``busy`` is the processor time of all threads together, ``lost`` the longest time that
    one thread was without a processor. It waited if ``lost`` is above `PATIENCE` and above ``busy / workers``.
    """
    if lost > PATIENCE and lost > busy / workers:
        _log.debug("kernels run on their own threads for %s s: one of torch's had no processor for %s ns", PAUSE, lost)
        _pause["until"] = time.monotonic() + PAUSE
