"""Compile the printed GPU kernels for processors that need not be there; count and bound.

    python docs/benchmarks/studies/printed_kernels.py --json kernels.json           (with the installed Triton)
    python docs/benchmarks/studies/printed_kernels.py --triton .venv/triton/* --json kernels.json

Registers, spills and shared memory come from the assembler. Where a card is modelled (``kernels/ptx_emulator``, a part
of a source checkout), the machine code runs on two small graphs as well, and what it did there bounds the time on a
large one. Every problem, dtype, layout and target has a process of its own, several at a time, so that a process that
runs Triton's interpreter can ask, too, and other releases of Triton than the installed one can be asked.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from study import Study, add_config, beside, main, run_fresh

from eqlayers.bench.cli import add_options, count
from eqlayers.bench.config import Field, Known, read_fields, read_settings
from eqlayers.bench.measure import describe
from eqlayers.bench.products.problems import Problem, choose, read_problems
from eqlayers.bench.products.suite import DTYPES
from eqlayers.bench.report import Layout, same
from eqlayers.bench.results import Record, Say, goal, quiet
from eqlayers.bench.stages import DIRECTIONS
from eqlayers.errors import BackendError, ConfigError
from eqlayers.irreps.layout import LAYOUTS
from eqlayers.nn import TensorProduct
from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.program import Program
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.run import aot

#: What the kernels are for -> arguments of `compile_form`.
OPERATIONS = {"product": {"graph": False}, "conv": {"graph": True}, "atomic-conv": {"graph": True, "atomic": True}}
BOUNDS = (
    "Bounds are no times: what the machine code needs at least of an H200 for 3,000 nodes and 160,000 edges, by counts "
    "of instructions and sectors; for every launch its largest limit. The floor reads every operand from main memory "
    "once and writes every result once."
)
GROUP: dict[str, Field] = {
    "operation": Known("text", "operation", OPERATIONS),
    "problems": "texts",
    "layouts": Known("texts", "layout", LAYOUTS),
    "dtypes": Known("texts", "dtype", DTYPES),
    "targets": Known("texts", "target", tuple(aot.TARGETS)),
}
#: Goals of a group, by direction: the bound, and what it is of the time that any kernel takes.
ASKED: dict[str, tuple[Field, Any]] = {
    name: (Known("numbers", "direction", DIRECTIONS), {}) for name in ("bound_ms", "times_floor")
}
#: Counts of the assembler for each kernel.
RESOURCES = ("registers", "spill_bytes", "shared_bytes")
#: What the bounds know: sm_90's machine code in float32.
BOUNDED = {"target": "sm_90", "dtype": "float32"}


def compile_all(job: dict[str, Any]) -> list[Record]:
    """Compile all directions of one problem in this process: a row for each direction."""
    import triton

    from ptx_emulator.compiled import compile_form

    problem, dtype = Problem(**job["problem"]), getattr(torch, job["dtype"])
    program = TensorProduct(**problem.arguments(), layout=job["layout"]).plan.form.program
    rows = []
    for direction, task in DIRECTIONS.items():
        start = time.perf_counter()
        with aot.target(job["target"]):
            # one thread: the other cores have processes of their own
            options: dict[str, Any] = {"shared": problem.shared, "jobs": 1, **OPERATIONS[job["operation"]]}
            compiled = compile_form(program, task, dtype, **options)
            used = [(kernel, aot.resources(binary)) for kernel, binary in compiled]
        rows.append(
            {
                "triton": triton.__version__,
                "direction": direction,
                "kernels": len(used),
                "paths": [len(kernel.text.paths) for kernel, _ in used],
                "block": [kernel.block for kernel, _ in used],
                **{name: [getattr(one, name) for _, one in used] for name in RESOURCES},
                "seconds": time.perf_counter() - start,
                **(_bounds(program, task, options) if _has_bounds(job, problem) else {}),
            }
        )
    return rows


def _has_bounds(job: dict[str, Any], problem: Problem) -> bool:
    per_edge = OPERATIONS[job["operation"]]["graph"] and not problem.shared
    return per_edge and all(job[name] == value for name, value in BOUNDED.items())


def _bounds(program: Program, task: Task, options: dict[str, Any]) -> Record:
    """Least seconds by limit of each launch, of the request, and of any kernel for it."""
    from ptx_emulator import bounds

    launches, gpu = bounds.bounds_of(program, task, atomic=options.get("atomic", False))
    least, floor = sum(one.least for one in launches), bounds.floor(program, task)
    return {
        "launches": [{"kernel": one.kernel, "binds": one.binds, "seconds": dict(one.seconds)} for one in launches],
        "bound_ms": 1000 * least,
        "times_floor": least / floor,
        "findings": sum(gpu.findings.values()),
    }


def _in_process(job: dict[str, Any], folder: str | None) -> list[Record]:
    with tempfile.TemporaryDirectory() as cache:
        environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
        if folder is not None:  # before the installed packages
            after = os.environ.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join([folder, *([after] if after else [])])
        rows: list[Record] = run_fresh(
            __file__,
            job,
            environment,
            f"the {job['dtype']} kernels of {job['problem']['name']} must compile for {job['target']}",
            "Check that triton is installed (eqlayers[triton]), or take another release (--triton).",
        )
    return rows


def run_kernels(
    config: str = beside(__file__),
    *,
    only: str | None = None,
    triton: Sequence[str] = (),
    jobs: int | None = None,
    say: Say = quiet,
) -> Record:
    """Compile the kernels of a configuration and collect what they take."""
    folders: Sequence[str | None] = [_checked(folder) for folder in triton] or [None]
    tasks = list(product(folders, _tasks(config, only)))
    if find_spec("ptx_emulator") is None:
        raise ConfigError(
            "the package ptx_emulator must be found, which compiles and bounds kernels, got a Python that does not "
            "look into the folder kernels/. Type pip install -e ., or set PYTHONPATH=.:kernels."
        )
    rows: list[Record] = []
    failed: list[BackendError] = []
    for outcome in _compiled(tasks, jobs or os.cpu_count() or 1, say):
        if isinstance(outcome, BackendError):
            failed.append(outcome)
        else:
            rows += outcome
    if not rows:
        raise failed[0]
    notes = [
        "Registers of a thread and shared memory of a program: the largest of the kernels. "
        "Compiled without a GPU, by the assembler that Triton brings along; nothing was run on one.",
        *([BOUNDS] if any("bound_ms" in row for row in rows) else []),
        *map(str, failed),
    ]
    head = describe()
    head["versions"].pop("triton")  # every row has its own
    return {"kind": "kernels", **head, "rows": rows, "goals": list(_goals(rows, len(failed))), "notes": notes}


def _checked(folder: str) -> str:
    if not Path(folder, "triton").is_dir():
        raise ConfigError(
            f"--triton must name folders with a folder triton in them, got {folder!r}. "
            f"Make it: pip install --no-deps --target {folder} triton==..."
        )
    return str(Path(folder).resolve())


def _tasks(name: str, only: str | None) -> list[dict[str, Any]]:
    path, top = read_settings(name, {"problems": "text", "cases": "mapping"})
    problems = read_problems(path.parent / top["problems"])
    tasks, names = [], []
    for group, entries in top["cases"].items():
        where = f"{path}, {group}"
        fields = read_fields(where, entries, GROUP, ASKED)
        chosen = choose(problems, fields["problems"], f"{where}: problems")
        names += [f"{group}/{problem.name}" for problem in chosen]
        about = {"operation": fields["operation"], "goals": {name: fields[name] for name in ASKED}}
        for problem, layout, dtype, target in product(
            chosen, *(fields[key] for key in ("layouts", "dtypes", "targets"))
        ):
            if fnmatchcase(f"{group}/{problem.name}", only or "*"):
                tasks.append({"problem": asdict(problem), **about, "layout": layout, "dtype": dtype, "target": target})
    if not tasks:
        raise ConfigError(f"--only must match a case of {path.stem}, got {only!r}. The cases are {', '.join(names)}.")
    return tasks


def _compiled(
    tasks: Sequence[tuple[str | None, dict[str, Any]]], jobs: int, say: Say
) -> Iterator[list[Record] | BackendError]:
    """Rows of each task, or why there are none."""
    done: list[Record] = []

    def work(number: int) -> list[Record] | BackendError:
        folder, job = tasks[number]
        about = {key: value for key, value in job.items() if key != "goals"} | {"problem": job["problem"]["name"]}
        outcome: list[Record] | BackendError
        try:
            outcome = [{**about, **row, "goals": job["goals"]} for row in _in_process(job, folder)]
            state = f"compiled with triton {outcome[0]['triton']}"
        except BackendError as error:
            outcome, state = error, "failed"
        done.append(about)
        say(f"{len(done)} of {len(tasks)}: {' '.join(about.values())} {state}")
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(work, range(len(tasks)))


def _goals(rows: Sequence[Record], failed: int) -> Iterator[Record]:
    """Everything compiles, without spills, and takes what the tuning table grants a kernel of each processor."""

    def largest(quantity: str, of: Sequence[Record]) -> float:
        return float(max(max(row[quantity]) for row in of))

    yield goal("failed", 0, float(failed), where="all kernels")
    yield goal("spill_bytes", 0, largest("spill_bytes", rows), where="all kernels")
    for target in dict.fromkeys(row["target"] for row in rows):
        here = [row for row in rows if row["target"] == target]
        granted = tuning.processor(*aot.TARGETS[target][:2])
        yield goal("registers", granted.most_registers, largest("registers", here), where=target)
        yield goal("shared_bytes", granted.shared_bytes, largest("shared_bytes", here), where=target)
    bounded = [row for row in rows if "bound_ms" in row]
    if bounded:
        yield goal("findings", 0, float(sum(row["findings"] for row in bounded)), where="emulated kernels")
    for row in bounded:
        about = {"where": f"{row['problem']} {row['operation']}, Triton {row['triton']},"}
        about |= {name: row[name] for name in ("layout", "direction")}
        for name, limits in row["goals"].items():
            if row["direction"] in limits:
                yield goal(name, limits[row["direction"]], row[name], **about)


def _binds(row: Record) -> str:
    """Limits, by the time of the launches that each binds."""
    times: dict[str, float] = {}
    for one in row.get("launches", ()):
        times[one["binds"]] = times.get(one["binds"], 0.0) + max(one["seconds"].values())
    long = [name for name in times if times[name] >= 0.1 * sum(times.values())]
    return ", ".join(sorted(long, key=times.__getitem__)[::-1]) or "-"


def _options(parser: argparse.ArgumentParser) -> None:
    add_config(parser, __file__)
    add_options(parser, "only")
    about = "folders of other releases (pip install --no-deps --target FOLDER triton==...); the installed one if none"
    parser.add_argument("--triton", help=about, metavar="FOLDER", nargs="+", default=())
    parser.add_argument("--jobs", help="processes at a time; as many as cores by default", type=count)


LAYOUT = Layout(
    "printed kernels, compiled ahead of time",
    same("problem", "operation", "layout", "dtype", "triton", "target", "direction", ">kernels")
    | {">registers": "registers?: largest", ">spilled bytes": "spill_bytes?: largest"}
    | {">shared bytes": "shared_bytes?: largest", ">seconds to compile": "seconds?: number"}
    | {">bound, ms": "bound_ms?: number", ">bound / floor": "times_floor?: number", "what binds": _binds},
    words={
        "failed": "processes that failed",
        "spill_bytes": "bytes spilled",
        "registers": "registers of a thread",
        "shared_bytes": "bytes of shared memory",
        "bound_ms": "ms, bound",
        "times_floor": "times the floor, bound",
        "findings": "races, accesses out of bounds and the like",
    },
)
ABOUT = "Compile the GPU kernels without a GPU: registers, spills, shared memory, bounds."
STUDY = Study(__file__, ABOUT, "kernels", LAYOUT, run_kernels, _options, compile_all)
if __name__ == "__main__":
    main(STUDY)
