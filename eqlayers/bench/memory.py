"""Peak memory of a call: what it adds, at its worst moment, to what was there before."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..memory import release_memory
from .measure import synchronize

#: The kernel counts pages in batches; smaller peaks are not compared.
RESOLUTION = 2**20
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _resident(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def refusal(device: torch.device) -> str | None:
    """Why peak memory cannot be measured on a device, or None.

    Example:
        >>> refusal(torch.device("cuda"))
    """
    if device.type == "cuda":
        return None
    try:
        _RESET.write_text("5")
    except OSError as error:
        return f"the peak of resident memory cannot be reset here ({error}); Linux with /proc/self/clear_refs can"
    return None


def peak_extra(call: Callable[[], Any], device: torch.device | str = "cpu", repeats: int = 3) -> int:
    """Bytes that a call needs at its peak beyond those in use before it, its results included.

    On a CPU this is growth of resident memory, as the kernel counts it, so that it sees torch, native code and Python
    alike: the allocator first gives back what it holds free (otherwise a call could reuse it unseen), the peak is reset
    to what is resident now, and read again after the call. Memory that the call's code kept from earlier calls does not
    count. The kernel's count is exact to about a megabyte. On a GPU it is what torch's allocator handed out at most.

    Args:
        call: Should do all of its work, forward included, and return its results, which stay alive until the peak
            is read.
        device: Where it works.
        repeats: The median is taken.

    Returns:
        Bytes.

    Example:
        >>> extra = peak_extra(lambda: torch.ones(4_000_000))
        >>> refusal(torch.device("cpu")) is not None or 15e6 < extra < 20e6
        True
    """
    device = torch.device(device)
    call()  # whatever is made once is made now
    found = []
    for _ in range(repeats):
        gc.collect()
        if device.type == "cuda":
            synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            results = call()
            synchronize(device)
            found.append(torch.cuda.max_memory_allocated(device) - before)
        else:
            release_memory()
            _RESET.write_text("5")
            before = _resident("VmRSS")
            results = call()
            found.append(_resident("VmHWM") - before)
        del results
    return max(0, sorted(found)[len(found) // 2])


def free_memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes that can be had without swapping; None where the system does not say.

    Example:
        >>> free_memory() is None or free_memory() > 0
        True
    """
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
