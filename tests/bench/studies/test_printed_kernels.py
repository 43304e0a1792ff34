"""Printed kernels compile without a GPU and without spills; the table of their study says what they take."""

import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from eqlayers.bench.report import count_goals, tables
from eqlayers.bench.results import load, save
from eqlayers.errors import BackendError, ConfigError
from tests.by_path import ROOT, loaded

pytest.importorskip("triton")

SOURCE = ROOT / "configs" / "bench"
kernels = loaded("docs/benchmarks/studies/printed_kernels.py")
CONFIG = """
problems: {file}
cases:
  few:
    operation: {operation}
    problems: [{problem}]
    layouts: [ir_mul, mul_ir]
    dtypes: [{dtype}]
    targets: [{targets}]
    bound_ms: {{fwd: 1, bwd: 1.0e-6}}
    times_floor: {{double_bwd: 1}}
"""
PROBLEMS = """
mode: uvu
problems:
  small: {in1: 5x0e+70x1o, in2: 1o, out: 0e+1o, check: [215, 3, 85, 75, 2, 6]}
"""


def configuration(folder: Path, **changes: str) -> str:
    fields = {"file": "problems.yaml", "operation": "conv", "problem": "small", "dtype": "float32"}
    (folder / "problems.yaml").write_text(PROBLEMS)
    path = folder / "few.yaml"
    path.write_text(CONFIG.format(**{**fields, "targets": "sm_90, gfx942", **changes}))
    return str(path)


@pytest.mark.slow
@pytest.mark.long
def test_a_small_convolution_compiles_within_its_budget(tmp_path: Path) -> None:
    said: list[str] = []
    folder = sysconfig.get_path("purelib")  # pip install --target makes such a folder
    result = kernels.run_kernels(configuration(tmp_path), triton=[folder], jobs=2, say=said.append)
    assert sorted(text.split()[0] for text in said) == ["1", "2", "3", "4"]
    assert all("of 4: small conv " in text and "compiled with triton" in text for text in said)
    assert [row["direction"] for row in result["rows"]] == ["fwd", "bwd", "double_bwd"] * 4
    for row in result["rows"]:
        assert sum(row["paths"]) >= 2
        assert len(row["registers"]) == row["kernels"] > 0
        assert all(10 <= count <= 255 for count in row["registers"])
        assert ("bound_ms" in row) == (row["target"] == "sm_90")
    bounded = [row for row in result["rows"] if row["target"] == "sm_90"]
    for row in bounded:
        assert row["times_floor"] > 1
        assert row["bound_ms"] == pytest.approx(1000 * sum(max(one["seconds"].values()) for one in row["launches"]))
        assert row["findings"] == 0
    assert bounded[0]["bound_ms"] < bounded[1]["bound_ms"] < bounded[2]["bound_ms"]
    # two layouts: forward meets its goal, gradients and second derivatives ask for what nothing can
    assert count_goals(result) == "13 goals: 9 met, 4 missed, 0 not measured"
    text = tables(result, kernels.LAYOUT)[0].markdown()
    assert f"| small | conv | ir_mul | float32 | {version('triton')} | sm_90 | double_bwd |" in text
    assert "nothing was run" in text
    assert "Bounds are no times" in text
    assert "small conv, Triton" in tables(result, kernels.LAYOUT)[1].markdown()
    assert "registers of a thread" in tables(result, kernels.LAYOUT)[1].markdown()
    save(result, tmp_path / "kernels.json")
    assert load(tmp_path / "kernels.json", ("kernels",))["rows"] == result["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("problem", ["mace-large", "nequip-toluene", "own-unequal", "own-odd"])
def test_the_problems_compile_without_spills(tmp_path: Path, problem: str, dtype: str) -> None:
    changes = {"problem": problem, "dtype": dtype, "file": str(SOURCE / "uvu.yaml")}
    result = kernels.run_kernels(configuration(tmp_path, **changes))
    assert max(max(row["spill_bytes"]) for row in result["rows"]) == 0


def test_bad_configurations(tmp_path: Path) -> None:
    for field, value in (("target", "sm_1"), ("dtype", "int8"), ("operation", "sum"), ("problem", "large")):
        name = configuration(tmp_path, **{"targets" if field == "target" else field: value})
        with pytest.raises(ConfigError, match=rf"few.yaml, few: .*{field}.*{value}"):
            kernels.run_kernels(name)
    path = Path(configuration(tmp_path))
    path.write_text(path.read_text().replace("{fwd: 1,", "{forward: 1,"))
    with pytest.raises(ConfigError, match=r"few: expected a direction among fwd, bwd, double_bwd; got 'forward'"):
        kernels.run_kernels(str(path))
    with pytest.raises(ConfigError, match=r"--only must .*got 'small'"):
        kernels.run_kernels(configuration(tmp_path), only="small")
    with pytest.raises(ConfigError, match=r"--triton must name folders .*, got '/nowhere'\. Make it: pip install"):
        kernels.run_kernels(configuration(tmp_path), triton=["/nowhere"])


@pytest.mark.slow
def test_a_folder_comes_before_what_is_installed_and_a_failing_process_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('no triton here')")
    with pytest.raises(BackendError, match=r"kernels of small must compile for sm_90, got .*no triton here"):
        kernels.run_kernels(configuration(tmp_path, targets="sm_90"), triton=[str(tmp_path)], jobs=1)


def test_the_study_needs_the_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator is in no wheel."""
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ptx_emulator must be found.*Type pip install -e"):
        kernels.run_kernels(configuration(tmp_path))


def test_what_fails_does_not_take_the_rest_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_on_one(script: str, task: dict[str, Any], environment: Any, must: str, fix: str) -> list[dict[str, Any]]:
        if task["target"] == "sm_90":
            raise BackendError(f"{must}, got an assertion. {fix}")
        return [{"triton": "3.6.0", "registers": [100], "spill_bytes": [0], "shared_bytes": [0]}]

    monkeypatch.setattr(kernels, "run_fresh", fails_on_one)
    result = kernels.run_kernels(configuration(tmp_path))
    assert {row["target"] for row in result["rows"]} == {"gfx942"}
    assert count_goals(result) == "4 goals: 3 met, 1 missed, 0 not measured"
    said = "the float32 kernels of small must compile for sm_90, got an assertion."
    assert [note.startswith(said) for note in result["notes"]] == [False, True, True]


def test_kernels_name_the_limits_that_bind_most_of_their_time() -> None:
    """By the launches that each limit binds; a twentieth of the time is not named."""
    limits = (("issue", 2.0), ("HBM", 3.0), ("issue", 2.0), ("L2", 0.3))
    launches = [{"binds": name, "seconds": {name: seconds, "other": 0.1}} for name, seconds in limits]
    names = ("problem", "operation", "layout", "dtype", "triton", "target", "direction", "kernels")
    rows = [{**dict.fromkeys(names, "x"), "launches": launches, "registers": [40, 64]}, dict.fromkeys(names, "x")]
    result = load(ROOT / "tests" / "bench" / "stored" / "run.json")
    head = {key: result[key] for key in ("machine", "versions", "commit", "date")}
    (table,) = tables({**head, "kind": "kernels", "rows": rows, "goals": [], "notes": []}, kernels.LAYOUT)
    cells = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["what binds"] for row in cells] == ["issue, HBM", "-"]
    assert [row[">registers"] for row in cells] == ["64", "-"]
