"""Puts every fault of mutations.yaml into a copy of the source, and sees that the tests beside the source fail.

Run `nox -s mutations`, and `nox -s mutations -- batch_norm atoms` for the files with these words in their names. The
command ends with 1 if a fault lives, if a test fails without a fault, or if a fault stops pytest itself. Two
processes share the files, each in a copy of its own, and both keep kernels where the tests do, so that a fault compiles
only the kernels that it changes.
"""

import multiprocessing
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

import pytest
import torch
import yaml
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
KERNELS = ROOT / ".pytest_cache" / "eqlayers"
#: Packages that most tests import, none of them this one: imported once, they need not be for each fault.
IMPORTED = [
    "pytest",
    "e3nn.o3",
    "lightning",
    "torch_geometric.data",
    "ase",
    "pandas",
    "matplotlib.pyplot",
    "hypothesis",
]
FORKS = multiprocessing.get_context("forkserver")
PASSED, FAILED = 0, 1  # of pytest; more than these is a mistake in the fault, such as a syntax error


def copied(to: Path) -> Path:
    """The files that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def run_pytest(tree: Path, tests: str, output: Path) -> None:
    """Run pytest in a copy, up to the first failure, and exit with its code; a file takes what is printed."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    sys.path[:0] = paths = [str(tree), str(tree / "kernels")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.dont_write_bytecode = True
    # a plugin that was imported before pytest began keeps its plain assertions, which is right here
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *quiet, "-m", "not slow", tests])
    sys.exit(int(code))


def run_tests(tree: Path, tests: str) -> tuple[int, str]:
    """Code and output of pytest in the copy. Its process is forked from one that has imported torch and others."""
    output = tree / "output.txt"
    process = FORKS.Process(target=run_pytest, args=(tree, tests, output))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, output.read_text()


def try_faults(row: dict[str, Any], tree: Path, say: Callable[[str], None]) -> tuple[int, int]:
    """Numbers of faults of a row that are caught, and that live or cannot be used; one for tests that fail anyway."""
    path, tests = tree / row["file"], row["tests"]
    source = path.read_text()
    code, output = run_tests(tree, tests)
    if code != PASSED:
        say(f"NOT USABLE  {tests} must pass without a fault, got\n{output[-2000:]}")
        return 0, 1
    wrong = caught = 0
    for fault in row["faults"]:
        path.write_text(source.replace(fault["old"], fault["new"]))
        code, _ = run_tests(tree, tests)
        word = {PASSED: "LIVES", FAILED: "caught"}.get(code, f"NOT USABLE (pytest: {code})")
        wrong, caught = wrong + (code != FAILED), caught + (code == FAILED)
        say(f"{word:7} {row['file']}: {fault['is']}")
    path.write_text(source)
    return caught, wrong


def main(words: list[str]) -> int:
    """Number of faults that live, and of files whose tests cannot be used."""
    rows = yaml.safe_load((ROOT / "tests/mutations/mutations.yaml").read_text())
    rows = [row for row in rows if not words or any(word in row["file"] for word in words)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("EQLAYERS_TEST_CACHE", str(KERNELS))
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # as the tests do, which set it before triton is imported
    FORKS.set_forkserver_preload(IMPORTED)
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
