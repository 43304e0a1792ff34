"""`eqlayers bench overhead` compares every layer with e3nn's, and times single calls."""

import re
from functools import partial
from pathlib import Path

import pytest

from eqlayers import nn
from eqlayers.bench import overhead
from eqlayers.bench.overhead import LAYERS, run_overhead
from eqlayers.bench.report import tables

OVERHEAD = """
device: cpu
hidden: 4x0e+4x1o
sh: 0e+1o
connected: 2x0e+2x1o
nodes: 3
edges: 6
layout: ir_mul
threads: 1
runs: 2
goals: {host_us: 60}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Settings on a small graph."""
    (tmp_path / "overhead.yaml").write_text(OVERHEAD)
    return tmp_path


@pytest.fixture
def few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times in units are taken from few calls: their 15 seconds are for the best of many."""
    monkeypatch.setattr(overhead, "host_ratios", partial(overhead.host_ratios, repeats=2, calls=1))


@pytest.mark.usefixtures("few_repeats")
@pytest.mark.parametrize("layout", ["ir_mul", "mul_ir"])
def test_overhead_of_every_layer(layout: str, folder: Path) -> None:
    (folder / "overhead.yaml").write_text(OVERHEAD.replace("ir_mul", layout))
    result = run_overhead(str(folder / "overhead.yaml"))
    assert {row["layer"] for row in result["rows"]} == set(LAYERS)
    for row in result["rows"]:
        assert row["status"] == "ok", row
        assert row["ours"]["median"] > 0 < row["theirs"]["median"]
    counted = re.findall(r"(\d+) operators of torch; (\d+) of them", " ".join(result["notes"]))
    assert len(counted) == 5
    assert all(int(operators) > max(100, int(kernels)) and int(kernels) > 5 for operators, kernels in counted)
    assert len(result["ratios"]) == 6
    assert min(result["ratios"].values()) > 0
    small = [row for row in result["rows"] if row["input"] == "one edge"]
    assert [g["measured"] for g in result["goals"]] == [row["ours"] and row["ours"]["median"] * 1e6 for row in small]


@pytest.mark.usefixtures("few_repeats")
@pytest.mark.parametrize("name", LAYERS)
def test_a_wrong_layer_has_no_overhead(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = getattr(nn, name)
    right = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *args: right(*args).flip(-1))
    monkeypatch.setattr(overhead, "LAYERS", {name: LAYERS[name]})
    result = run_overhead(str(folder / "overhead.yaml"))
    assert all(re.match("wrong: .* times the allowed difference", row["status"]) for row in result["rows"])
    assert all(row["ours"] is None for row in result["rows"])
    assert {g["met"] for g in result["goals"]} == {None}


@pytest.mark.usefixtures("few_repeats")
def test_tables_of_every_kind(folder: Path) -> None:
    result = run_overhead(str(folder / "overhead.yaml"))
    titles = [table.title for table in tables(result)]
    assert titles == ["host time of one call", "goals"]
