"""Stages of `eqlayers bench first-gpu` keep what they have after every row, and end with the faults of all rows."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from eqlayers.bench import stages
from eqlayers.bench.products.implementation import Implementation, ours
from eqlayers.bench.products.operands import Operands
from eqlayers.bench.products.suite import Case
from eqlayers.bench.roofline import GRAPH, MEMORY, bound_of


def test_the_smoke_test_names_the_convolution_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are kept one by one: a crash of the third leaves two."""

    def make(case: Case, operands: Operands, layout: str, backend: str | None, deterministic: bool) -> Implementation:
        assert backend is None, "a dry run takes any"
        if layout == "mul_ir":
            raise RuntimeError("no such kernel")
        item = ours(case, operands, layout, "torch")
        return item if deterministic else replace(item, fn=lambda x, y, w: 1.01 * item.fn(x, y, w))

    monkeypatch.setattr(stages, "ours", make)
    rows = [(4, "float32", "ir_mul", True), (4, "float32", "mul_ir", True), (3, "float64", "ir_mul", False)]
    monkeypatch.setattr(stages, "SMOKE", rows)
    kept: list[int] = []
    facts: dict[str, Any] = {}
    with pytest.raises(SystemExit, match="2 of 3 convolutions are wrong or do not run"):
        stages.smoke(True, lambda so_far: (kept.append(len(so_far["rows"])), facts.update(so_far)))
    assert kept == [1, 2, 3]
    right, missing, wrong = facts["rows"]
    assert 0 < right["times_bound"] < 1
    assert "error" not in right
    assert missing["error"] == "RuntimeError: no such kernel"
    assert wrong["times_bound"] > 1
    assert "the error of z is" in wrong["error"]
    monkeypatch.setattr(stages, "SMOKE", rows[:1])
    stages.smoke(True, lambda so_far: None)  # all is well: it ends as others do


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling ahead of time needs a process without the interpreter."""
    monkeypatch.setattr(stages.aot, "target", nullcontext)


@pytest.mark.usefixtures("nothing_is_compiled")
def test_times_stand_beside_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"problem": stages.PROBLEMS[0], "layout": "ir_mul", "direction": "fwd"}
    least = bound_of({**about, "operation": "conv", "dtype": "float32"}, MEMORY, *GRAPH)
    assert least is not None
    monkeypatch.setattr(stages, "timed", lambda *args, **options: {"ms": {"median": 3000 * least}})
    kept: list[dict[str, Any]] = []
    stages.kernels(True, kept.append)
    ((row,),) = (facts["rows"] for facts in kept)
    assert about.items() <= row.items()
    assert (row["bound_ms"], row["times_bound"]) == (pytest.approx(1000 * least), pytest.approx(3))


def test_a_stage_writes_its_file_at_every_step(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    seen: list[dict[str, Any]] = []

    def stage(dry: bool, keep: stages.Keep) -> None:
        for count in (1, 2):
            keep({"count": count, "dry": dry, "path": tmp_path})
            seen.append(json.loads(file.read_text()))

    stages.main({"stage": "smoke", "dry": True, "file": str(file)}, {"smoke": stage})
    assert seen == [{"count": count, "dry": True, "path": str(tmp_path)} for count in (1, 2)]
    assert stages.output_of("no-such-program", "--version") is None
