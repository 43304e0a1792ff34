"""The study of radial tables on small networks: what is compared, timed, judged, shown and drawn."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eqlayers.bench.config import read_config, read_fields
from eqlayers.bench.report import tables, write_report
from eqlayers.errors import ConfigError
from eqlayers.models import TFN, Potential, save_potential
from tests.bench.test_step import NETWORK, molecules
from tests.by_path import loaded

study = loaded("docs/benchmarks/studies/radial_tables.py")
run_study = loaded("docs/benchmarks/studies/study.py").run_study

pytestmark = pytest.mark.xdist_group("bench tables")  # a second process would compile the same kernels
CONFIG = """
threads: 1
runs: 2
atoms: 9
knots: 200
tolerance: 0.001
tried: [16, 64]
model: network.yaml
batch_size: 2
networks:
  TFN: {hidden: 2x0e + 2x1o, lmax: 1, layers: 2}
goals: {TFN: {ratio: 2.5, memory: 0.5}, main: {ratio: 5}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"network": NETWORK, "tables": CONFIG}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def blocks(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [(row["network"], row["what"], row["tables"], row["status"]) for row in result["rows"]]


@pytest.mark.slow
def test_everything_is_compared_and_timed(folder: Path) -> None:
    result = study.run_tables(str(folder / "tables.yaml"), load_batch=molecules)
    assert blocks(result) == [
        ("TFN", "energy and forces", "none", "ok"),
        ("TFN", "energy and forces", "live, 200 knots", "ok"),
        ("TFN", "energy and forces", "compressed", "ok"),
        ("TFN", "training step", "none", "ok"),
        ("TFN", "training step", "live, 200 knots", "ok"),
        ("main job", "training step", "e3nn's layers", "ok"),
        ("main job", "training step", "none", "ok"),
        ("main job", "training step", "live, 200 knots", "ok"),
    ]
    first, live = result["rows"][3:5]
    assert first["errors"] == {"energy": 0, "forces": 0, "gradients": 0}
    assert max(live["errors"].values()) < 1e-4
    assert min(live["errors"][key] for key in ("forces", "gradients")) > 0  # other numbers
    assert 0 < live["ratio"]["q20"] <= live["ratio"]["median"] <= live["ratio"]["q80"]
    assert sum(live["shares"].values()) == pytest.approx(1)
    assert [(goal["where"], goal["quantity"]) for goal in result["goals"]] == [
        ("TFN, energy and forces", "ratio"),
        ("TFN, training step", "memory"),
        ("main, training step", "ratio"),
    ]
    assert result["goals"][2]["measured"] == result["rows"][-1]["ratio"]["median"]
    coarse, fine = result["errors"]
    assert (coarse["knots"], fine["knots"]) == (16, 64)
    assert fine["slopes"] < coarse["slopes"] / 8
    assert fine["forces64"] < coarse["forces64"]


def test_a_table_that_is_too_coarse_is_not_timed(folder: Path) -> None:
    (folder / "tables.yaml").write_text(CONFIG.replace("knots: 200", "knots: 8"))
    result = study.run_tables(str(folder / "tables.yaml"), load_batch=molecules)
    wrong = [row for row in result["rows"] if row["status"] == "wrong"]
    assert {row["tables"] for row in wrong} == {"live, 8 knots"}
    assert all(row["seconds"] is None and row["ratio"] is None for row in wrong)
    assert [goal["met"] for goal in result["goals"]][1:] == [None, None]


@pytest.mark.slow
def test_a_trained_potential_in_place_of_the_networks(folder: Path) -> None:
    (folder / "tables.yaml").write_text(CONFIG.replace("0.001", "0.00001").replace("knots: 200", "knots: 500"))
    torch.manual_seed(0)
    save_potential(Potential(TFN([1, 8], "2x0e + 2x1o", lmax=1, layers=1, knots=50), [1, 8]), folder / "water.pt")
    result = study.run_tables(str(folder / "tables.yaml"), load_batch=molecules, potential=str(folder / "water.pt"))
    assert {row["network"] for row in result["rows"]} == {"water"}
    assert {row["status"] for row in result["rows"]} == {"ok"}
    assert result["goals"] == []


@pytest.mark.slow
def test_the_command_shows_and_the_report_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = study.STUDY._replace(measure=partial(study.run_tables, load_batch=molecules))
    run_study(measured, ["--config", str(folder / "tables.yaml"), "--json", str(folder / "out.json")])
    printed = capsys.readouterr().out
    for word in ("radial networks by tables", "errors by knots", "compressed", "main job", "3 goals"):
        assert word in printed
    run_study(study.STUDY, ["--stored", str(folder / "out.json"), "--out", str(folder / "report")])
    assert {path.name for path in (folder / "report").iterdir()} == {"tables.md", "tables_errors.png"}


@pytest.mark.slow
def test_a_report_of_no_times(folder: Path) -> None:
    result = study.run_tables(str(folder / "tables.yaml"), load_batch=molecules, runs=1)
    for row in result["rows"]:
        row |= dict.fromkeys(("seconds", "ratio", "memory_bytes", "shares", "errors")) | {"status": "wrong"}
    assert len(tables(result, study.LAYOUT)) == 3
    assert len(write_report(result, folder / "report", study.LAYOUT, study.figures(result))) == 2


def test_the_shipped_configuration() -> None:
    path = Path(study.beside(study.__file__))
    fields = read_fields(str(path), read_config(path), study.FIELDS)
    assert (path.parent / fields["model"]).is_file()
    assert set(fields["goals"]) == {*fields["networks"], "main"}
    potential = Potential(TFN([1, 6], "2x0e", lmax=1, layers=1, cutoff=5.0), [1, 6])
    assert study.cluster(fields["atoms"], potential).num_edges > 20 * fields["atoms"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "  TFN: {hidden",
            "  TFM: {hidden",
            "expected a network among MACE, NequIP, TFN; got 'TFM'. Did you mean 'TFN'",
        ),
        ("TFN: {hidden: 2x0e + 2x1o, lmax: 1, layers: 2}", "TFN: 3", "networks must be a mapping of mappings"),
        ("memory: 0.5", "speed: 0.5", "expected a goal among ratio, memory; got 'speed'"),
        ("runs: 2", "runs: 0", "runs must be a positive integer, got 0"),
        ("tried: [16, 64]", "tried: 16", "tried must be a list of positive integers"),
        ("threads: 1", "thread: 1", "expected a key among"),
    ],
)
def test_bad_configurations(old: str, new: str, message: str, folder: Path) -> None:
    assert old in CONFIG
    (folder / "tables.yaml").write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        study.run_tables(str(folder / "tables.yaml"), load_batch=molecules)


def test_errors_are_drawn_over_knots() -> None:
    rows = [{"network": "n", "knots": knots, "slopes": 1 / knots, "forces64": 0.5} for knots in (9, 3)]
    for panel in study.figures({"errors": rows})["tables_errors"].axes:
        assert [np.asarray(line.get_xdata()).tolist() for line in panel.lines] == [[3, 9]]
        assert [line.get_label() for line in panel.lines] == ["n"]
