"""`eqlayers bench cold`: first calls in a fresh process, with an empty and with a filled cache of kernels.

Every measurement is a process of its own, this module run as a program: it imports everything, starts torch's threads,
and only then looks at the clock. What it computed is compared with float64 e3nn after the clock was read.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from ..lowering.layout import LAYOUTS
from .check import check
from .config import check_known, find_config, read_config, read_fields
from .fresh import run_fresh
from .goals import Record, goal
from .graphs import GraphSpec
from .implementation import OURS, ours, why_refused
from .machine import describe, find_device, threads
from .measure import summary, synchronize
from .operands import draw, into_form, prepare
from .peers import PEERS, build_peer
from .problems import Problem, read_problems
from .run import Say, quiet
from .suite import DEVICES, OPERATIONS, Case

FIELDS = {
    **dict.fromkeys(("device", "problems", "operation", "layout"), "text"),
    **dict.fromkeys(("edges", "threads", "runs"), "count"),
    **dict.fromkeys(("choose", "peers"), "texts"),
    "goals": "numbers",
}
STATES = ("cold", "warm")
#: Variables that say where the kernels of each package are kept.
CACHES = ("EQLAYERS_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
DIRECTIONS = ("fwd", "bwd")


def first_calls(task: dict[str, Any]) -> Record:
    """Seconds of construction with the first forward call, and of the first backward call, in this process.

    Args:
        task: problem (its fields), device, operation, layout, edges, threads and implementation.

    Returns:
        ``fwd``, ``bwd`` in seconds, and status with reason.
    """
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
        values = into_form(operands.values, item.form)
        backward = prepare(item.fn, values, "bwd")
        synchronize(device)
        middle = time.perf_counter()
        backward()
        synchronize(device)
        end = time.perf_counter()
    except Exception as error:
        return {"status": "refused", "reason": why_refused(who, error)}
    verdicts = check(problem, operands, [item], DIRECTIONS)
    wrong = [verdict for verdict in verdicts.values() if verdict.status != "ok"]
    found: Record = {"fwd": middle - start, "bwd": end - middle, "note": item.note}
    return found | {"status": wrong[0].status if wrong else "ok", "reason": wrong[0].reason if wrong else ""}


def in_fresh_process(task: dict[str, Any], cache: Path) -> Record:
    """:func:`first_calls` in a new process whose caches of kernels are in a folder.

    Raises:
        BackendError: The process ended with an error.
    """
    folders = {name: str(cache / name.lower()) for name in CACHES}
    found: Record = run_fresh(
        __name__,
        task,
        folders,
        f"the first calls of {task['implementation']} on {task['problem']['name']} must end without an error",
        "Run `eqlayers bench run` on the problem to see all of it.",
    )
    return found


def run_cold(
    name: str = "cold",
    *,
    peers: Sequence[str] | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    only: str | None = None,
    say: Say = quiet,
) -> Record:
    """Time first calls: for each problem and implementation, several times an empty cache and then the filled one.

    Args:
        name: Name or path of a configuration.
        peers, num_threads, runs: Instead of the configuration's.
        only: Pattern of the problems' names, instead of the configuration's.
        say: Called with a few words before every process.

    Returns:
        The result, one row for every problem and implementation.

    Raises:
        ConfigError: The configuration cannot be used. BackendError: A process failed.
    """
    path = find_config(name)
    fields = read_fields(str(path), read_config(path), FIELDS, {})
    check_known("device", [fields["device"]], DEVICES, str(path))
    check_known("operation", [fields["operation"]], OPERATIONS, str(path))
    check_known("layout", [fields["layout"]], LAYOUTS, str(path))
    check_known("goal", fields["goals"], ("cold_ms", "warm_ms"), str(path))
    peers = fields["peers"] if peers is None else list(peers)
    check_known("peer", peers, PEERS, "peers")
    known = read_problems(path.parent / fields["problems"])
    patterns = fields["choose"] if only is None else [only]
    problems = [p for p in known.values() if any(fnmatchcase(p.name, pattern) for pattern in patterns)]
    if not problems:
        option = "choose" if only is None else "--only"
        raise ConfigError(f"{option} must match a problem among {', '.join(known)}, got {patterns[0]!r}. Correct it.")
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
                limit = fields["goals"].get(f"{state}_ms")
                measured = None if row[f"{state}_fwd"] is None else row[f"{state}_fwd"]["median"] * 1000
                if limit is not None:
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
    for number in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            for state in STATES:
                say(f"{row['problem']}, {row['implementation']}: {state}, {number + 1} of {runs}")
                found = in_fresh_process(task, Path(cache))
                if found["status"] != "ok":
                    return row | {"status": f"{found['status']}: {found['reason']}"}
                row["note"] = found["note"]
                for direction in DIRECTIONS:
                    seconds.setdefault(f"{state}_{direction}", []).append(found[direction])
    return row | {key: summary(values) for key, values in seconds.items()}


if __name__ == "__main__":
    print(json.dumps(first_calls(json.loads(sys.argv[1]))))
