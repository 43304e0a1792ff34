"""Kernels of formulas compile for NVIDIA and AMD GPUs without one, within their budget, and anew for no new size."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.run import aot

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = Path(__file__).with_name("compile_formulas.py")


def ask(tmp_path: Path, **request: Any) -> dict[str, Any]:
    """Ask a process without the interpreter."""
    away = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**os.environ, **away},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_budgets(tmp_path: Path, cases: list[dict[str, str]]) -> None:
    for case, used in zip(cases, ask(tmp_path, cases=cases)["compiled"], strict=True):
        granted = tuning.processor(*aot.TARGETS[case["target"]][:2])
        assert min(used["registers"]) > 0
        assert max(used["spill_bytes"]) == 0, (case, used)
        assert max(used["registers"]) <= granted.most_registers, (case, used)
        assert max(used["shared_bytes"]) <= granted.shared_bytes, (case, used)


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["harmonics", "geometry"])
def test_small_formulas_compile_within_their_budget(tmp_path: Path, sample: str) -> None:
    orders, dtypes = ("values", "gradients", "second gradients"), ("float32", "float64", "bfloat16")
    names = ("target", "order", "dtype")
    cases = [
        {"sample": sample, **dict(zip(names, (target, order, dtypes[(i + j) % 3]), strict=True))}
        for i, target in enumerate(aot.TARGETS)
        for j, order in enumerate(orders)
    ]
    check_budgets(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.long
def test_a_contraction_compiles_within_its_budget(tmp_path: Path) -> None:
    cases = [
        {"sample": "contraction", "order": "values", "dtype": "float32", "target": target} for target in aot.TARGETS
    ]
    check_budgets(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [pytest.param(target, marks=[] if target == "sm_90" else [pytest.mark.slow]) for target in aot.TARGETS]
)
@pytest.mark.parametrize("order", ["gradients", pytest.param("second gradients", marks=pytest.mark.slow)])
def test_derivatives_of_a_contraction_compile_within_their_budget(tmp_path: Path, target: str, order: str) -> None:
    check_budgets(tmp_path, [{"sample": "contraction", "order": order, "dtype": "float32", "target": target}])


@pytest.mark.slow
def test_no_size_of_a_batch_is_compiled_in(tmp_path: Path) -> None:
    sizes = [(1, 1, 1), (2, 16, 1), (16, 7, 7), (420, 21, 21), (4096, 1000, 33)]
    cases = [
        {"sample": sample, "order": "gradients", "target": target, "sizes": sizes}
        for target in ("sm_90", "gfx942")
        for sample in ("geometry", "small")
    ]
    for found in ask(tmp_path, same=cases)["same"]:
        assert set(found) == {1}
