"""Timing side by side: implementations alternate in one process, so that what the machine does meanwhile hits all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Call = Callable[[], Any]
#: A GPU's last-level cache is at most this large: writing as much empties it.
FLUSH_BYTES = 256 * 2**20
COPY_BYTES = {"cpu": 256 * 2**20, "cuda": 2**30}


def _seconds(call: Call, device: torch.device, flush: torch.Tensor | None) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    if flush is not None:
        flush.zero_()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    call()
    events[1].record()
    torch.cuda.synchronize(device)
    return events[0].elapsed_time(events[1]) / 1000


def alternate(
    calls: Sequence[Call], runs: int, device: torch.device | str = "cpu", *, warmup: int = 2, flushed: bool = False
) -> list[list[float]]:
    """Time several calls in turn: one run of each, in changing order, as often as asked.

    Args:
        calls: What is timed.
        runs: Timed runs of each.
        device: On 'cuda', events are timed instead of the host's clock.
        warmup: Runs of each before that are not timed.
        flushed: On 'cuda', empty the cache before every run.

    Returns:
        Seconds, ``[calls][runs]``; runs of one number were made in one round.

    Example:
        >>> [len(times) for times in alternate([lambda: 1, lambda: 2], 3)]
        [3, 3]
    """
    device = torch.device(device)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device) if flushed and device.type == "cuda" else None
    for _ in range(warmup):
        for call in calls:
            call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(runs):
        order = range(len(calls)) if number % 2 == 0 else reversed(range(len(calls)))
        for index in order:
            seconds[index].append(_seconds(calls[index], device, flush))
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
    """How many times slower they are: ratio of the medians, and quantiles of the ratios round by round.

    Example:
        >>> ratio([4.0, 6.0, 6.0], [2.0, 2.0, 3.0])["median"]
        3.0
    """
    rounds = summary([a / b for a, b in zip(theirs, ours, strict=True)])
    return rounds | {"median": summary(theirs)["median"] / summary(ours)["median"]}


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
