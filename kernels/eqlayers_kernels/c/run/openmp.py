"""The threads that torch already has: its OpenMP runtime, called through the entry point that compilers use.

A pool of our own would fight with torch's threads, which keep spinning for a while after every parallel operator: a
kernel that follows one took twice as long. So kernels run on torch's own team wherever its library can be found.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

_imported_in = os.getpid()  # a fork takes the team's threads away; GNU's runtime then waits for them for ever


@cache
def _entry() -> Callable[[int, int, int, int], None] | None:
    """``GOMP_parallel`` of the OpenMP runtime that torch is linked to, or None."""
    import torch

    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).with_name("lib") / name
        if path.exists():
            try:
                found = ctypes.CDLL(str(path)).GOMP_parallel  # looked up in what the library depends on, too
            except (OSError, AttributeError):
                return None
            found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            found.restype = None
            return found
    return None


def parallel() -> Callable[[int, int, int, int], None] | None:
    """``parallel(function, data, threads, 0)`` calls a C function on every thread of torch's team; None without one.

    None as well in a child forked after this module was imported, where the team's threads are gone.
    """
    return _entry() if os.getpid() == _imported_in else None
