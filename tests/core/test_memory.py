"""Memory that the process keeps: pages are taken from the system once, and given back when that is asked for."""

import json
import os
import subprocess
import sys

import pytest

from eqlayers.core import memory
from tests.each import each

GLIBC = hasattr(__import__("ctypes").CDLL(None), "mallopt") and sys.platform == "linux"
#: Interruptions by fresh pages in each of 20 calls that make a result of 40 MiB, in the first thread and in another.
FAULTS = """
import json, resource, sys, threading
import torch
import eqlayers

def faults():
    given, counts = torch.ones(10 * 2**20), []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        given * 2.0
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    found.append(counts)

torch.set_num_threads(1)
found, report = [], eqlayers.keep_memory() if "keep" in sys.argv else None
faults()
other = threading.Thread(target=faults)
other.start()
other.join()
with open("/proc/self/statm") as file:
    held = int(file.read().split()[1])
released = eqlayers.release_memory()
with open("/proc/self/statm") as file:
    left = int(file.read().split()[1])
print(json.dumps([found, report, held - left, released]))
"""
PAGES = 40 * 2**20 // os.sysconf("SC_PAGE_SIZE")


def run(*arguments: str, **environment: str) -> tuple[list[int], list[object] | None, int, bool]:
    """Calls of each thread without fresh pages; the report; pages that were given back, and whether any were."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    command = [sys.executable, "-c", FAULTS, *arguments]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True, timeout=120)
    found, report, given_back, released = json.loads(done.stdout)
    return [sum(count < PAGES / 10 for count in counts) for counts in found], report, given_back, released


@pytest.mark.skipif(not GLIBC, reason="a setting of the GNU C library")
def test_large_results_reuse_their_pages_in_every_thread_until_they_are_released() -> None:
    plain, _, _, _ = run()
    assert max(plain) < 5, "this system keeps memory anyway, and nothing can be seen"
    kept, report, given_back, released = run("keep")
    assert report == [True, "glibc keeps freed memory"]
    assert min(kept) > 10  # alignment leaves gaps, which settle
    assert released
    assert given_back > PAGES


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "100000"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=200000")]
)
def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    class Library:
        def mallopt(self, name: int, value: int) -> int:
            raise AssertionError("the setting must stay")

    monkeypatch.setattr(memory, "_library", Library)
    monkeypatch.setenv(name, value)
    kept, reason = memory.keep_memory()
    assert not kept
    assert reason == f"left as the environment has it: {name if '.' not in value else value[:27]}"


def test_systems_without_the_setting_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_library", lambda: None)
    for name in memory._CHOSEN:
        monkeypatch.delenv(name, raising=False)
    assert not memory.keep_memory().kept
    assert "no such setting" in memory.keep_memory().reason
    assert memory.release_memory() is False


def test_other_allocators_are_named_with_what_keeps_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        mallctl = mallopt = None

    monkeypatch.setattr(memory, "_library", Library)
    monkeypatch.delenv("MALLOC_CONF", raising=False)
    assert memory.keep_memory() == (
        False,
        "jemalloc gives memory back after a while; set MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1 to keep it",
    )
    monkeypatch.setenv("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1")
    assert memory.keep_memory() == (True, "jemalloc keeps freed memory")


PAGE = 2 << 20


@each(
    "address, size, wanted",
    [
        (0, PAGE, [(0, PAGE)]), (16, 3 * PAGE, [(PAGE, 2 * PAGE)]), (PAGE - 1, PAGE + 1, [(PAGE, PAGE)]),
        (5 * PAGE + 16, 2 * PAGE - 17, []), (5 * PAGE + 16, 2 * PAGE - 16, [(6 * PAGE, PAGE)]), (64, 4096, []),
        (PAGE, 0, []),
    ],
)  # fmt: skip
def test_whole_pages_within_a_result_are_asked_for(address: int, size: int, wanted: list[tuple[int, int]]) -> None:
    asked: list[tuple[int, int]] = []

    def madvise(first: int, length: int, advice: int) -> int:
        assert advice == 14  # MADV_HUGEPAGE of Linux
        asked.append((first, length))
        return -1  # refused, which changes nothing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_madvise", lambda: madvise)
        memory.advise_huge_pages(address, size)
        patch.setattr(memory, "_madvise", lambda: None)  # another system than Linux
        memory.advise_huge_pages(address, size)
    assert asked == wanted
