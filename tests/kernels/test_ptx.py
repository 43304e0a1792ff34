"""The machine code of GPU kernels, run without a GPU: Triton's tests pass, nothing is found, damage is noticed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", minversion="3.6")

from .layer_kinds import QUICK

TESTS = Path(__file__).parents[1]
#: What -> processor, files, and which of their tests: some of every family, layout, dtype and order.
SOME = {
    "products and convolutions": ("sm_90", ["core/backends/triton/test_forms.py"], ""),
    "modes": ("sm_90", ["kernels/triton/run/test_forms.py"], "by_receivers or are_cut or (all_modes and ir_mul-True)"),
    "older processor": ("sm_80", ["kernels/triton/run/test_forms.py"], "all_modes and mul_ir-True"),
    "formulas": ("sm_90", ["core/backends/triton/test_formulas.py"], "definition"),
    "tables": ("sm_90", ["core/backends/triton/test_tables.py"], "other_dtypes or no_edges"),
    "layers": ("sm_90", ["core/backends/triton/test_layers.py"], " or ".join(QUICK)),
    "segments": ("sm_90", ["sparse/test_segments.py"], "batching or dtype or scale"),
}
FILES = ["core/backends/triton/test_*.py", "kernels/triton/run/test_forms.py", "kernels/triton/run/test_formula_run.py"]
FILES += ["kernels/triton/run/test_segment.py"]
#: Needs memory that is addressed and not there; puts something else in the place of what the emulator patches.
NOT = "offsets_pass or old_release"


def in_process(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Without Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # what is compiled twice must not come from the cache
    environment |= {"TRITON_ALWAYS_COMPILE": "1"} if "without the pass" in command else {}
    environment |= {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, check=False, cwd=TESTS.parent
    )


#: Of these, what is among all other tests; `test_all` has the others, too.
QUICKEST = "layers"


def passed(folder: Path, target: str, patterns: list[str], chosen: str) -> int:
    """Run tests on machine code; how many passed."""
    files = [str(path) for pattern in patterns for path in sorted(TESTS.glob(pattern))]
    options = ["-p", "tests.emulated", "--compile-for", target, "-n", "0", "-q", "-k", chosen]
    done = in_process(folder, "-m", "pytest", *options, *files)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return int(re.findall(r"(\d+) passed", done.stdout)[-1])


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one != QUICKEST)) for one in SOME])
def test_some_of_every_family(tmp_path: Path, name: str) -> None:
    assert passed(tmp_path, *SOME[name]) >= 3


@pytest.mark.slow
def test_all(tmp_path: Path) -> None:
    assert passed(tmp_path, "sm_90", FILES, f"not ({NOT})") > 200


def cases(folder: Path, *names: str) -> dict[str, Any]:
    done = in_process(folder, str(Path(__file__).with_name("emulated_cases.py")), *names)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_damage_is_noticed(tmp_path: Path) -> None:
    from .emulated_cases import DAMAGES

    for name, found in cases(tmp_path, "whole", *DAMAGES).items():
        assert found["changed"] == (name != "whole"), name
        noticed = bool(found["findings"]) or not found["error"] < 2e-6  # of float32, relative to the largest element
        assert noticed == (name != "whole"), name


@pytest.mark.slow
def test_the_pass_that_is_left_out_changes_nothing(tmp_path: Path) -> None:
    found = cases(tmp_path, "without the pass")["without the pass"]
    assert found["same"]
    assert found["kernels"] >= 2
    assert found["ran"] == [0, found["kernels"]]
