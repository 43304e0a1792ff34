"""The command `eqlayers bench first-gpu`: tests and benchmarks for a new GPU, in independent stages.

Each stage is a separate process with a time limit. The result is written after each stage, and a second call with the
same folder continues with the next one. This process does not use the GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import ConfigError
from ..core.files.read_write import read_json
from .config import check_known
from .measure import describe, find_device
from .results import Record, Say, goal, load, quiet, save
from .roofline import TIMES_BOUND

FILE = "first-gpu.json"
#: Default time limit of all stages together, in seconds.
BUDGET = 1500
#: Least remaining time in seconds to start a stage.
LEAST = 10
#: Last characters of the output of a failed stage that the JSON stores; the log has all.
TAIL = 4000
#: Test files that launch kernels.
TESTS = (
    *("tests/gpu", "tests/bench/gpu/test_problems.py", "tests/sparse/test_segments.py"),
    "tests/core/backends/triton/test_forms.py",
    *("tests/core/backends/triton/test_formulas.py", "tests/core/backends/triton/test_layers.py"),
    *("tests/core/backends/triton/test_tables.py", "tests/kernels/triton/test_availability.py"),
    *("tests/kernels/triton/run/test_forms.py", "tests/kernels/triton/run/test_formula_run.py"),
    "tests/kernels/triton/run/test_segment.py",
)
ROOT = Path(__file__).resolve().parents[2]
CARD = (str(ROOT / "docs" / "benchmarks" / "studies" / "card.py"),)
_EQLAYERS = (sys.executable, "-m", "eqlayers", "bench")
_PEERS = {"cuequivariance": "cuequivariance_torch", "openequivariance": "openequivariance", "e3nn": "e3nn"}


SANITIZER = "compute-sanitizer"
#: Requirement of a stage -> function that checks it, and reason if it is missing.
NEEDS: dict[str, tuple[Callable[[], object], str]] = {
    "suites": (lambda: find_spec("yaml"), "its problems are YAML, and PyYAML is not installed"),
    "checkout": (lambda: (ROOT / "tests").is_dir(), "it is a part of a source checkout"),
    "pytest": (lambda: find_spec("pytest"), "pytest is not installed"),
    "sanitizer": (lambda: shutil.which(SANITIZER), f"{SANITIZER} is not on the path"),
}


class Setting(NamedTuple):
    """Folder for results, and whether kernels are only compiled (dry run)."""

    folder: Path
    dry: bool


class Stage(NamedTuple):
    """One stage.

    Attributes:
        seconds: Time limit.
        about: Description.
        commands: Function that returns its command lines; None for a function of ``program``.
        needs: Keys of :data:`NEEDS`.
        results: Names of result files of its commands, for `eqlayers bench report`.
        program: Arguments of Python that run the stage's function.
    """

    seconds: int
    about: str
    commands: Callable[[Setting], list[list[str]]] | None = None
    needs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", "eqlayers.bench.stages")


def _tests(setting: Setting) -> list[list[str]]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not long", "-W", "default", "--maxfail=20"]
    command += ["-p", "no:cacheprovider", f"--junitxml={setting.folder / 'tests.xml'}"]
    if find_spec("xdist") is not None and not setting.dry:
        command += ["-n", str(min(8, os.cpu_count() or 1))]
    return [[*command, *(["--collect-only"] if setting.dry else []), *TESTS]]


def _peers(setting: Setting) -> list[list[str]]:
    there = [name for name, module in _PEERS.items() if find_spec(module) is not None]
    suite = ["smoke", "--only", "unfused/small/*"] if setting.dry else ["gpu", "--only", "target/*"]
    names = "e3nn" if setting.dry else ",".join(["eqlayers-unordered", *there])
    return [[*_EQLAYERS, "run", *suite, "--peers", names, "--json", str(setting.folder / "gpu-target.json")]]


def _small(setting: Setting) -> list[list[str]]:
    how = ["--config", "overhead", "--runs", "2"] if setting.dry else ["--config", "gpu-overhead"]
    return [[*_EQLAYERS, "overhead", *how, "--json", str(setting.folder / "gpu-overhead.json")]]


def _sanitizer(setting: Setting) -> list[list[str]]:
    if setting.dry:
        return [[SANITIZER, "--version"]]
    check = [*_EQLAYERS, "run", "gpu-small", "--only", "check*"]
    return [[SANITIZER, "--error-exitcode", "9", "--tool", name, *check] for name in ("memcheck", "racecheck")]


#: Stages in their order; the limits add up to the budget.
STAGES = {
    "environment": Stage(60, "packages, driver, tools, and whether kernels can be compiled"),
    "smoke": Stage(90, "one small convolution of each kind beside torch in float64"),
    "bandwidth": Stage(
        60, "bandwidth of memory and cache, peak of multiply-adds, launches", None, ("checkout",), program=CARD
    ),
    "kernels": Stage(210, "the kernels of large convolutions beside their bounds", None, ("suites",)),
    "tests": Stage(300, "tests of kernels, without compilations ahead of time", _tests, ("checkout", "pytest")),
    "peers": Stage(240, "the case with goals, checked, beside installed peers", _peers, ("suites",), ("gpu-target",)),
    "small": Stage(90, "host time of calls on one molecule", _small, ("suites",), ("gpu-overhead",)),
    "sanitizer": Stage(180, "small cases under compute-sanitizer", _sanitizer, ("suites", "sanitizer")),
    "sweep": Stage(270, "constants of the tuning table, one at a time", None, ("checkout", "suites"), program=CARD),
}


def run_first_gpu(
    folder: Path,
    *,
    stages: Sequence[str] | None = None,
    budget: float = BUDGET,
    dry: bool = False,
    again: bool = False,
    say: Say = quiet,
) -> Record:
    """Run stages that are not done yet, and write the result after each."""
    names = list(STAGES if stages is None else stages)
    check_known("stage", names, STAGES, "--stages")
    if not dry:
        find_device("cuda", "first-gpu")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out must be a folder that can be made, got {folder}: {error.strerror}. Name another."
        ) from error
    setting, path, begun = Setting(folder.resolve(), dry), folder / FILE, time.monotonic()
    before = load(path)["rows"] if path.is_file() else []
    rows: dict[str, Record] = {row["stage"]: row for row in before if row["dry"] == dry}
    head = describe()
    for name in names:
        if not again and rows.get(name, {}).get("status") == "done":
            say(f"{name}: done before")
            continue
        left = min(STAGES[name].seconds, budget - (time.monotonic() - begun))
        if left < LEAST:
            row: Record = {**_row(name, setting), "status": "no time", "reason": "the budget was spent before it"}
        else:
            say(f"{name}: {STAGES[name].about}, {left:.0f} s at most")
            row = _run_stage(name, setting, left)
        rows[name] = row
        say(f"{name}: {row['status']} after {row['seconds']:.0f} s{'' if not row['reason'] else ', ' + row['reason']}")
        save(_result(rows, head, dry), path)
    return _result(rows, head, dry)


def _result(rows: dict[str, Record], head: Record, dry: bool) -> Record:
    ordered = [rows[name] for name in STAGES if name in rows]
    times = rows.get("kernels", {}).get("found", {}).get("rows", [])
    goals = [
        goal("times_bound", TIMES_BOUND, row.get("times_bound"), where=f"{row['problem']} conv", layout=row["layout"])
        | {"direction": row["direction"]}
        for row in times
        if "bound_ms" in row
    ]
    note = "Nothing was launched on a GPU: kernels were compiled for sm_90." if dry else "Each stage is a process."
    return {"kind": "first-gpu", **head, "dry": dry, "rows": ordered, "goals": goals, "notes": [note]}


def _row(name: str, setting: Setting) -> Record:
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    about = {"stage": name, "about": STAGES[name].about, "dry": setting.dry, "date": date}
    return about | {"seconds": 0.0, "reason": "", "tail": "", "commands": [], "files": [], "found": {}}


def _run_stage(name: str, setting: Setting, seconds: float) -> Record:
    row, stage, start = _row(name, setting), STAGES[name], time.monotonic()
    facts, log = setting.folder / f"found-{name}.json", setting.folder / f"{name}.log"
    results = [setting.folder / f"{file}.json" for file in stage.results]
    for old in (facts, *results):
        old.unlink(missing_ok=True)
    for there, why in (NEEDS[need] for need in stage.needs):
        if not there():
            return row | {"status": "left out", "reason": why}
    task = {"stage": name, "dry": setting.dry, "file": str(facts)}
    commands = [[sys.executable, *stage.program, json.dumps(task)]]
    commands = commands if stage.commands is None else stage.commands(setting)
    status, reason = "done", ""
    with log.open("wb") as out:
        for command in commands:
            left = seconds - (time.monotonic() - start)
            code = _ended(command, out, left, _environment(name)) if left > 0 else None
            if code != 0:
                status = "timed out" if code is None else "failed"
                reason = f"no end within {seconds:.0f} s" if code is None else f"exit status {code}"
                break
    text = log.read_bytes().decode(errors="replace")
    row |= {"status": status, "reason": reason, "seconds": time.monotonic() - start, "commands": commands}
    row["files"] = [file.name for file in (log, *results) if file.is_file()]
    row["tail"] = text[-TAIL:] if status != "done" or name in ("tests", "sanitizer") else ""
    if facts.is_file():  # written after each row, so partial results of an interrupted stage are kept
        row["found"] = read_json(facts, "what a stage found", "Run the stage again.")
        facts.unlink()
    return row


def _environment(name: str) -> dict[str, str]:
    """Environment variables of a stage: without Triton's interpreter, except for tests."""
    paths = [str(ROOT), str(ROOT / "kernels")] if (ROOT / "kernels").is_dir() else []
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
    variables.pop("TRITON_INTERPRET", None)
    if name == "sanitizer":  # torch's caching allocator would hide out-of-bounds accesses
        variables["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    return variables if name == "tests" else {**variables, "TRITON_INTERPRET": "0"}


def _ended(command: Sequence[str], out: Any, seconds: float, environment: dict[str, str]) -> int | None:
    """Run a process with a time limit and kill its process group; the exit status, or None after the limit."""
    process = subprocess.Popen(
        command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
        cwd=ROOT if (ROOT / "tests").is_dir() else None, start_new_session=True, preexec_fn=_end_with_parent,
    )  # fmt: skip
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # after an interrupt as well
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_with_parent() -> None:
    """Let Linux kill this process when its parent ends, so that no stage keeps the GPU."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
