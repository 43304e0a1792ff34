"""Run a suite: for each case build, check, time side by side, measure memory, and compare with the goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ...core.backends import check_backend
from ...core.checks import check_function, check_integer, check_items, check_type
from ...nn import TensorProduct
from ..cases import empty_row, peak_of, start, time_rows
from ..config import check_known
from ..gpu.bounds import bound_of
from ..measure import Call, find_device, peak_extra, refusal, release, threads
from ..results import OURS, Record, Say, device_seconds, judge, judge_groups, nothing, quiet
from ..roofline import limit, product_operations
from .check import check
from .operands import Operands, draw, into_form, prepare
from .peers import PEERS, Implementation, build_peer, ours, why_refused
from .suite import Case, Suite


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
        result = start("run", suite, device)
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
            why = why_refused(name, error)
            rows += [empty_row(name, layout, direction, "refused", why, None, "") for direction in case.directions]
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
        found = [verdicts[n, direction] for n in range(len(items))]
        rows = [
            empty_row(item.name, item.layout, direction, one.status, one.reason, one.error, item.note)
            for item, one in zip(items, found, strict=True)
        ]
        say(f"{case.name}: timing {direction}")
        timed, beside = time_rows([partial(_made, item, operands, direction) for item in items], rows, runs, device)
        for n in timed:
            rows[n]["share"] = operands.moved_bytes(direction) / device_seconds(rows[n])["median"] / bandwidth
            if device.type == "cuda" and rows[n]["implementation"] == OURS:
                about = {"problem": case.problem.name, "operation": case.operation, "dtype": case.dtype, **rows[n]}
                rows[n]["bound_seconds"] = bound_of(about, bandwidth, operands.nodes, operands.edges)
            if refusal(device) is None:
                rows[n]["memory_bytes"] = _memory(items[n], operands, direction, device)
        ratios += beside
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
    """The least time of the machine for every direction, by bytes and by sums and products."""
    work = product_operations(TensorProduct(**case.problem.arguments()).plan.form.program)
    limits: dict[str, Record] = {}
    for direction in case.directions:
        moved, operations = operands.moved_bytes(direction), work[direction] * operands.edges
        least = limit(moved, operations, head["copy_bandwidth"]["median"], peak_of(head, case.dtype))
        limits[direction] = {"bytes": moved, "operations": operations, **least._asdict()}
    return limits


def _made(item: Implementation, operands: Operands, direction: str) -> Call:
    return prepare(item.fn, into_form(operands.values, item.form), direction)


def _memory(item: Implementation, operands: Operands, direction: str, device: torch.device) -> int:
    """Peak memory of everything from the operands to the results of a direction, saved tensors included."""
    release(device)
    values = into_form(operands.values, item.form)

    def whole() -> Any:
        call = prepare(item.fn, values, direction)
        return call, call()

    return peak_extra(whole, device)
