"""The goals of a suite, beside the measured values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from .implementation import OURS
from .memory import RESOLUTION
from .suite import GOALS

Record = dict[str, Any]
WORDS = {
    "ratio": "times faster than the fastest peer",
    "median_ratio": "times faster than the fastest peer, median of the problems",
    "share": "of the copy bandwidth",
    "memory": "of the peer's peak memory",
    "time_ms": "ms",
    "times_bound": "times the bound of the kernels on this card",
    "cold_ms": "ms with an empty cache",
    "warm_ms": "ms with a filled cache",
    "host_us": "us",
    "failed": "processes that failed",
    "spill_bytes": "bytes spilled",
    "registers": "registers of a thread",
    "shared_bytes": "bytes of shared memory",
    "bound_ms": "ms, bound",
    "times_floor": "times the floor, bound",
    "findings": "races, accesses out of bounds and the like",
}


def goal(quantity: str, limit: float, measured: float | None, **where: Any) -> Record:
    """One goal with its verdict; ``met`` is None where nothing was measured.

    Example:
        >>> goal("ratio", 30, 41.5, direction="fwd")["met"]
        True
    """
    at_least = GOALS.get(quantity, False)
    met = None if measured is None else bool(measured >= limit if at_least else measured <= limit)
    return {**where, "quantity": quantity, "at_least": at_least, "goal": limit, "measured": measured, "met": met}


def of_others(row: Record) -> bool:
    """Whether a result is a peer's, not this package's or a variant's of it."""
    return not row["implementation"].startswith(OURS)


def fastest(results: Iterable[Record], direction: str) -> Record | None:
    """The peer's result with the lowest median among those that were timed."""
    timed = [r for r in results if of_others(r) and r["direction"] == direction and r["seconds"]]
    return min(timed, key=lambda r: float(r["seconds"]["median"]), default=None)


def device_seconds(row: Record) -> Any:
    """The time of the device alone where there is one: with an emptied cache, behind which launches cost nothing."""
    return row.get("seconds_flushed") or row["seconds"]


def measured_value(quantity: str, own: Record, results: Sequence[Record], ratios: Sequence[Record]) -> float | None:
    """The value that one of this package's results reached, None if it or the peer was not measured."""
    direction = own["direction"]
    if quantity == "share":
        return own["share"]
    if quantity == "time_ms":
        return None if own["seconds"] is None else device_seconds(own)["median"] * 1000
    if quantity == "times_bound":
        bound = own.get("bound_seconds")
        return None if own["seconds"] is None or not bound else device_seconds(own)["median"] / bound
    if quantity == "memory":
        others = [r["memory_bytes"] for r in results if of_others(r) and r["direction"] == direction]
        others = [value for value in others if value and value >= RESOLUTION]
        return own["memory_bytes"] / min(others) if others and own["memory_bytes"] is not None else None
    peer = fastest(results, direction)
    own_ratios = [r for r in ratios if r["layout"] == own["layout"] and r["direction"] == direction]
    found = [r["ratio"]["median"] for r in own_ratios if peer is not None and r["peer"] == peer["implementation"]]
    return found[0] if found else None


def judge(goals: dict[str, dict[str, float]], results: Sequence[Record], ratios: Sequence[Record]) -> list[Record]:
    """The goals of a case, one row for every layout; medians over cases are left to :func:`judge_groups`."""
    return [
        goal(quantity, limit, measured_value(quantity, own, results, ratios), direction=direction, layout=own["layout"])
        for quantity, limits in goals.items()
        if quantity != "median_ratio"
        for direction, limit in limits.items()
        for own in results
        if own["implementation"] == OURS and own["direction"] == direction
    ]


def judge_groups(cases: Sequence[Record]) -> list[Record]:
    """The goals on the median over the cases of a group."""
    rows = []
    for group in dict.fromkeys(case["group"] for case in cases):
        members = [case for case in cases if case["group"] == group]
        for direction, limit in members[0]["goals_asked"].get("median_ratio", {}).items():
            for layout in members[0]["layouts"]:
                own = [
                    (result, case)
                    for case in members
                    for result in case["results"]
                    if (result["implementation"], result["layout"], result["direction"]) == (OURS, layout, direction)
                ]
                found = [measured_value("ratio", r, case["results"], case["ratios"]) for r, case in own]
                known = [value for value in found if value is not None]
                value = median(known) if known and len(known) == len(found) else None
                rows.append(goal("median_ratio", limit, value, group=group, direction=direction, layout=layout))
    return rows
