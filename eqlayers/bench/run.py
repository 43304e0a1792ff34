"""Run a suite: for each case build, check, time side by side, measure memory, and compare with the goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..backends import check_backend
from ..checks import check_function, check_integer, check_items, check_type
from ..nn import TensorProduct
from .check import Verdict, check
from .config import check_known
from .goals import Record, device_seconds, judge, judge_groups
from .implementation import OURS, Implementation, ours, why_refused
from .machine import describe, find_device, release, threads
from .measure import Call, alternate, copy_bandwidth, flush_buffer, ratio, summary
from .memory import peak_extra, refusal
from .operands import Operands, draw, into_form, prepare
from .peers import PEERS, build_peer
from .roofline import limit, peak_rate, product_operations
from .stored_bounds import bound_of
from .suite import Case, Suite

Say = Callable[[str], None]
#: type of device -> kinds of time, and whether the cache is emptied before
KINDS = {"cpu": {"seconds": False}, "cuda": {"seconds": False, "seconds_flushed": True}}


def quiet(text: str) -> None:
    """Say nothing."""


def nothing(result: Record) -> None:
    """Keep nothing."""


def run_suite(
    suite: Suite,
    *,
    peers: Sequence[str] | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    backend: str | None = None,
    say: Say = quiet,
    keep: Callable[[Record], None] = nothing,
) -> Record:
    """Check, then time every case.

    Args:
        suite: What to run.
        peers: Names of peers instead of the suite's; none of them if empty.
        num_threads: Threads of torch instead of the suite's.
        runs: Timed runs of every implementation and direction instead of the suite's.
        backend: Backend of this package's layers; None for the first that accepts.
        say: Called with a few words before every step.
        keep: Called after every case with the result so far, so that a run that is cut off leaves something.

    Returns:
        What :func:`eqlayers.bench.results.save` writes: machine, versions, copy bandwidth and one record a case.

    Raises:
        ConfigError: An unknown peer, or a suite for a GPU where there is none.
    """
    check_type("suite", suite, Suite, "a Suite", "Take what read_suite(name) returns.")
    peers = None if peers is None else check_items("peers", peers, "a list of names, or None", "Pass a list.")
    num_threads = None if num_threads is None else check_integer("num_threads", num_threads, 1)
    runs = suite.runs if runs is None else check_integer("runs", runs, 1)
    check_backend(backend)
    check_function("say", say)
    check_function("keep", keep)
    check_known("peer", suite.peers if peers is None else peers, PEERS, "peers")
    for case in suite.cases:
        check_known("peer", case.peers or (), PEERS, case.name)
    device = find_device(suite.device, suite.name)
    with threads(num_threads or suite.threads):
        say("copy bandwidth and peak of multiply-adds")
        dtypes = list(dict.fromkeys(case.dtype for case in suite.cases))
        result: Record = {
            "kind": "run",
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
        for case in suite.cases:
            names = peers if peers is not None else suite.peers if case.peers is None else case.peers
            result["cases"].append(_run_case(case, runs, device, names, result, backend, say))
            result["group_goals"] = judge_groups(result["cases"])
            keep(result)
    return result


def _build(
    case: Case, operands: Operands, peers: Sequence[str], backend: str | None
) -> tuple[list[Implementation], list[Record]]:
    """The implementations that take part, and rows for the others."""
    items: list[Implementation] = []
    rows: list[Record] = []
    wanted: list[tuple[str, str, Callable[[], Implementation]]] = [
        *((OURS, layout, partial(ours, case, operands, layout, backend)) for layout in case.layouts),
        *((name, "", partial(build_peer, name, case, operands)) for name in peers),
    ]
    for name, layout, build in wanted:
        try:
            items.append(build())
        except Exception as error:
            refused = Verdict("refused", None, why_refused(name, error))
            rows += [empty_row(name, layout, direction, refused, "") for direction in case.directions]
    return items, rows


def _run_case(
    case: Case, runs: int, device: torch.device, peers: Sequence[str], head: Record, backend: str | None, say: Say
) -> Record:
    bandwidth = head["copy_bandwidth"]["median"]
    say(f"{case.name}: operands and layers")
    release(device)
    operands = draw(case.problem, case.operation, case.graph, getattr(torch, case.dtype), device)
    items, results = _build(case, operands, peers, backend)
    compiling = any(item.note == "inductor" for item in items)
    say(f"{case.name}: checking against float64{' (compiling e3nn can take minutes)' if compiling else ''}")
    verdicts = check(case.problem, operands, items, case.directions)
    ratios: list[Record] = []
    for direction in case.directions:
        rows = [empty_row(i.name, i.layout, direction, verdicts[n, direction], i.note) for n, i in enumerate(items)]
        say(f"{case.name}: timing {direction}")
        makers = [partial(_made, item, operands, direction) for item in items]
        times = time_all(makers, rows, runs, device)
        for n, kinds in times.items():
            rows[n] |= {kind: summary(seconds) for kind, seconds in kinds.items()}
            rows[n]["share"] = operands.moved_bytes(direction) / device_seconds(rows[n])["median"] / bandwidth
            if device.type == "cuda" and rows[n]["implementation"] == OURS:
                about = {"problem": case.problem.name, "operation": case.operation, "dtype": case.dtype, **rows[n]}
                rows[n]["bound_seconds"] = bound_of(about, bandwidth, operands.nodes, operands.edges)
            if refusal(device) is None:
                rows[n]["memory_bytes"] = _memory(items[n], operands, direction, device)
        ratios += ratios_of([(rows[n], kinds) for n, kinds in times.items()])
        results += rows
    return {
        "name": case.name,
        "group": case.group,
        "problem": case.problem.name,
        "operation": case.operation,
        "graph": case.graph.name,
        "dtype": case.dtype,
        "nodes": operands.nodes,
        "edges": operands.edges,
        "runs": runs,
        "layouts": list(case.layouts),
        "limits": limits_of(case, operands, head),
        "results": results,
        "ratios": ratios,
        "goals_asked": case.goals,
        "goals": judge(case.goals, results, ratios),
    }


def limits_of(case: Case, operands: Operands, head: Record) -> dict[str, Record]:
    """The least time of the machine for every direction, by bytes and by sums and products.

    Args:
        case, operands: What is computed.
        head: Copy bandwidth, peaks and threads of the machine, as :func:`run_suite` measured them.
    """
    rate = head["peak_rate"].get(case.dtype)
    peak = None if rate is None else rate["median"] * head["machine"]["threads"]
    work = product_operations(TensorProduct(**case.problem.arguments()).plan.form.program)
    limits: dict[str, Record] = {}
    for direction in case.directions:
        moved, operations = operands.moved_bytes(direction), work[direction] * operands.edges
        least = limit(moved, operations, head["copy_bandwidth"]["median"], peak)
        limits[direction] = {"bytes": moved, "operations": operations, **least._asdict()}
    return limits


def empty_row(name: str, layout: str, direction: str, verdict: Verdict, note: str) -> Record:
    """A result without times."""
    return {
        "implementation": name,
        "layout": layout,
        "note": note,
        "direction": direction,
        "status": verdict.status,
        "reason": verdict.reason,
        "error": verdict.error,
        "seconds": None,
        "seconds_flushed": None,
        "share": None,
        "memory_bytes": None,
    }


def _fits(work: Callable[[], object]) -> bool:
    """Whether the memory suffices for some work."""
    try:
        work()
    except torch.OutOfMemoryError:
        return False
    return True


def _made(item: Implementation, operands: Operands, direction: str) -> Call:
    return prepare(item.fn, into_form(operands.values, item.form), direction)


def time_all(
    makers: Sequence[Callable[[], Call]], rows: Sequence[Record], runs: int, device: torch.device
) -> dict[int, dict[str, list[float]]]:
    """Seconds of every implementation that is right, by its number and kind: on a GPU with an emptied cache, too.

    What each saved for the direction stays in memory while all are timed: who finds no room is not timed, and its row
    says so.

    Args:
        makers: Each prepares the call of the row of the same number.
        rows: Of :func:`empty_row`; those that are not 'ok' are left out.
        runs: Timed runs of each.
        device: Where they work.
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
    return times


def _memory(item: Implementation, operands: Operands, direction: str, device: torch.device) -> int:
    """Peak memory of everything from the operands to the results of a direction, what is saved between included."""
    release(device)
    values = into_form(operands.values, item.form)
    return peak_extra(lambda: _whole(item, values, direction), device)


def _whole(item: Implementation, values: dict[str, torch.Tensor], direction: str) -> Any:
    call = prepare(item.fn, values, direction)
    return call, call()


def ratios_of(timed: Sequence[tuple[Record, dict[str, list[float]]]]) -> list[Record]:
    """Every peer's time over the time of every layout of ours, round by round, for each kind of time."""
    return [
        {
            "layout": own["layout"],
            "direction": own["direction"],
            "peer": peer["implementation"],
            **{kind.replace("seconds", "ratio"): ratio(theirs[kind], mine[kind]) for kind in mine},
        }
        for own, mine in timed
        if own["implementation"] == OURS
        for peer, theirs in timed
        if peer["implementation"] != OURS
    ]
