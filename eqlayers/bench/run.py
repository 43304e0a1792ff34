"""Run a suite: for each case build, check, time side by side, measure memory, and compare with the goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import ConfigError, EqlayersError
from .check import Verdict, check
from .config import check_known
from .goals import Record, judge, judge_groups
from .machine import describe, threads
from .measure import alternate, copy_bandwidth, ratio, summary
from .memory import peak_extra, refusal
from .operands import Operands, draw, into_form, prepare
from .peers import OURS, PEERS, Implementation, Refusal, build_peer, ours
from .suite import Case, Suite

Say = Callable[[str], None]


def quiet(text: str) -> None:
    """Say nothing."""


def run_suite(
    suite: Suite,
    *,
    peers: Sequence[str] | None = None,
    num_threads: int | None = None,
    backend: str | None = None,
    say: Say = quiet,
) -> Record:
    """Check, then time every case.

    Args:
        suite: What to run.
        peers: Names of peers instead of the suite's.
        num_threads: Threads of torch instead of the suite's.
        backend: Backend of this package's layers; None for the first that accepts.
        say: Called with a few words before every step.

    Returns:
        What :func:`eqlayers.bench.results.save` writes: machine, versions, copy bandwidth and one record a case.

    Raises:
        ConfigError: An unknown peer, or a suite for a GPU where there is none.
    """
    check_known("peer", peers or suite.peers, PEERS, "peers")
    for case in suite.cases:
        check_known("peer", case.peers or (), PEERS, case.name)
    device = torch.device(suite.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"a CUDA or HIP device was expected for the suite {suite.name!r}, torch finds none. "
            f"Run it on a machine with a GPU, or take a suite for the CPU such as 'cpu'."
        )
    with threads(num_threads or suite.threads):
        say("copy bandwidth")
        bandwidth = copy_bandwidth(device)
        head = describe(device)
        cases = []
        for case in suite.cases:
            cases.append(_run_case(case, suite, peers or case.peers or suite.peers, bandwidth["median"], backend, say))
    return {
        "kind": "run",
        "suite": suite.name,
        **head,
        "device": suite.device,
        "dtype": suite.dtype,
        "copy_bandwidth": bandwidth,
        "memory_refusal": refusal(device),
        "cases": cases,
        "group_goals": judge_groups(cases),
    }


def _run_case(
    case: Case, suite: Suite, peers: Sequence[str], bandwidth: float, backend: str | None, say: Say
) -> Record:
    device, dtype = torch.device(suite.device), getattr(torch, suite.dtype)
    say(f"{case.name}: operands and layers")
    operands = draw(case.problem, case.operation, case.graph, dtype, device)
    items, results = [], []
    wanted: list[tuple[str, str, Callable[[], Implementation]]] = [
        *((OURS, layout, lambda layout=layout: ours(case, operands, layout, backend)) for layout in case.layouts),
        *((name, "", lambda name=name: build_peer(name, case, operands)) for name in peers),
    ]
    for name, layout, build in wanted:
        try:
            items.append(build())
        except (Refusal, EqlayersError, ImportError, RuntimeError) as error:
            refused = Verdict("refused", None, " ".join(str(error).split()))
            results += [_row(name, layout, direction, refused, "") for direction in case.directions]
    compiling = any(item.note == "inductor" for item in items)
    say(f"{case.name}: checking against float64{' (compiling e3nn can take minutes)' if compiling else ''}")
    verdicts = check(case.problem, operands, items, case.directions)
    ratios: list[Record] = []
    for direction in case.directions:
        rows = [_row(i.name, i.layout, direction, verdicts[n, direction], i.note) for n, i in enumerate(items)]
        right = [n for n, row in enumerate(rows) if row["status"] == "ok"]
        say(f"{case.name}: timing {direction}")
        seconds = _time(case, operands, [items[n] for n in right], direction, suite.runs, device, rows, right)
        for n, times in zip(right, seconds, strict=True):
            rows[n]["seconds"] = summary(times)
            rows[n]["share"] = operands.moved_bytes(direction) / rows[n]["seconds"]["median"] / bandwidth
            if refusal(device) is None:
                rows[n]["memory_bytes"] = _memory(items[n], operands, direction, device)
        ratios += _ratios([rows[n] for n in right], seconds)
        results += rows
    return {
        "name": case.name,
        "group": case.group,
        "problem": case.problem.name,
        "operation": case.operation,
        "graph": case.graph.name,
        "nodes": operands.nodes,
        "edges": operands.edges,
        "runs": suite.runs,
        "layouts": list(case.layouts),
        "moved_bytes": {direction: operands.moved_bytes(direction) for direction in case.directions},
        "results": results,
        "ratios": ratios,
        "goals_asked": case.goals,
        "goals": judge(case.goals, results, ratios),
    }


def _row(name: str, layout: str, direction: str, verdict: Verdict, note: str) -> Record:
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


def _time(
    case: Case,
    operands: Operands,
    items: Sequence[Implementation],
    direction: str,
    runs: int,
    device: torch.device,
    rows: Sequence[Record],
    right: Sequence[int],
) -> list[list[float]]:
    """Seconds of every implementation that is right; on a GPU those with an emptied cache go into the rows too."""
    if not items:
        return []
    calls = [prepare(item.fn, into_form(operands.values, item.form), direction) for item in items]
    seconds = alternate(calls, runs, device)
    if device.type == "cuda":
        for n, times in zip(right, alternate(calls, runs, device, warmup=0, flushed=True), strict=True):
            rows[n]["seconds_flushed"] = summary(times)
    return seconds


def _memory(item: Implementation, operands: Operands, direction: str, device: torch.device) -> int:
    """Peak memory of everything from the operands to the results of a direction, what is saved between included."""
    values = into_form(operands.values, item.form)
    return peak_extra(lambda: _whole(item, values, direction), device)


def _whole(item: Implementation, values: dict[str, torch.Tensor], direction: str) -> Any:
    call = prepare(item.fn, values, direction)
    return call, call()


def _ratios(rows: Sequence[Record], seconds: Sequence[Sequence[float]]) -> list[Record]:
    """Every peer's time over that of every layout of ours, round by round."""
    timed = list(zip(rows, seconds, strict=True))
    return [
        {
            "layout": own["layout"],
            "direction": own["direction"],
            "peer": peer["implementation"],
            "ratio": ratio(theirs, mine),
        }
        for own, mine in timed
        if own["implementation"] == OURS
        for peer, theirs in timed
        if peer["implementation"] != OURS
    ]
