"""Functions of the stages of `eqlayers bench first-gpu`; each writes its results after every row."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.forms.program import OPERANDS
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.run import aot, compiling, edges, forms

from ..core.files.read_write import atomic_write
from ..nn import TensorProduct
from .config import find_config
from .measure import PACKAGES, alternate, copy_bandwidth, flush_buffer, installed, release, summary
from .products.check import check
from .products.implementation import ours
from .products.operands import draw
from .products.problems import GraphSpec, Problem, read_problems
from .products.suite import Case
from .results import Record
from .roofline import GRAPH, MEMORY, bound_of

DIRECTIONS = {
    "fwd": Task(0, ("z",)),
    "bwd": Task(1, ("x", "y", "w")),
    "double_bwd": Task(2, ("x", "y", "w", "z"), ("x", "y", "w")),
}
Keep = Callable[[Record], None]
#: Packages of the extras, whose versions are reported.
EXTRAS = (
    *("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "PyYAML", "rich", "matplotlib", "jsonargparse"),
    *("lightning", "torch-geometric", "ase", "vesin", "scipy"),
)
#: Queried fields of nvidia-smi.
QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,ecc.mode.current,memory.total"
#: Convolutions of the smoke test: channels, dtype, layout, whether sums are deterministic.
SMOKE = (
    (32, "float32", "ir_mul", True),
    (32, "float32", "mul_ir", True),
    (33, "bfloat16", "mul_ir", True),
    (5, "float16", "ir_mul", True),
    (64, "float64", "ir_mul", True),
    (128, "float32", "ir_mul", True),
    (32, "float32", "ir_mul", False),
)
#: Problems whose kernels are timed, the largest first.
PROBLEMS = ("mace-large", "nequip-toluene", "own-graded")
#: Nodes and edges of a dry run.
DRY = (5, 9)
RUNS = 10


def output_of(*command: str) -> str | None:
    """Output of a program; None if it is not installed."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return "no answer within 20 s"
    return (done.stdout + done.stderr).strip()[-2000:]


def environment(dry: bool, keep: Keep) -> None:
    """Record versions, driver and tools, and why kernels cannot run if so."""
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    keep(
        {
            "python": platform.python_version(),
            "packages": {name: installed(name) for name in (*PACKAGES, *EXTRAS)} | {"torch": str(torch.__version__)},
            "cores": os.cpu_count(),
            "gpu": output_of("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv") or output_of("rocm-smi"),
            "tools": {name: shutil.which(name) for name in ("gcc", "clang", "nvcc", "ncu", "compute-sanitizer")},
            "python_headers": str(headers) if headers.is_file() else None,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "triton": availability.why_not() or "runs",
            "c": compiler.why_not() or "runs",
        }
    )


def smoke(dry: bool, keep: Keep) -> None:
    """Check small convolutions one by one, so that the first failure names its kernel."""
    device = torch.device("cpu" if dry else "cuda")
    rows: list[Record] = []
    for mul, dtype, layout, fixed in SMOKE:
        row: Record = {"channels": mul, "dtype": dtype, "layout": layout, "deterministic": fixed}
        start = time.perf_counter()
        problem = Problem("smoke", "uvu", f"{mul}x0e+{mul}x1o", "0e+1o", "0e+1o")
        case = Case("smoke", problem, "conv", GraphSpec("smoke", 50, 700))
        try:
            operands = draw(problem, "conv", case.graph, getattr(torch, dtype), device)
            assert operands.edge_index is not None
            operands.edge_index[1, :300] = 7  # a node whose edges are split among programs
            item = ours(case, operands, layout, None if dry else "triton", deterministic=fixed)
            verdicts = check(problem, operands, [item], tuple(DIRECTIONS)).values()
            row["times_bound"] = max(verdict.error or 0.0 for verdict in verdicts)
            if wrong := [verdict.reason for verdict in verdicts if verdict.status != "ok"]:
                row["error"] = "; ".join(wrong)
        except Exception as error:
            row["error"] = _short(error)
        rows.append({**row, "seconds": time.perf_counter() - start})
        keep({"rows": rows})
    if failed := [row for row in rows if "error" in row]:
        sys.exit(f"{len(failed)} of {len(rows)} convolutions are wrong or do not run: {failed}")


