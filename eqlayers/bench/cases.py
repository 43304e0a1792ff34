"""The part that suites of products and of layers share: a result's head, and the times of one direction of a case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from .measure import Call, alternate, copy_bandwidth, describe, flush_buffer, ratio, refusal, release, summary
from .results import OURS, Record
from .roofline import peak_rate

#: type of device -> kinds of time, and whether the cache is emptied before
KINDS = {"cpu": {"seconds": False}, "cuda": {"seconds": False, "seconds_flushed": True}}


class Suite(Protocol):
    """Cases with their name and device."""

    @property
    def name(self) -> str:
        """Name of the file."""

    @property
    def device(self) -> str:
        """Device of the operands."""

    @property
    def cases(self) -> Sequence[Any]:
        """The cases, in order."""


def start(kind: str, suite: Suite, device: torch.device) -> Record:
    """A result without cases: machine, copy bandwidth, and the peak of multiply-adds by dtype on a CPU."""
    dtypes = list(dict.fromkeys(case.dtype for case in suite.cases))
    return {
        "kind": kind,
        "suite": suite.name,
        **describe(device),
        "device": suite.device,
        "dtype": ", ".join(dtypes),
        "copy_bandwidth": copy_bandwidth(device),
        "peak_rate": {dtype: peak_rate(dtype) if device.type == "cpu" else None for dtype in dtypes},
        "memory_refusal": refusal(device),
        "cases": [],
        "group_goals": [],
    }


def peak_of(head: Record, dtype: str) -> float | None:
    """Sums and products per second of all threads; None if they were not measured."""
    rate = head["peak_rate"].get(dtype)
    return None if rate is None else rate["median"] * head["machine"]["threads"]


def empty_row(
    name: str, layout: str, direction: str, status: str, reason: str, error: float | None, note: str
) -> Record:
    """A result without times."""
    about = {"implementation": name, "layout": layout, "note": note, "direction": direction}
    measured = dict.fromkeys(("seconds", "seconds_flushed", "share", "memory_bytes"))
    return {**about, "status": status, "reason": reason, "error": error, **measured}


def _fits(work: Callable[[], object]) -> bool:
    """Whether the memory suffices for some work."""
    try:
        work()
    except torch.OutOfMemoryError:
        return False
    return True


def time_rows(
    makers: Sequence[Callable[[], Call]], rows: Sequence[Record], runs: int, device: torch.device
) -> tuple[list[int], list[Record]]:
    """Time every implementation that is right side by side, on a GPU with an emptied cache, too.

    What each saved for the direction stays in memory while all are timed: who finds no room is not timed, and its row
    says so.

    Args:
        makers: Each prepares the call of the row of the same number.
        rows: Of :func:`empty_row`; times are put into them, and those that are not 'ok' are left out.
        runs: Timed runs of each.
        device: Where they work.

    Returns:
        Numbers of the rows that were timed; and every peer's time over the time of every layout of ours, round by
        round, for each kind of time.
    """
    buffer = flush_buffer(device)  # first, so that there is room for it
    calls: dict[int, Call] = {}

    def keep(n: int) -> None:
        calls[n] = makers[n]()

    for n, row in enumerate(rows):
        if row["status"] == "ok":
            release(device)
            _fits(partial(keep, n))
    for n in sorted(calls, reverse=True):  # who came last goes first
        if not _fits(calls[n]):
            del calls[n]
            release(device)
    for n, row in enumerate(rows):
        if row["status"] == "ok" and n not in calls:
            row |= {"status": "failed", "reason": "no memory was left beside what the others saved"}
    times: dict[int, dict[str, list[float]]] = {n: {} for n in calls}
    for kind, flushed in KINDS[device.type].items():
        seconds = alternate(list(calls.values()), runs, device, flush=buffer if flushed else None)
        for n, own in zip(calls, seconds, strict=True):
            times[n][kind] = own
            rows[n][kind] = summary(own)
    ratios = [
        {
            "layout": rows[n]["layout"],
            "direction": rows[n]["direction"],
            "peer": rows[other]["implementation"],
            **{kind.replace("seconds", "ratio"): ratio(theirs[kind], mine[kind]) for kind in mine},
        }
        for n, mine in times.items()
        if rows[n]["implementation"] == OURS
        for other, theirs in times.items()
        if rows[other]["implementation"] != OURS
    ]
    return list(calls), ratios
