"""Puts every fault of mutations.yaml into a copy of the source, and sees that the tests beside the source fail.

Run `nox -s mutations`, and `nox -s mutations -- batch_norm atoms` for the files with these words in their names. The
command ends with 1 if a fault lives, if a test fails without a fault, or if a fault stops pytest itself. Two
processes share the files, each in a copy of its own, and both keep kernels where the tests do, so that a fault compiles
only the kernels that it changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import yaml
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
KERNELS = ROOT / ".pytest_cache" / "eqlayers"
PASSED, FAILED = 0, 1  # of pytest; more than these is a mistake in the fault, such as a syntax error


def copied(to: Path) -> Path:
    """The files that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def run_tests(tree: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Pytest in the copy, up to the first failure."""
    paths = os.pathsep.join([str(tree), str(tree / "kernels")])
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", tests]
    environment = {"OMP_NUM_THREADS": "1", "EQLAYERS_TEST_CACHE": str(KERNELS), **os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


def try_faults(row: dict[str, Any], tree: Path, say: Callable[[str], None]) -> tuple[int, int]:
    """Numbers of faults of a row that are caught, and that live or cannot be used; one for tests that fail anyway."""
    path, tests = tree / row["file"], row["tests"]
    source = path.read_text()
    if (plain := run_tests(tree, tests)).returncode != PASSED:
        say(f"NOT USABLE  {tests} must pass without a fault, got\n{plain.stdout[-2000:]}")
        return 0, 1
    wrong = caught = 0
    for fault in row["faults"]:
        path.write_text(source.replace(fault["old"], fault["new"]))
        code = run_tests(tree, tests).returncode
        word = {PASSED: "LIVES", FAILED: "caught"}.get(code, f"NOT USABLE (pytest: {code})")
        wrong, caught = wrong + (code != FAILED), caught + (code == FAILED)
        say(f"{word:7} {row['file']}: {fault['is']}")
    path.write_text(source)
    return caught, wrong


def main(words: list[str]) -> int:
    """Number of faults that live, and of files whose tests cannot be used."""
    rows = yaml.safe_load((ROOT / "tests/mutations/mutations.yaml").read_text())
    rows = [row for row in rows if not words or any(word in row["file"] for word in words)]
    free: Queue[Path] = Queue()  # copies in which no fault is
    with tempfile.TemporaryDirectory() as folder, Progress() as progress, ThreadPoolExecutor(PROCESSES) as pool:
        for number in range(PROCESSES):
            free.put(copied(Path(folder) / str(number)))
        bar = progress.add_task("faults", total=sum(len(row["faults"]) for row in rows))

        def work(row: dict[str, Any]) -> tuple[int, int]:
            tree = free.get()
            try:
                return try_faults(row, tree, progress.print)
            finally:
                free.put(tree)
                progress.advance(bar, len(row["faults"]))

        outcomes = list(pool.map(work, rows))
    caught, wrong = (sum(numbers) for numbers in zip((0, 0), *outcomes, strict=True))
    print(f"{caught} faults caught, {wrong} lived or could not be used")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
