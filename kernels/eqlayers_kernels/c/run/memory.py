"""Large pages for large results: the first touch of fresh memory otherwise takes longer than the kernel itself.

A result of tens of MB is fresh memory in every call; the kernel of the operating system hands it out in pages of 4 KiB,
one interruption each, unless it is told that pages of 2 MiB will do.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

HUGE_PAGE = 2 << 20
WORTH_BYTES = 2 * HUGE_PAGE
_MADV_HUGEPAGE = 14


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise.restype = ctypes.c_int
    return madvise


def advise_huge_pages(address: int, size: int) -> None:
    """Ask the system for large pages for ``size`` bytes from ``address``; nothing changes if it refuses."""
    first = -(-address // HUGE_PAGE) * HUGE_PAGE
    whole = (address + size - first) // HUGE_PAGE * HUGE_PAGE
    if whole >= HUGE_PAGE and (madvise := _madvise()) is not None:
        madvise(first, whole, _MADV_HUGEPAGE)
