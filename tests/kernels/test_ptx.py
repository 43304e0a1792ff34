"""The machine code of printed GPU kernels, run without a GPU: numbers, races, accesses; and damage is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("emulated_cases.py")
SUMS = {"stored", "stored, mul_ir"}


def run(folder: Path, *names: str) -> Any:
    """In a process without Triton's interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *names], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["convolution", "mul_ir", "stored", "stored, mul_ir", "added", "rows", "harmonics"])
def test_values_and_two_derivatives(tmp_path: Path, name: str) -> None:
    found = run(tmp_path, name)[name]
    assert found["findings"] == {}
    assert found["error"] < 2e-6, "of float32, relative to the largest element"
    assert ("sum_rows" in found["launches"]) is (name in SUMS)
    if name not in ("rows", "harmonics"):
        assert "add_pieces" in found["launches"]


def test_damage_is_noticed(tmp_path: Path) -> None:
    damages = ["waits for too few copies", "no barriers", "another lane", "misaligned", "too far"]
    for name, found in run(tmp_path, *damages).items():
        assert found["findings"] or not found["error"] < 2e-6, name


def test_the_pass_that_is_left_out_changes_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, "without the pass")["without the pass"]
    assert found["same"]
    assert found["kernels"] >= 2
