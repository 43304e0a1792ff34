"""Printed and hand-written C under AddressSanitizer, UBSan and ThreadSanitizer: all walks, orders, layouts, weights.

Each part is a process without torch, see sanitized.py; its numbers are held against the interpreter as well.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eqlayers_kernels.c.build import compiler

pytestmark = [pytest.mark.slow, pytest.mark.sanitizer]
SCRIPT = Path(__file__).with_name("sanitized.py")
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
#: Parts, and the least number of runs in each.
CLEAN = {
    "address": {
        **dict.fromkeys(("rows-0", "rows-1", "rows-2"), 60),
        **dict.fromkeys(("by_dst-0", "by_dst-2", "by_src-1", "by_src-2", "to_src-1"), 200),
        "moves": 500,
        "sorting": 100,
        "tabled": 300,
    },
    "thread": {"rows-1": 60, "by_dst-0": 80, "by_src-2": 80, "tabled": 300},
}
FAULTS = {
    "read": ("address", "heap-buffer-overflow.*READ of size 8"),
    "write": ("address", "heap-buffer-overflow.*WRITE of size 8"),
    "overflow": ("address", "signed integer overflow"),
    "race": ("thread", "data race"),
}


def run(sanitizer: str, part: str) -> subprocess.CompletedProcess[str]:
    """One part in a process of its own, with the runtime of the compiler's sanitizer loaded first."""
    if (reason := compiler.why_not()) is not None:
        pytest.skip(f"C kernels: {reason}")
    command = (*compiler.toolchain().command, f"-print-file-name={RUNTIMES[sanitizer]}")
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip(f"{command[0]} has no {RUNTIMES[sanitizer]}")
    environment = os.environ | {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "TSAN_OPTIONS": "halt_on_error=1",  # the first race tells enough; the planted one comes up to a million times
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.run(
        (sys.executable, str(SCRIPT), sanitizer, part), env=environment, capture_output=True, text=True, timeout=550
    )


@pytest.mark.parametrize(("sanitizer", "part"), [(name, part) for name, parts in CLEAN.items() for part in parts])
def test_clean(sanitizer: str, part: str) -> None:
    done = run(sanitizer, part)
    assert done.returncode == 0, (done.stdout + done.stderr)[:5000]
    found = re.fullmatch(rf"(\d+) runs under {sanitizer}", done.stdout.strip())
    assert found, done.stdout
    assert int(found[1]) >= CLEAN[sanitizer][part]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str) -> None:
    sanitizer, message = FAULTS[fault]
    done = run(sanitizer, fault)
    assert done.returncode != 0
    assert re.search(message, done.stderr, re.DOTALL), done.stderr[:5000]
