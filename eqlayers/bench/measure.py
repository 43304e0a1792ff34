"""Timing side by side: implementations alternate in one process, so that what the machine does meanwhile hits all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Call = Callable[[], Any]
#: Written before a call, it empties a GPU's last-level cache.
FLUSH_BYTES = 2**30
#: Writes of it before a call, so that the host has issued all launches before the last write ends; and their limit.
COVER, MOST_WRITES = 1.5, 200
COPY_BYTES = {"cpu": 256 * 2**20, "cuda": 2**30}


def flush_buffer(device: torch.device) -> torch.Tensor:
    """The buffer that :func:`alternate` writes to empty a GPU's cache; empty on a CPU."""
    return torch.empty(FLUSH_BYTES if device.type == "cuda" else 0, dtype=torch.uint8, device=device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(call: Call, device: torch.device, flush: torch.Tensor | None, host: bool, writes: int = 1) -> float:
    if device.type != "cuda" or host:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        synchronize(device)
        return seconds
    if flush is not None:
        for _ in range(writes):
            flush.zero_()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    call()
    events[1].record()
    synchronize(device)
    return events[0].elapsed_time(events[1]) / 1000


def _writes(call: Call, device: torch.device, flush: torch.Tensor | None) -> int:
    """How many writes of the buffer take longer than the host needs to issue a call."""
    if flush is None or device.type != "cuda":
        return 1
    host = max(_seconds(call, device, None, host=True) for _ in range(3))
    write = min(_seconds(flush.zero_, device, None, host=False) for _ in range(3))
    return min(MOST_WRITES, max(1, math.ceil(COVER * host / write)))


def alternate(
    calls: Sequence[Call],
    runs: int,
    device: torch.device | str = "cpu",
    *,
    warmup: int = 2,
    flush: torch.Tensor | None = None,
    host: bool = False,
) -> list[list[float]]:
    """Time several calls in turn: one run of each, as often as asked.

    The order is the same in every round, so that a call always finds the caches as the same other one left them.

    Args:
        calls: What is timed.
        runs: Timed runs of each.
        device: On 'cuda', events around a call are timed; its stream is idle before, so that launches count.
        warmup: Runs of each before that are not timed.
        flush: On 'cuda', written before every run, on the stream, until the host has issued the call: empties the
            cache, and launches behind that cost nothing. See :func:`flush_buffer`.
        host: Time until the call returns, whatever the device does then.

    Returns:
        Seconds, ``[calls][runs]``; runs of one number were made in one round.

    Example:
        >>> [len(times) for times in alternate([lambda: 1, lambda: 2], 3)]
        [3, 3]
    """
    device = torch.device(device)
    for _ in range(warmup):
        for call in calls:
            call()
    synchronize(device)
    writes = [_writes(call, device, flush) for call in calls]
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for index, call in enumerate(calls):
            seconds[index].append(_seconds(call, device, flush, host, writes[index]))
    return seconds


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and the 20 % and 80 % quantiles.

    Example:
        >>> summary([3.0, 1.0, 2.0])
        {'median': 2.0, 'q20': 1.4, 'q80': 2.6}
    """
    low, middle, high = (round(float(q), 12) for q in np.quantile(np.asarray(values), (0.2, 0.5, 0.8)))
    return {"median": middle, "q20": low, "q80": high}


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """How many times slower they are, round by round: median and quantiles of the same numbers.

    A ratio of two medians can lie outside the quantiles of the rounds, where few were made.

    Example:
        >>> ratio([4.0, 6.0, 6.0], [2.0, 2.0, 3.0])["median"]
        2.0
    """
    return summary([a / b for a, b in zip(theirs, ours, strict=True)])


def copy_bandwidth(device: torch.device | str = "cpu", runs: int = 15) -> dict[str, float]:
    """Bytes per second of ``torch.Tensor.copy_`` from one large buffer to another, read and written bytes added up.

    Returns:
        Median and quantiles, in bytes per second.
    """
    device = torch.device(device)
    size = COPY_BYTES[device.type]
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    (seconds,) = alternate([lambda: target.copy_(source)], runs, device)
    return summary([2 * size / s for s in seconds])
