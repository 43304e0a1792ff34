"""`bench accelerate` on a small network: what it compares, that a wrong network is not timed, and the command line."""

import json
import sys
from pathlib import Path

import pytest
import torch

from eqlayers.bench.cli import run
from eqlayers.bench.networks import accelerate
from eqlayers.bench.networks import packages as network_subjects
from eqlayers.bench.networks.atoms import Sample, clusters
from eqlayers.bench.report import tables, write_report
from eqlayers.bench.results import load
from eqlayers.errors import ConfigError
from eqlayers.integrations import Report
from eqlayers.integrations.kinds.gate import AcceleratedGate

SMALL = clusters((4, 1))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(sample: Sample = SMALL) -> network_subjects.Subject:
        # tests/integrations/test_networks.py has the same irreps, so each kernel is compiled once for both
        return network_subjects.gate_points_2101(channels=3, layers=1, lmax=1, sample=sample)

    monkeypatch.setitem(network_subjects.NETWORKS, "e3nn", (make,))


def never(options: object) -> None:
    raise AssertionError("no molecules are needed")


@pytest.mark.long
def test_rows_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    file = tmp_path / "e3nn.json"
    run(["accelerate", "e3nn", "--runs", "2", "--json", str(file), "--csv", str(tmp_path / "e3nn.csv")], never)
    assert torch.equal(before, torch.get_rng_state())
    result = load(file)
    assert [row["mode"].partition(":")[0] for row in result["rows"]] == ["inference", "training step"]
    for row in result["rows"]:
        assert row["status"] == "ok"
        assert row["plain"]["median"] > 0 < row["accelerated"]["median"]
        assert {"energy", "forces"} <= set(row["errors"])
        assert max(row["errors"].values()) < 1e-4
    assert result["versions"]["e3nn"]
    assert json.loads(file.read_text())["machine"]["threads"] == 1
    printed = capsys.readouterr().out
    assert "plain and accelerated" in printed
    (written,) = write_report(result, tmp_path / "report")
    text = written.read_text()
    assert written.name == "e3nn.md"
    assert all(word in text for word in ("AcceleratedGate", "layers.0.first.tp", "2 structures, 5 atoms"))
    assert [table.title for table in tables(result)][-1].startswith("modules of e3nn, gate_points_2101")


@pytest.mark.slow
def test_a_wrong_network_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right, exact = AcceleratedGate.forward, accelerate.accelerate

    def unchecked(network: torch.nn.Module, backend: str | None) -> Report:
        return exact(network, backend=backend, check=False)

    monkeypatch.setattr(accelerate, "accelerate", unchecked)
    monkeypatch.setattr(AcceleratedGate, "forward", lambda self, *args: right(self, *args) * 1.001)
    result = accelerate.run_accelerate("e3nn", runs=1)
    assert {row["status"] for row in result["rows"]} == {"wrong"}
    assert all(row["plain"] is None and row["ratio"] is None for row in result["rows"])


def test_unknown_and_absent_networks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"network must be one of .*, got 'schnet'\."):
        run(["accelerate", "schnet"], never)
    with pytest.raises(ConfigError, match="Did you mean 'nequip'"):
        accelerate.run_accelerate("nequipp")
    monkeypatch.setitem(sys.modules, "mace", None)
    with pytest.raises(ConfigError, match=r"need the package mace, which is not installed.*docs/howto/mace.md"):
        accelerate.run_accelerate("mace")