def kernels(dry: bool, keep: Keep) -> None:
    """Time the convolutions that have goals, with their bounds on this GPU."""
    speed = None if dry else copy_bandwidth("cuda", RUNS)["median"]

    def requests() -> Iterator[tuple[Record, dict[str, Any]]]:
        for problem in PROBLEMS[: 1 if dry else None]:
            for layout in ("ir_mul", "mul_ir")[: 1 if dry else None]:
                for direction in [*DIRECTIONS][: 1 if dry else None]:
                    yield {"problem": problem, "layout": layout, "direction": direction}, {}

    def bounds(row: Record) -> Record:
        about = {**row, "operation": "conv", "dtype": "float32"}
        least = bound_of(about, speed or MEMORY, *GRAPH)
        if least is None:
            return {}
        times = {} if "ms" not in row else {"times_bound": row["ms"]["median"] / 1000 / least}
        return {"bound_ms": 1000 * least, **times}

    time_requests(dry, keep, requests(), bounds)


def time_requests(
    dry: bool, keep: Keep, requests: Iterator[tuple[Record, dict[str, Any]]], bounds: Callable[[Record], Record]
) -> None:
    """Time each request, or compile it for sm_90 in a dry run; errors are recorded in its row.

    ``requests`` yields the fields of a row and options of `timed`; ``bounds`` adds fields to a row.
    """
    rows: list[Record] = []
    problems = read_problems(find_config("uvu"))
    with aot.target("sm_90") if dry else nullcontext():
        on = (
            tuning.processor("cuda", 90, availability.release())
            if dry
            else availability.processor_of(torch.device("cuda"))
        )
        for about, options in requests:
            row, start = dict(about), time.perf_counter()
            try:
                arguments = problems[about["problem"]].arguments()
                program = TensorProduct(**arguments, layout=about["layout"]).plan.form.program
                row |= timed(program, DIRECTIONS[about["direction"]], on, dry, **options)
                row |= bounds(row)
            except Exception as error:
                row["error"] = _short(error)
            rows.append({**row, "seconds": time.perf_counter() - start})
            keep({"rows": rows})
            release(torch.device("cpu" if dry else "cuda"))
    if failed := sum("error" in row for row in rows):
        sys.exit(f"{failed} of {len(rows)} requests failed; the rows say why")


def timed(program: Any, task: Any, on: tuning.Processor, dry: bool, **options: Any) -> Record:
    """Times of a task and of each of its kernels, or registers and spills in a dry run."""
    fields = options.pop("fields", {})
    runner = forms.FormRunner(program, task, torch.float32, True, False, on._replace(**fields), **options)
    (nodes, count), device = (DRY, "cpu") if dry else (GRAPH, "cuda")
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(nodes, (2, count), generator=generator)
    index[1] = index[1].sort().values
    tables = edges.unpack(edges.pack(index.to(device), nodes, nodes), count, nodes, nodes)
    widths = dict(zip(OPERANDS, program.widths, strict=True))
    tensors = {
        name: torch.randn(nodes if operand in "xz" else count, widths[operand], generator=generator).to(device)
        for name, operand in runner.inputs
    }
    blocks = {"block": [kernel.block for kernel in runner.plan.kernels]}
    if dry:
        used = [aot.resources(kernel) for kernel in compiling.compile_calls(runner.prepare(tensors, tables)[2], jobs=1)]
        return {**blocks, "registers": [u.registers for u in used], "spill_bytes": [u.spill_bytes for u in used]}
    finite = all(bool(torch.isfinite(result).all()) for result in runner(tensors, tables).values())
    flush = flush_buffer(torch.device(device))
    (seconds,) = alternate([lambda: runner(tensors, tables)], RUNS, device, flush=flush)
    milliseconds = summary([1000 * time for time in seconds])
    return {**blocks, "finite": finite, "ms": milliseconds, "kernels": _launches(lambda: runner(tensors, tables))}


def _launches(call: Callable[[], Any]) -> list[tuple[str, float]]:
    """Name and milliseconds of each kernel launched by a call, in order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        call()
        torch.cuda.synchronize()
    kernels = [event for event in seen.events() if "CUDA" in str(event.device_type) and "Memset" not in event.name]
    kernels.sort(key=lambda event: event.time_range.start)
    return [(event.name, (event.time_range.end - event.time_range.start) / 1000) for event in kernels]


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[-600:]}"


STAGES: dict[str, Callable[[bool, Keep], None]] = {stage.__name__: stage for stage in (environment, smoke, kernels)}


def main(task: Record, stages: Mapping[str, Callable[[bool, Keep], None]] = MappingProxyType(STAGES)) -> None:
    """Run one stage, and write its results to the file of the task."""

    def keep(facts: Record) -> None:
        with atomic_write(task["file"]) as file:
            file.write(json.dumps(facts, default=str).encode())

    stages[task["stage"]](task["dry"], keep)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
