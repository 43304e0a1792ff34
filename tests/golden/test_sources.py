"""The kernels of the catalogue are printed as they were: no rearrangement of the package changes a source."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
from tests.golden import sources

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_printed_kernels_are_as_they_were() -> None:
    """A change that means to print other kernels writes the list anew: `python -m tests.golden.sources --write`.

    In a process of its own: a kernel that an earlier test loaded is not printed again.
    """
    done = subprocess.run([sys.executable, "-m", "tests.golden.sources"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_a_changed_source_is_seen() -> None:
    assert sources.differences({"cpu": ["a", "b"]}, {"cpu": ["a", "c"]}) == ["cpu: 1 sources of 2 are gone, 1 are new"]
