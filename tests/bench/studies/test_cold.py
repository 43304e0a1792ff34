"""The study of first calls times them in processes of their own, and reports what they refuse."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqlayers.bench.products.implementation import Implementation
from eqlayers.errors import BackendError, ConfigError
from tests.by_path import loaded

cold = loaded("docs/benchmarks/studies/cold.py")
run_study = loaded("docs/benchmarks/studies/study.py").run_study

COLD = """
device: cpu
problems: problems.yaml
choose: [tiny]
operation: product
layout: ir_mul
edges: 4
threads: 1
runs: 1
peers: [e3nn]
goals: {cold_ms: 3000, warm_ms: 50}
"""


PROBLEM = """
mode: uvu
problems: {tiny: {in1: 2x0e, in2: 1o, out: 1o, check: [2, 3, 6, 2, 1, 3]}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Settings on one small product."""
    for name, text in {"cold": COLD, "problems": PROBLEM}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.mark.long
def test_cold_in_fresh_processes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "cold.json"
    words = ["--config", str(folder / "cold.yaml"), "--json", str(file)]
    run_study(cold.STUDY, words)
    result = json.loads(file.read_text())
    assert [(row["problem"], row["implementation"]) for row in result["rows"]] == [
        ("tiny", "eqlayers"),
        ("tiny", "e3nn"),
    ]
    for row in result["rows"]:
        assert row["status"] == "ok"
        assert all(row[key]["median"] > 0 for key in ("cold_fwd", "cold_bwd", "warm_fwd", "warm_bwd"))
    assert [g["quantity"] for g in result["goals"]] == ["cold_ms", "warm_ms"]
    printed = capsys.readouterr()
    assert "tiny, e3nn: warm, 1 of 1" in printed.err
    assert "2 goals:" in printed.out


def test_a_process_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(BackendError, match=r"first calls of eqlayers on tiny must .*got 'nothing'"):
        cold.run_cold(str(folder / "cold.yaml"))


def test_wrong_settings_of_cold(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--only must .*got 'x'"):
        cold.run_cold(str(folder / "cold.yaml"), only="x")
    with pytest.raises(ConfigError, match="Did you mean 'e3nn'"):
        cold.run_cold(str(folder / "cold.yaml"), peers=["e3n"])


TASK = {
    "problem": {"name": "tiny", "mode": "uvu", "in1": "2x0e", "in2": "1o", "out": "1o"}, "implementation": "e3nn",
    "device": "cpu", "operation": "product", "layout": "mul_ir", "edges": 4, "threads": 1,
}  # fmt: skip


def test_first_calls_are_compared_after_the_clock_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    times = cold.first_calls(TASK)
    assert times["status"] == "ok"
    assert min(times["fwd"], times["bwd"]) > 0
    right = cold.build_peer

    def wrong(*args: Any) -> Implementation:
        item = right(*args)
        return replace(item, fn=lambda x, y, w: 1.001 * item.fn(x, y, w))

    monkeypatch.setattr(cold, "build_peer", wrong)
    assert cold.first_calls(TASK)["status"] == "wrong"
    assert "the error of z is" in cold.first_calls(TASK)["reason"]
    absent = cold.first_calls(TASK | {"implementation": "openequivariance"})
    assert absent == {"status": "refused", "reason": "openequivariance is not installed"}


def test_a_warm_process_has_the_caches_of_the_cold_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run has new caches, which hold what its cold process left."""
    caches: list[dict[str, str]] = []

    def fresh(script: str, task: dict[str, Any], environment: dict[str, str], *words: str) -> dict[str, Any]:
        assert set(environment) == set(cold.CACHES)
        assert not any(Path(folder).exists() for folder in environment.values()) or caches[-1] == environment
        caches.append(environment)
        for place in environment.values():
            Path(place).mkdir(exist_ok=True)
        return {"status": "ok", "note": "", "fwd": 2.0 if len(caches) % 2 else 1.0, "bwd": 0.5}

    monkeypatch.setattr(cold, "run_fresh", fresh)
    result = cold.run_cold(str(folder / "cold.yaml"), peers=[], runs=2)
    assert caches[0] == caches[1] != caches[2] == caches[3]
    (row,) = result["rows"]
    assert (row["cold_fwd"]["median"], row["warm_fwd"]["median"], row["warm_bwd"]["median"]) == (2.0, 1.0, 0.5)
    assert [(goal["quantity"], goal["measured"], goal["met"]) for goal in result["goals"]] == [
        ("cold_ms", 2000.0, True),
        ("warm_ms", 1000.0, False),
    ]
