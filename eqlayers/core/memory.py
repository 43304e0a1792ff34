"""Memory of the process: freed memory is used again, and large results lie in large pages."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

HUGE_PAGE = 2 << 20
WORTH_BYTES = 2 * HUGE_PAGE  # results of fewer bytes are left in small pages
_MADV_HUGEPAGE = 14
# of malloc.h: what `mallopt` sets
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
#: Never trim, never map, and one arena: the arenas of other threads hold 64 MiB, and larger blocks are mapped after
#: all.
_SETTINGS = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))
#: Environment variables with which users configure the allocator.
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")
_TUNABLES = tuple(f"glibc.malloc.{name}" for name in ("trim_threshold", "mmap_max", "mmap_threshold", "arena_max"))
#: A symbol by which another allocator is recognised, its name, and the environment setting that keeps its memory.
_OTHERS = (
    ("MallocExtension_ReleaseFreeMemory", "tcmalloc", None),
    ("mallctl", "jemalloc", ("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1")),
    ("mi_version", "mimalloc", ("MIMALLOC_PURGE_DELAY", "-1")),
)


class KeptMemory(NamedTuple):
    """The result of :func:`keep_memory`.

    Attributes:
        kept: Whether freed memory stays with the process.
        reason: Which allocator it is, and what was set, or why nothing was.
    """

    kept: bool
    reason: str


def keep_memory() -> KeptMemory:
    """Let the process keep memory that is freed: one line that makes large calls on CPUs faster.

    The C library of Linux takes a tensor of more than 32 MiB from the system and gives it back when it is freed, so
    that every such tensor is written to fresh pages: each costs an interruption and is filled with zeros before. With
    this the pages are used again, in every thread. The process then holds what it once needed at most, as on a GPU, and
    more where small tensors that stay lie between large ones that come and go; see :func:`release_memory`. It is a
    setting of the whole process: numpy and other libraries take part.

    The command line does it for all its commands, and so does :class:`eqlayers.integrations.ase.Calculator` unless it
    is told otherwise. Nothing is done where the environment sets the allocator (``MALLOC_TRIM_THRESHOLD_``,
    ``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_MMAP_MAX_``, ``MALLOC_ARENA_MAX``, or the same in ``GLIBC_TUNABLES``), or where
    another allocator is loaded.

    Returns:
        Whether memory is kept now, and why.

    Source:
        mallopt(3): ``M_MMAP_MAX`` 0, ``M_TRIM_THRESHOLD`` -1 and ``M_ARENA_MAX`` 1.

    Example:
        >>> import eqlayers
        >>> eqlayers.keep_memory().reason  # doctest: +SKIP
        'glibc keeps freed memory'
    """
    library = _library()
    for name, allocator, setting in _OTHERS:
        if hasattr(library, name):
            if setting is None or os.environ.get(setting[0]) == setting[1]:
                return KeptMemory(True, f"{allocator} keeps freed memory")
            return KeptMemory(False, f"{allocator} gives memory back after a while; set {'='.join(setting)} to keep it")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    chosen = [*(name for name in _CHOSEN if name in os.environ), *(name for name in _TUNABLES if name in tunables)]
    if chosen:
        return KeptMemory(False, f"left as the environment has it: {', '.join(chosen)}")
    if not hasattr(library, "mallopt"):
        return KeptMemory(False, f"the C library of {platform.system()} has no such setting")
    if not all(library.mallopt(*setting) for setting in _SETTINGS):
        return KeptMemory(False, "the C library refused the setting")
    return KeptMemory(True, "glibc keeps freed memory")


def release_memory() -> bool:
    """Give memory that is free back to the system, once; as ``torch.cuda.empty_cache`` does on a GPU.

    Returns:
        Whether anything was given back; False as well where the C library has no such call.

    Source:
        malloc_trim(3).

    Example:
        >>> isinstance(release_memory(), bool)
        True
    """
    library = _library()
    return bool(hasattr(library, "malloc_trim") and library.malloc_trim(0))


def _library() -> Any:
    """The C library of the process, or None on systems without one."""
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The function ``madvise`` of the C library; None on systems other than Linux."""
    madvise: Any = getattr(_library(), "madvise", None) if sys.platform.startswith("linux") else None
    if madvise is not None:
        madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return madvise


def advise_huge_pages(address: int, size: int) -> None:
    """Ask the system for pages of 2 MiB for ``size`` bytes from ``address``; nothing changes if it refuses.

    A large result is fresh memory in every call. In pages of 4 KiB, its first touch takes longer than a kernel.
    """
    first = -(-address // HUGE_PAGE) * HUGE_PAGE
    whole = (address + size - first) // HUGE_PAGE * HUGE_PAGE
    if whole >= HUGE_PAGE and (madvise := _madvise()) is not None:
        madvise(first, whole, _MADV_HUGEPAGE)
