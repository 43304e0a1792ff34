"""First calls in a fresh process, with an empty and with a filled cache of kernels.

    python docs/benchmarks/studies/cold.py --json cold.json                     (on a CPU: cold.yaml)
    python docs/benchmarks/studies/cold.py --config docs/benchmarks/studies/gpu-cold.yaml

Every measurement is a process of its own, this file with a task: it imports everything, starts torch's threads, and
only then looks at the clock. Its results are compared with float64 e3nn after the clock was read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from study import Study, add_config, beside, main, run_fresh

from eqlayers.bench.cases import why_refused
from eqlayers.bench.cli import add_options
from eqlayers.bench.config import DEVICE, Field, Known, check_known, read_settings
from eqlayers.bench.measure import describe, find_device, summary, synchronize, threads
from eqlayers.bench.products.check import check
from eqlayers.bench.products.implementation import ours
from eqlayers.bench.products.operands import draw, into_form, prepare
from eqlayers.bench.products.peers import PEERS, build_peer
from eqlayers.bench.products.problems import GraphSpec, Problem, choose, read_problems
from eqlayers.bench.products.suite import OPERATION, Case
from eqlayers.bench.report import Layout
from eqlayers.bench.results import OURS, Record, Say, goal, quiet
from eqlayers.irreps.layout import LAYOUTS

FIELDS: dict[str, Field] = {
    "device": DEVICE,
    "problems": "text",
    "operation": OPERATION,
    "layout": Known("text", "layout", LAYOUTS),
    **dict.fromkeys(("edges", "threads", "runs"), "count"),
    "choose": "texts",
    "peers": "texts",
    "goals": Known("numbers", "goal", ("cold_ms", "warm_ms")),
}
STATES = ("cold", "warm")
#: Variables that say where the kernels of each package are kept.
CACHES = ("EQLAYERS_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


def first_calls(task: dict[str, Any]) -> Record:
    """Seconds of construction with the first forward call, and of the first backward call, in this process."""
    torch.set_num_threads(task["threads"])
    device = torch.device(task["device"])
    problem = Problem(**task["problem"])
    graph = GraphSpec(f"E{task['edges']}", max(1, task["edges"] // 20), task["edges"])
    case = Case("cold", problem, task["operation"], graph, (task["layout"],))
    operands = draw(problem, case.operation, graph, torch.float32, device)
    warm = torch.randn(512, 512, device=device, requires_grad=True)
    (warm @ warm).sum().backward()  # torch's own first calls are not the layer's
    who = task["implementation"]
    if device.type == "cuda":  # nor are imports
        for package in ("triton", *(() if who == OURS else PEERS[who].packages)):
            if find_spec(package) is not None:
                import_module(package)
    synchronize(device)
    start = time.perf_counter()
    try:
        item = ours(case, operands, task["layout"]) if who == OURS else build_peer(who, case, operands)
        backward = prepare(item.fn, into_form(operands.values, item.form), "bwd")
        synchronize(device)
        middle = time.perf_counter()
        backward()
        synchronize(device)
        end = time.perf_counter()
    except Exception as error:
        return {"status": "refused", "reason": why_refused(who, error)}
    wrong = [one for one in check(problem, operands, [item], tuple(DIRECTIONS)).values() if one.status != "ok"]
    times: Record = {"fwd": middle - start, "bwd": end - middle, "note": item.note}
    return times | {"status": wrong[0].status if wrong else "ok", "reason": wrong[0].reason if wrong else ""}


def run_cold(
    config: str = beside(__file__),
    *,
    peers: Sequence[str] | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    only: str | None = None,
    say: Say = quiet,
) -> Record:
    """Time first calls: for each problem and implementation, several times an empty cache and then the filled one."""
    path, fields = read_settings(config, FIELDS)
    peers = fields["peers"] if peers is None else list(peers)
    check_known("peer", peers, PEERS, "peers")
    known = read_problems(path.parent / fields["problems"])
    problems = choose(known, fields["choose"] if only is None else [only], "choose" if only is None else "--only")
    common = {key: fields[key] for key in ("device", "operation", "layout", "edges")}
    common["threads"] = num_threads or fields["threads"]
    with threads(common["threads"]):
        head = describe(find_device(fields["device"], path.stem))
    rows, goals = [], []
    for problem in problems:
        for who in (OURS, *peers):
            task = {"problem": asdict(problem), "implementation": who, **common}
            row = _measure(task, runs or fields["runs"], say)
            rows.append(row)
            for state in STATES if who == OURS else ():
                limit, seconds = fields["goals"].get(f"{state}_ms"), row[f"{state}_fwd"]
                if limit is not None:
                    measured = None if seconds is None else seconds["median"] * 1000
                    goals.append(goal(f"{state}_ms", limit, measured, where=problem.name))
    notes = [
        f"{fields['device']}, {fields['operation']}, {fields['edges']} edges, {fields['layout']}. "
        "Forward: making the layer and its first forward call. Cold: empty caches of kernels; warm: a new process with "
        "the caches that the first one left. "
        "e3nn's eager layers have no cache."
    ]
    return {"kind": "cold", **head, "rows": rows, "goals": goals, "notes": notes}


def _measure(task: dict[str, Any], runs: int, say: Say) -> Record:
    row: Record = {"problem": task["problem"]["name"], "implementation": task["implementation"]}
    row |= {"status": "ok", "note": "", **{f"{state}_{d}": None for state in STATES for d in DIRECTIONS}}
    seconds: dict[str, list[float]] = {}
    must = f"the first calls of {row['implementation']} on {row['problem']} must end without an error"
    for number in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            folders = {name: str(Path(cache, name.lower())) for name in CACHES}
            for state in STATES:
                say(f"{row['problem']}, {row['implementation']}: {state}, {number + 1} of {runs}")
                first = run_fresh(__file__, task, folders, must, "Run `eqlayers bench run` on the problem to see all.")
                if first["status"] != "ok":
                    return row | {"status": f"{first['status']}: {first['reason']}"}
                row["note"] = first["note"]
                for direction in DIRECTIONS:
                    seconds.setdefault(f"{state}_{direction}", []).append(first[direction])
    return row | {key: summary(values) for key, values in seconds.items()}


def _options(parser: argparse.ArgumentParser) -> None:
    add_config(parser, __file__)
    add_options(parser, "peers", "threads", "runs", "only")


LAYOUT = Layout(
    "first calls in a fresh process, ms, imports not counted",
    {
        "problem": "problem",
        "who": lambda row: f"{row['implementation']} ({row['note']})",
        **{f">{state}, {way}": f"{state}_{key}: s in ms" for state in STATES for key, way in DIRECTIONS.items()},
        "status": "status",
    },
    words={"cold_ms": "ms with an empty cache", "warm_ms": "ms with a filled cache"},
)
ABOUT = "Time first calls in fresh processes, with empty and filled caches."
STUDY = Study(__file__, ABOUT, "cold", LAYOUT, run_cold, _options, first_calls)
if __name__ == "__main__":
    main(STUDY)
