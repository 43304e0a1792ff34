"""Leaves out one pass of Triton's compiler that takes most of the time and changes nothing in printed kernels.

``TritonGPUCoalesceAsyncCopy`` looks at every copy into shared memory; its time grows faster than their number (97 % of
mace-first's gradients). Every copy of a printed kernel is of consecutive elements of one row already, and the PTX is
the same without it (tests/kernels/test_ptx.py). Triton has no option for it; its hook for stages would have to be set
at every launch, of everybody's kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAME = "add_coalesce_async_copy"
_here = threading.local()
_lock = threading.Lock()


@contextmanager
def without_slow_pass() -> Iterator[None]:
    """A block in which this thread compiles without the slow pass; other threads keep it."""
    _install()
    before = getattr(_here, "out", False)
    _here.out = True
    try:
        yield
    finally:
        _here.out = before


def _install() -> None:
    """Ask each thread, once in a process. A Triton without a pass of that name is left as it is."""
    from triton._C import libtriton

    ttgpuir = getattr(getattr(libtriton, "passes", None), "ttgpuir", None)
    with _lock:
        original = getattr(ttgpuir, _NAME, None)
        if original is None or getattr(original, "asks_threads", False):
            return

        def add(*args: Any, **options: Any) -> None:
            if not getattr(_here, "out", False):
                original(*args, **options)

        add.asks_threads = True  # type: ignore[attr-defined]
        setattr(ttgpuir, _NAME, add)
