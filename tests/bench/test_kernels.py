"""`eqlayers bench kernels`: printed kernels compile without a GPU and without spills; the table says what they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from eqlayers.bench.kernels import run_kernels
from eqlayers.bench.report import count_goals, tables
from eqlayers.bench.results import load, save
from eqlayers.errors import BackendError, ConfigError

pytest.importorskip("triton")

CONFIG = """
problems: problems.yaml
choose: [small]
layouts: [ir_mul, mul_ir]
dtypes: [{dtype}]
targets: [{targets}]
"""
PROBLEMS = """
mode: uvu
problems:
  small: {in1: 40x0e+40x1o, in2: 0e+1o, out: 0e+1o, check: [160, 4, 320, 160, 4, 10]}
"""


def configuration(folder: Path, dtype: str = "float32", targets: str = "sm_90, gfx942") -> str:
    (folder / "problems.yaml").write_text(PROBLEMS)
    path = folder / "few.yaml"
    path.write_text(CONFIG.format(dtype=dtype, targets=targets))
    return str(path)


def test_a_small_convolution_compiles_without_spills(tmp_path: Path) -> None:
    said: list[str] = []
    result = run_kernels(configuration(tmp_path), jobs=2, say=said.append)
    assert len(said) == 4
    assert [row["direction"] for row in result["rows"]] == ["fwd", "bwd", "double_bwd"] * 4
    for row in result["rows"]:
        assert sum(row["paths"]) >= 4
        assert len(row["registers"]) == row["kernels"] > 0
        assert all(16 <= count <= 255 for count in row["registers"])
    assert count_goals(result) == "1 goals: 1 met, 0 missed, 0 not measured"
    text = tables(result)[0].markdown()
    assert "| small | ir_mul | float32 | sm_90 | double_bwd |" in text
    assert "nothing was run" in text
    save(result, tmp_path / "kernels.json")
    assert load(tmp_path / "kernels.json")["rows"] == result["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("problem", ["mace-large", "nequip-toluene", "own-unequal", "own-odd"])
def test_the_problems_compile_without_spills(tmp_path: Path, problem: str, dtype: str) -> None:
    source = Path(__file__).resolve().parents[2] / "configs" / "bench"
    text = (source / "kernels.yaml").read_text().replace("dtypes: [float32]", f"dtypes: [{dtype}]")
    (tmp_path / "kernels.yaml").write_text(text)
    (tmp_path / "uvu.yaml").write_text((source / "uvu.yaml").read_text())
    result = run_kernels(str(tmp_path / "kernels.yaml"), only=problem)
    assert max(max(row["spill_bytes"]) for row in result["rows"]) == 0


def test_bad_configurations(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="target"):
        run_kernels(configuration(tmp_path, targets="sm_1"))
    with pytest.raises(ConfigError, match="dtype"):
        run_kernels(configuration(tmp_path, dtype="int8"))
    with pytest.raises(ConfigError, match="--only must match a problem among small, got 'large'"):
        run_kernels(configuration(tmp_path), only="large")


def test_a_failing_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = configuration(tmp_path, targets="sm_90")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "triton.py").write_text("raise ImportError('no triton here')")
    with pytest.raises(BackendError, match=r"kernels of small must compile for sm_90, got .*no triton here"):
        run_kernels(name, jobs=1)
