"""Suites of benchmark cases: check implementations, time them side by side, and collect results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..core.errors import EqlayersError
from .config import DEVICE, Field, matching
from .measure import Call, alternate, copy_bandwidth, describe, flush_buffer, ratio, refusal, release, summary
from .results import OURS, Record
from .roofline import peak_rate

#: Device type -> name of a measured time, and whether the cache is emptied before each run.
TIMES = {"cpu": {"seconds": False}, "cuda": {"seconds": False, "seconds_flushed": True}}
NO_DOUBLE = "torch.compile has no double backward (AOTAutograd does not support it)"
#: Fields of every suite.
SUITE: dict[str, Field] = {"device": DEVICE, "threads": "count", "runs": "count", "cases": "mapping"}


@dataclass(frozen=True)
class Suite:
    """Cases with their common settings.

    Attributes:
        name: Name of the file.
        device: Device of the operands.
        threads: Number of threads of torch.
        runs: Timed runs of each implementation and direction, unless a case sets another number.
        peers: Names of peers, unless a case sets others.
        cases: The cases, in order.
        kind: 'run' for products, 'layers' for layers.
    """

    name: str
    device: str
    threads: int
    runs: int
    peers: tuple[str, ...]
    cases: tuple[Any, ...]
    kind: str = "run"

    def only(self, pattern: str | None) -> Suite:
        """The suite with the cases whose name matches a pattern such as ``unfused/mace-*``."""
        return replace(self, cases=matching(self.cases, pattern, self.name))

    @property
    def steps(self) -> int:
        """Number of progress messages of a run."""
        return 1 + sum(1 + 2 * len(case.directions) for case in self.cases)


def case_name(group: str, problem: str, size: str, dtype: str) -> str:
    """Name of a case: group, problem, size, and dtype unless float32."""
    return "/".join((group, problem, size, *([dtype] if dtype != "float32" else [])))


@dataclass(frozen=True)
class Verdict:
    """Result of the check of one direction of one implementation."""

    status: str  # 'ok', 'wrong', or 'failed' after an error or without support of the direction
    error: float | None  # largest error as a fraction of its bound; None if it failed
    reason: str = ""


class Refusal(Exception):
    """Raised if an implementation cannot run a case; the text is the reason in the report."""


def short(error: Exception) -> str:
    """Type and first 300 characters of an error, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def why_refused(name: str, error: Exception) -> str:
    """Text of an error for the report; unexpected errors of this package are raised again."""
    if isinstance(error, (Refusal, EqlayersError)):
        return " ".join(str(error).split())[:300]
    if name == OURS:
        raise error
    return short(error)


class Subject(Protocol):
    """A case with its operands; suites of products and of layers implement it."""

    #: (name, layout, constructor) of each implementation, this package's first. A constructor may raise `Refusal` and
    #: returns an object with `name`, `layout` and `note`.
    implementations: Sequence[tuple[str, str, Callable[[], Any]]]

    def check(self, items: Sequence[Any], direction: str) -> list[Verdict]:
        """Compare a direction of implementations with the definition in float64."""

    def ready(self, item: Any, direction: str) -> Callable[[], Call]:
        """A function that prepares the timed call of a direction; operands exist already."""

    def work(self, direction: str) -> tuple[int, int]:
        """Bytes of all operands and results, and the least number of floating-point operations; call `check` first."""

    def facts(self) -> Record:
        """Fields of the case in the result."""

    def bounds(self, row: Record, bandwidth: float) -> Record:
        """Further fields of a timed row, such as bounds for a copy bandwidth."""


def start(suite: Suite, device: torch.device) -> Record:
    """The head of a result: machine, copy bandwidth, and peak rate of multiply-adds by dtype on a CPU."""
    dtypes = list(dict.fromkeys(case.dtype for case in suite.cases))
    return {
        "kind": suite.kind,
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
    """Peak of floating-point operations per second of all threads; None if it was not measured."""
    rate = head["peak_rate"].get(dtype)
    return None if rate is None else rate["median"] * head["machine"]["threads"]


def empty_row(name: str, layout: str, direction: str, verdict: Verdict, note: str) -> Record:
    """A row of the result without times."""
    about = {"implementation": name, "layout": layout, "note": note, "direction": direction}
    state = {"status": verdict.status, "reason": verdict.reason, "error": verdict.error}
    return about | state | dict.fromkeys(("seconds", "seconds_flushed", "share", "memory_bytes"))


def time_rows(
    makers: Sequence[Callable[[], Call]], rows: Sequence[Record], runs: int, device: torch.device
) -> tuple[list[int], list[Record]]:
    """Time implementations with status 'ok' in alternation, on a GPU also with an emptied cache.

    ``makers[n]`` prepares the call of ``rows[n]``, and times are stored in the rows. Tensors saved by all calls stay in
    memory during the timing; an implementation that does not fit is marked as failed.

    Returns:
        Indices of timed rows, and ratios of the time of each peer to the time of each layout of this package.
    """
    buffer = flush_buffer(device)  # allocated first
    calls: dict[int, Call] = {}
    for n, (maker, row) in enumerate(zip(makers, rows, strict=True)):
        if row["status"] == "ok":
            release(device)
            with suppress(torch.OutOfMemoryError):
                calls[n] = maker()
    for n in sorted(calls, reverse=True):  # drop the last ones first
        try:
            calls[n]()
        except torch.OutOfMemoryError:
            del calls[n]
            release(device)
    for n, row in enumerate(rows):
        if row["status"] == "ok" and n not in calls:
            row |= {"status": "failed", "reason": "no memory was left beside what the others saved"}
    times: dict[int, dict[str, list[float]]] = {n: {} for n in calls}
    for name, flushed in TIMES[device.type].items():
        seconds = alternate(list(calls.values()), runs, device, flush=buffer if flushed else None)
        for n, measured in zip(calls, seconds, strict=True):
            times[n][name] = measured
            rows[n][name] = summary(measured)
    ratios = [
        {
            "layout": rows[n]["layout"],
            "direction": rows[n]["direction"],
            "peer": rows[other]["implementation"],
            **{name.replace("seconds", "ratio"): ratio(theirs[name], mine[name]) for name in mine},
        }
        for n, mine in times.items()
        if rows[n]["implementation"] == OURS
        for other, theirs in times.items()
        if rows[other]["implementation"] != OURS
    ]
    return list(calls), ratios
