"""Whole suites: what is recorded, what is not timed, and the goals."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eqlayers import nn
from eqlayers.bench import measure
from eqlayers.bench.cases import TIMES, Suite
from eqlayers.bench.products.implementation import Implementation
from eqlayers.bench.products.operands import Operands
from eqlayers.bench.products.peers import PEERS, Peer
from eqlayers.bench.products.suite import Case, read_suite
from eqlayers.bench.report import tables
from eqlayers.bench.results import load, save, save_csv
from eqlayers.bench.roofline import product_operations
from eqlayers.bench.run import run_suite
from eqlayers.errors import ConfigError

STORED = Path(__file__).parents[1] / "stored" / "run.json"


@pytest.fixture
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bandwidth of a small buffer; a large one takes longer than the suite."""
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 2**20)


@pytest.fixture
def quick(small_copies: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the peaks of memory, which take most of the time of a small suite."""
    monkeypatch.setattr("eqlayers.bench.run._memory", lambda *args: 1)


def smoke(pattern: str | None = None) -> Suite:
    return read_suite("smoke").only(pattern)


def results_of(case: dict, **wanted: str) -> list[dict]:
    return [row for row in case["results"] if all(row[key] == value for key, value in wanted.items())]


@pytest.mark.usefixtures("small_copies")
def test_the_smoke_suite(tmp_path: Path) -> None:
    said: list[str] = []
    result = run_suite(smoke(), say=said.append)
    assert [case["name"] for case in result["cases"]] == [case.name for case in smoke().cases]
    assert len(said) == smoke().steps, "the bar counts these"
    for case in result["cases"]:
        for row in case["results"]:
            assert row["status"] == "ok", row
            assert row["error"] <= 1
            assert row["seconds"]["median"] > 0 < row["share"]
    columns, rows = tables(result)[0].columns, tables(result)[0].rows
    for case, asked in zip(result["cases"], smoke().cases, strict=True):
        work = product_operations(nn.TensorProduct(**asked.problem.arguments()).plan.form.program)
        for direction, least in case["limits"].items():
            assert least["operations"] == case["edges"] * work[direction]
            assert least["seconds"] >= least["bytes"] / result["copy_bandwidth"]["median"]
    assert all(row[columns.index(">share of the limit")].endswith("s)") for row in rows)
    first = result["cases"][0]
    assert {(r["layout"], r["direction"], r["peer"]) for r in first["ratios"]} == {
        (layout, direction, "e3nn") for layout in ("ir_mul", "mul_ir") for direction in ("fwd", "bwd", "double_bwd")
    }
    assert {(g["quantity"], g["layout"]) for g in first["goals"]} == {
        (quantity, layout) for quantity in ("ratio", "share") for layout in ("ir_mul", "mul_ir")
    }
    assert len(result["group_goals"]) == 2
    save(result, tmp_path / "smoke.json")
    assert load(tmp_path / "smoke.json") == {"format": 1, **json.loads(json.dumps(result))}
    save_csv(result, tmp_path / "smoke.csv")
    with (tmp_path / "smoke.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(case["results"]) for case in result["cases"])
    assert float(rows[0]["seconds_median"]) == first["results"][0]["seconds"]["median"]


@pytest.mark.usefixtures("small_copies")
@pytest.mark.parametrize("fault", ["one sign", "gradient only", "not finite"])
def test_a_wrong_peer_is_reported_and_not_timed(
    fault: str, faulty: Callable[[str, Case, Operands], Implementation], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []

    def build(case: Case, operands: Operands) -> Implementation:
        return replace(faulty(fault, case, operands), name="faulty")

    def recorded(subject: object, item: Implementation, *rest: object) -> int:
        timed.append(item.name)
        return 1

    monkeypatch.setattr("eqlayers.bench.run._memory", recorded)
    monkeypatch.setitem(PEERS, "faulty", Peer("e3nn with a fault", (), build))
    result = run_suite(smoke("unfused/small/*"), peers=["faulty"])
    (case,) = result["cases"]
    wrong = {row["direction"] for row in results_of(case, implementation="faulty", status="wrong")}
    assert wrong == {"bwd", "double_bwd"} if fault == "gradient only" else {"fwd"}  # a constant changes no gradient
    for row in results_of(case, implementation="faulty", status="wrong"):
        assert row["seconds"] is row["memory_bytes"] is row["share"] is None
        assert "times its rounding bound" in row["reason"]
        assert not [r for r in case["ratios"] if r["direction"] == row["direction"]]
    assert timed.count("faulty") == 3 - len(wrong)
    goals = [g for g in case["goals"] if g["quantity"] == "ratio"]
    assert [g["met"] is None for g in goals] == ["fwd" in wrong] * len(goals)
    trouble = next(table for table in tables(result) if table.title == "not timed")
    assert "wrong" in [row[3] for row in trouble.rows]


@pytest.mark.usefixtures("quick")
def test_ours_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    right = nn.TensorProduct.forward
    monkeypatch.setattr(nn.TensorProduct, "forward", lambda *args: right(*args) * 1.001)
    (case,) = run_suite(smoke("unfused/small/*"))["cases"]
    assert {row["status"] for row in results_of(case, implementation="eqlayers")} == {"wrong"}
    assert {row["status"] for row in results_of(case, implementation="e3nn")} == {"ok"}
    assert case["ratios"] == []


@pytest.mark.usefixtures("quick")
def test_who_finds_no_memory_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was right alone, and finds no room beside what the others saved."""
    calls: list[int] = []

    def build(case: Case, operands: Operands) -> Implementation:
        right = PEERS["e3nn"].build(case, operands)

        def greedy(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            calls.append(1)
            if len(calls) % 2 == 0:  # after the check of each direction
                raise torch.OutOfMemoryError("out of memory")
            return right.fn(x, y, w)

        return replace(right, fn=greedy)

    monkeypatch.setitem(PEERS, "greedy", Peer("e3nn without room", (), build))
    (case,) = run_suite(smoke("unfused/small/*"), peers=["greedy", "e3nn"])["cases"]
    for row in results_of(case, implementation="greedy"):
        assert row["status"] == "failed"
        assert row["reason"] == "no memory was left beside what the others saved"
        assert row["seconds"] is None
    others = [row for row in case["results"] if row["implementation"] != "greedy"]
    assert len(others) == 9
    assert all(row["seconds"]["median"] > 0 for row in others)
    assert {r["peer"] for r in case["ratios"]} == {"e3nn"}


@pytest.mark.usefixtures("quick")
def test_whatever_a_peer_raises_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(case: Case, operands: Operands) -> Implementation:
        raise ValueError("no such method")

    monkeypatch.setitem(PEERS, "broken", Peer("cannot be made", (), build))
    (case,) = run_suite(smoke("unfused/small/*"), peers=["broken"])["cases"]
    assert {row["reason"] for row in results_of(case, implementation="broken")} == {"ValueError: no such method"}
    monkeypatch.setattr("eqlayers.bench.products.run.ours", lambda *args: build(*args[:2]))
    with pytest.raises(ValueError, match="no such method"):  # a fault of this package stops the run
        run_suite(smoke("unfused/small/*"), peers=[])


@pytest.mark.usefixtures("quick")
def test_other_dtypes() -> None:
    suite = smoke("unfused/small/*")
    cases = tuple(replace(suite.cases[0], dtype=dtype) for dtype in ("float64", "bfloat16"))
    result = run_suite(replace(suite, cases=cases))
    assert result["dtype"] == "float64, bfloat16"
    for case, dtype in zip(result["cases"], ("float64", "bfloat16"), strict=True):
        assert case["name"] == f"unfused/small/E30/{dtype}"
        assert case["dtype"] == dtype
        assert {row["status"] for row in case["results"]} == {"ok"}
    assert result["peak_rate"]["bfloat16"] is None
    double, half = (case["limits"]["fwd"]["bytes"] for case in result["cases"])
    assert double == 4 * half


@pytest.mark.usefixtures("quick")
def test_times_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks are a GPU's: with an emptied cache everything takes a tenth, because launches cost nothing."""

    def clock(calls: list[object], runs: int, device: object, flush: Tensor | None) -> list[list[float]]:
        return [[number * (1.0 if flush is None else 0.1)] * runs for number in range(1, len(calls) + 1)]

    monkeypatch.setattr("eqlayers.bench.cases.alternate", clock)
    monkeypatch.setitem(TIMES, "cpu", TIMES["cuda"])
    suite = smoke("unfused/small/*")
    asked = replace(suite.cases[0], goals={"time_ms": {"fwd": 500.0}, "share": {"fwd": 1e-12}})
    result = run_suite(replace(suite, cases=(asked,)))
    (case,) = result["cases"]
    first = case["results"][0]
    assert (first["seconds"]["median"], first["seconds_flushed"]["median"]) == (1.0, 0.1)
    assert first["share"] == pytest.approx(case["limits"]["fwd"]["bytes"] / 0.1 / result["copy_bandwidth"]["median"])
    assert [g["measured"] for g in case["goals"] if g["quantity"] == "time_ms"] == pytest.approx([100.0, 200.0])
    assert {(r["ratio"]["median"], round(r["ratio_flushed"]["median"], 6)) for r in case["ratios"]} == {
        (3.0, 3.0),
        (1.5, 1.5),
    }
    times = tables({**result, "device": "cuda"})[0]
    assert ">ms, device" in times.columns
    assert len(times.rows[0]) == len(times.columns)


@pytest.mark.usefixtures("quick")
def test_peers_that_are_not_installed_are_refused() -> None:
    result = run_suite(smoke("unfused/small/*"), peers=["openequivariance"])
    (case,) = result["cases"]
    rows = results_of(case, implementation="openequivariance")
    assert {row["status"] for row in rows} == {"refused"}
    assert rows[0]["reason"] == "openequivariance is not installed"
    assert [g["met"] for g in case["goals"] if g["quantity"] == "ratio"] == [None, None]


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match=r"expected a peer among .*; got 'e3n'. Did you mean 'e3nn'"):
        run_suite(smoke(), peers=["e3n"])
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="a CUDA or HIP device was expected for 'gpu', torch finds none"):
            run_suite(read_suite("gpu"))
