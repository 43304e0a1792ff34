"""Skips one slow pass of Triton's compiler that does not change printed kernels.

``TritonGPUCoalesceAsyncCopy`` looks at every copy into shared memory; its time grows faster than their number (97 % of
mace-first's gradients). Every copy of a printed kernel is of consecutive elements of one row already, and the PTX is
the same without it (tests/kernels/test_ptx.py). Triton has no option for it, and its hook for stages is global.
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
    """A block in which this thread compiles without the slow pass; other threads are not affected."""
    _install()
    before = getattr(_here, "out", False)
    _here.out = True
    try:
        yield
    finally:
        _here.out = before


def _install() -> None:
    """Wrap the pass, once in a process, to skip it in threads inside the block; does nothing without such a pass."""
    from triton._C import libtriton

    ttgpuir = getattr(getattr(libtriton, "passes", None), "ttgpuir", None)
    with _lock:
        original = getattr(ttgpuir, _NAME, None)
        if original is None or getattr(original, "checks_threads", False):
            return

        def add(*args: Any, **options: Any) -> None:
            if not getattr(_here, "out", False):
                original(*args, **options)

        add.checks_threads = True  # type: ignore[attr-defined]
        setattr(ttgpuir, _NAME, add)
