"""Run suites: build, check and time each case, measure memory, and compare with goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..core.backends import check_backend
from ..core.checks import check_function, check_integer, check_items, check_type
from .cases import Subject, Suite, Verdict, empty_row, peak_of, start, time_rows, why_refused
from .config import check_known
from .layers.run import LAYER_PEERS, LayerSubject
from .measure import Call, find_device, keep_random_state, peak_extra, refusal, release, threads
from .products.peers import PEERS
from .products.run import ProductSubject
from .results import Record, Say, device_seconds, judge, judge_groups, nothing, quiet
from .roofline import limit

#: Kind of suite -> its peers, and class of a case's subject.
FAMILIES: dict[str, tuple[Any, Any]] = {"run": (PEERS, ProductSubject), "layers": (LAYER_PEERS, LayerSubject)}


def run_suite(
    suite: Suite,
    *,
    peers: Sequence[str] | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    backend: str | None = None,
    say: Say = quiet,
    keep: Callable[[Record], object] = nothing,
) -> Record:
    """Check, then time every case.

    Args:
        suite: The suite.
        peers: Names of peers instead of the suite's; an empty list for none.
        num_threads: Number of threads of torch instead of the suite's.
        runs: Timed runs of every implementation and direction instead of the suite's.
        backend: Backend of this package's layers; None for the first that supports the layer.
        say: Function called with a text before each step.
        keep: Function called with the partial result after each case.

    Returns:
        The result: machine, versions, copy bandwidth and one record for each case.

    Raises:
        ConfigError: A peer is unknown, or the suite needs a GPU and there is none.
    """
    check_type("suite", suite, Suite, "a Suite", "Take what read_suite(name) returns.")
    known, _ = FAMILIES[suite.kind]
    peers = None if peers is None else check_items("peers", peers, "a list of names, or None", "Pass a list.")
    num_threads = None if num_threads is None else check_integer("num_threads", num_threads, 1)
    runs = None if runs is None else check_integer("runs", runs, 1)
    check_backend(backend)
    check_function("say", say)
    check_function("keep", keep)
    check_known("peer", suite.peers if peers is None else peers, known, "peers")
    for case in suite.cases:
        check_known("peer", case.peers or (), known, case.name)
    device = find_device(suite.device, suite.name)
    with threads(num_threads or suite.threads):
        say("copy bandwidth and peak of multiply-adds")
        result = start(suite, device)
        for case in suite.cases:
            names = peers if peers is not None else suite.peers if case.peers is None else case.peers
            with keep_random_state(device):
                result["cases"].append(_run_case(suite, case, names, runs, result, device, backend, say))
            result["group_goals"] = judge_groups(result["cases"])
            keep(result)
    return result


def _build(subject: Subject, directions: Sequence[str]) -> tuple[list[Any], list[Record]]:
    """Build implementations; return them, and rows of status 'refused' for the others."""
    items, rows = [], []
    for name, layout, make in subject.implementations:
        try:
            items.append(make())
        except Exception as error:
            why = Verdict("refused", None, why_refused(name, error))
            rows += [empty_row(name, layout, direction, why, "") for direction in directions]
    return items, rows


def _run_case(
    suite: Suite,
    case: Any,
    names: Sequence[str],
    runs: int | None,
    head: Record,
    device: torch.device,
    backend: str | None,
    say: Say,
) -> Record:
    bandwidth = head["copy_bandwidth"]["median"]
    say(f"{case.name}: operands and layers")
    release(device)
    subject: Subject = FAMILIES[suite.kind][1](case, device, names, backend)
    items, results = _build(subject, case.directions)
    limits: dict[str, Record] = {}
    ratios: list[Record] = []
    runs = runs or case.runs or suite.runs
    for direction in case.directions:
        say(f"{case.name}: checking {direction} against float64")
        verdicts = subject.check(items, direction)
        rows = [
            empty_row(item.name, item.layout, direction, verdict, item.note)
            for item, verdict in zip(items, verdicts, strict=True)
        ]
        moved, work = subject.work(direction)
        least = limit(moved, work, bandwidth, peak_of(head, case.dtype))
        limits[direction] = {"bytes": moved, "operations": work, **least._asdict()}
        say(f"{case.name}: timing {direction}")
        timed, beside = time_rows([partial(_call, subject, item, direction) for item in items], rows, runs, device)
        for n in timed:
            shared = moved / bandwidth if suite.kind == "run" else least.seconds
            rows[n]["share"] = shared / device_seconds(rows[n])["median"]
            rows[n] |= subject.bounds(rows[n], bandwidth)
            if refusal(device) is None:
                rows[n]["memory_bytes"] = _memory(subject, items[n], direction, device)
        ratios += beside
        results += rows
    return {
        "name": case.name,
        "group": case.group,
        "dtype": case.dtype,
        "runs": runs,
        **subject.facts(),
        "limits": limits,
        "results": results,
        "ratios": ratios,
        "goals_asked": case.goals,
        "goals": judge(case.goals, results, ratios),
    }


def _call(subject: Subject, item: Any, direction: str) -> Call:
    return subject.ready(item, direction)()


def _memory(subject: Subject, item: Any, direction: str, device: torch.device) -> int:
    """Peak memory of preparation and call of a direction, saved tensors included."""
    release(device)
    prepare = subject.ready(item, direction)

    def whole() -> Any:
        call = prepare()
        return call, call()

    return peak_extra(whole, device)
