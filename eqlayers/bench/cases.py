"""Suites of cases of products and of layers: each case is checked, timed beside its peers, and judged by its goals."""

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

#: type of device -> kinds of time, and whether the cache is emptied before
KINDS = {"cpu": {"seconds": False}, "cuda": {"seconds": False, "seconds_flushed": True}}
NO_DOUBLE = "torch.compile has no double backward (AOTAutograd does not support it)"
#: Fields of every suite.
SUITE: dict[str, Field] = {"device": DEVICE, "threads": "count", "runs": "count", "cases": "mapping"}


@dataclass(frozen=True)
class Suite:
    """Cases with their common settings.

    Attributes:
        name: Name of the file.
        device: Of the operands.
        threads: Threads of torch.
        runs: Timed runs of every implementation and direction, unless a case has its own number.
        peers: Names of peers, unless a case has its own.
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
        """How often a run says what it does."""
        return 1 + sum(1 + 2 * len(case.directions) for case in self.cases)


def case_name(group: str, problem: str, size: str, dtype: str) -> str:
    """Group, problem and size, and the dtype if it is not float32."""
    return "/".join((group, problem, size, *([dtype] if dtype != "float32" else [])))


@dataclass(frozen=True)
class Verdict:
    """Whether one direction of one implementation is right."""

    status: str  # 'ok', 'wrong', or 'failed' where it raised an error or lacks the direction
    error: float | None  # largest error as a fraction of its bound; None if it failed
    reason: str = ""


class Refusal(Exception):
    """An implementation cannot run a case; the text says why and becomes part of the report."""


def short(error: Exception) -> str:
    """Type and beginning of an error, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def why_refused(name: str, error: Exception) -> str:
    """The reason for a report: whatever a peer raises is its result, and this package's own errors are."""
    if isinstance(error, (Refusal, EqlayersError)):
        return " ".join(str(error).split())[:300]
    if name == OURS:
        raise error
    return short(error)


class Subject(Protocol):
    """A case with its operands: what the two kinds of suites do in their own way."""

    #: Name and layout of every implementation, this package's first, and its maker, which may refuse. An implementation
    #: has `name`, `layout` and `note`.
    implementations: Sequence[tuple[str, str, Callable[[], Any]]]

    def check(self, items: Sequence[Any], direction: str) -> list[Verdict]:
        """Compare a direction of implementations with the definition in float64."""

    def ready(self, item: Any, direction: str) -> Callable[[], Call]:
        """A function that prepares the call of a direction; its operands are made before."""

    def work(self, direction: str) -> tuple[int, int]:
        """Bytes of operands read once and results written once, and the least sums and products; after a check."""

    def facts(self) -> Record:
        """Fields of the case in the result."""

    def bounds(self, row: Record, bandwidth: float) -> Record:
        """More fields of a timed row, on a machine with that copy bandwidth."""


def start(suite: Suite, device: torch.device) -> Record:
    """A result without cases: machine, copy bandwidth, and the peak of multiply-adds by dtype on a CPU."""
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
    """Sums and products per second of all threads; None if they were not measured."""
    rate = head["peak_rate"].get(dtype)
    return None if rate is None else rate["median"] * head["machine"]["threads"]


def empty_row(name: str, layout: str, direction: str, verdict: Verdict, note: str) -> Record:
    """A result without times."""
    about = {"implementation": name, "layout": layout, "note": note, "direction": direction}
    state = {"status": verdict.status, "reason": verdict.reason, "error": verdict.error}
    return about | state | dict.fromkeys(("seconds", "seconds_flushed", "share", "memory_bytes"))


def time_rows(
    makers: Sequence[Callable[[], Call]], rows: Sequence[Record], runs: int, device: torch.device
) -> tuple[list[int], list[Record]]:
    """Time every right implementation side by side, on a GPU with an emptied cache, too.

    What each saved for the direction stays in memory while all are timed. An implementation without room is not timed,
    and its row says so.
    Each maker prepares the call of the row of the same number; times are put into rows with the status 'ok'.

    Returns:
        Numbers of the rows that were timed; and every peer's time over the time of every layout of ours, round by
        round, for each kind of time.
    """
    buffer = flush_buffer(device)  # first, so that there is room for it
    calls: dict[int, Call] = {}
    for n, (maker, row) in enumerate(zip(makers, rows, strict=True)):
        if row["status"] == "ok":
            release(device)
            with suppress(torch.OutOfMemoryError):
                calls[n] = maker()
    for n in sorted(calls, reverse=True):  # the last goes first
        try:
            calls[n]()
        except torch.OutOfMemoryError:
            del calls[n]
            release(device)
    for n, row in enumerate(rows):
        if row["status"] == "ok" and n not in calls:
            row |= {"status": "failed", "reason": "no memory was left beside what the others saved"}
    times: dict[int, dict[str, list[float]]] = {n: {} for n in calls}
    for kind, flushed in KINDS[device.type].items():
        seconds = alternate(list(calls.values()), runs, device, flush=buffer if flushed else None)
        for n, measured in zip(calls, seconds, strict=True):
            times[n][kind] = measured
            rows[n][kind] = summary(measured)
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
