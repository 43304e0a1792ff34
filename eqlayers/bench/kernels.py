"""`eqlayers bench kernels`: compile the printed GPU kernels for processors that need not be there, and count registers.

Every problem, dtype, layout and target is compiled in a process of its own, several at a time, so that a process that
runs Triton's interpreter can ask, too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import torch

from eqlayers_kernels.lines import Kind
from eqlayers_kernels.triton import aot

from ..errors import ConfigError
from ..info.layout import LAYOUTS
from ..nn.tensor_product import TensorProduct
from .config import check_known, find_config, read_fields, read_yaml
from .fresh import run_fresh
from .goals import Record, goal
from .machine import describe
from .problems import Problem, read_problems
from .run import Say, quiet

FIELDS = {
    "problems": "text",
    **dict.fromkeys(("choose", "layouts", "dtypes", "targets"), "texts"),
}
DTYPES = ("float32", "float64", "float16", "bfloat16")
DIRECTIONS = {
    "fwd": Kind(0, ("z",)),
    "bwd": Kind(1, ("x", "y", "w")),
    "double_bwd": Kind(2, ("x", "y", "w", "z"), ("x", "y", "w")),
}


def compile_all(task: dict[str, Any]) -> list[Record]:
    """Compile all directions of one convolution, in this process.

    Args:
        task: problem (its fields), layout, dtype and target.

    Returns:
        One row per direction.
    """
    problem = Problem(**task["problem"])
    program = TensorProduct(**problem.arguments(), layout=task["layout"]).plan.form.program
    rows = []
    for direction, kind in DIRECTIONS.items():
        start = time.perf_counter()
        with aot.target(task["target"]):
            found = [
                (piece, aot.resources(kernel))
                for piece, kernel in aot.compile_form(
                    program, kind, getattr(torch, task["dtype"]), True, problem.shared
                )
            ]
        rows.append(
            {
                "direction": direction,
                "kernels": len(found),
                "paths": [len(piece.text.paths) for piece, _ in found],
                "block": [piece.block for piece, _ in found],
                "registers": [used.registers for _, used in found],
                "spill_bytes": [used.spill_bytes for _, used in found],
                "shared_bytes": [used.shared_bytes for _, used in found],
                "seconds": time.perf_counter() - start,
            }
        )
    return rows


def _in_process(task: dict[str, Any]) -> list[Record]:
    with tempfile.TemporaryDirectory() as cache:
        found: list[Record] = run_fresh(
            __name__,
            task,
            {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache},
            f"the kernels of {task['problem']['name']} must compile for {task['target']}",
            "Check that triton is installed (eqlayers[triton]).",
        )
    return found


def run_kernels(name: str = "kernels", *, only: str | None = None, jobs: int | None = None, say: Say = quiet) -> Record:
    """Compile the kernels of a configuration and collect what they take.

    Args:
        name: Name or path of a configuration.
        only: Pattern of the problems' names, instead of the configuration's.
        jobs: Processes at a time; as many as cores if None.
        say: Called with a few words when a process is done.

    Returns:
        The result, one row for every problem, layout, dtype, target and direction.

    Raises:
        ConfigError: The configuration cannot be used. BackendError: A kernel does not compile.
    """
    path = find_config(name)
    fields = read_fields(str(path), read_yaml(path), FIELDS, {})
    for what, known in (("layout", LAYOUTS), ("dtype", DTYPES), ("target", tuple(aot.TARGETS))):
        check_known(what, fields[f"{what}s"], known, str(path))
    patterns = fields["choose"] if only is None else [only]
    everything = read_problems(path.parent / fields["problems"])
    problems = [p for p in everything.values() if any(fnmatchcase(p.name, pattern) for pattern in patterns)]
    if not problems:
        option = "choose" if only is None else "--only"
        raise ConfigError(
            f"{option} must match a problem among {', '.join(everything)}, got {patterns[0]!r}. Correct it."
        )
    cases = product(problems, fields["layouts"], fields["dtypes"], fields["targets"])
    tasks = [{"problem": asdict(p), "layout": layout, "dtype": d, "target": t} for p, layout, d, t in cases]
    rows = list(_rows(tasks, jobs or os.cpu_count() or 1, say))
    goals = [goal("spill_bytes", 0, float(max(max(row["spill_bytes"]) for row in rows)), where="all kernels")]
    notes = [
        "Convolutions over a graph. Registers of a thread and shared memory of a program: the largest of the kernels. "
        "Compiled without a GPU, by the assembler that Triton brings along; nothing was run."
    ]
    return {"kind": "kernels", **describe(), "rows": rows, "goals": goals, "notes": notes}


def _rows(tasks: Sequence[dict[str, Any]], jobs: int, say: Say) -> Iterator[Record]:
    with ThreadPoolExecutor(jobs) as pool:
        for task, found in zip(tasks, pool.map(_in_process, tasks), strict=True):
            about = {"problem": task["problem"]["name"], **{k: task[k] for k in ("layout", "dtype", "target")}}
            say(" ".join(about.values()))
            yield from ({**about, **row} for row in found)


if __name__ == "__main__":
    print(json.dumps(compile_all(json.loads(sys.argv[1]))))
