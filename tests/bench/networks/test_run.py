"""`eqlayers bench networks` on small networks of this package: what is compared, timed, skipped, judged and drawn."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eqlayers.bench.cli import run
from eqlayers.bench.config import find_config, read_config, read_fields
from eqlayers.bench.measure import PARTS
from eqlayers.bench.networks import entrants as network_entrants
from eqlayers.bench.networks import run as networks
from eqlayers.bench.networks import timing as network_timing
from eqlayers.bench.networks.entrants import EXACT, TABLES, Entrant, Maker
from eqlayers.bench.networks.run import FIELDS, MAIN, judged, run_networks
from eqlayers.bench.report import tables, write_report
from eqlayers.bench.results import load
from eqlayers.core.memory import KeptMemory
from eqlayers.errors import ConfigError
from tests.bench.test_step import NETWORK, molecules

pytestmark = pytest.mark.xdist_group("bench networks")  # a second process would compile the same kernels
CONFIG = """
device: cpu
threads: [1]
runs: 2
sizes: [32, 16]
judged_atoms: 32
judged_threads: 1
peers: [eager]
knots: 250
tolerance: 0.0001
model: network.yaml
batch_size: 2
networks:
  TFN: {cutoff: 3.5, hidden: 2x0e + 2x1o, lmax: 1, layers: 1}
goals: {main job: {training step: {exact: 2, tables: 100000, memory: 0.5}}}
"""
NATIVE, LIVE, COMPRESSED = (f"eqlayers, native{rest}" for rest in ("", ", live tables", ", compressed"))
FORCES, TRAINING = "energy and forces", "training step"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"network": NETWORK, "networks": CONFIG}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def measured(folder: Path, **options: Any) -> dict[str, Any]:
    return run_networks("ours", str(folder / "networks.yaml"), load_batch=molecules, **options)


def blocks(result: dict[str, Any], network: str = "TFN") -> list[tuple[int, str, str, str]]:
    rows = [row for row in result["rows"] if row["network"] == network]
    return [(row["atoms"], row["what"], row["implementation"], row["status"]) for row in rows]


def test_everything_is_compared_and_timed(folder: Path) -> None:
    before = torch.get_rng_state()
    stored: list[int] = []
    result = measured(folder, memory_kept=True, keep=lambda so_far: stored.append(len(so_far["rows"])))
    assert torch.equal(before, torch.get_rng_state())
    of_a_size = [(FORCES, NATIVE), (FORCES, COMPRESSED), (TRAINING, NATIVE), (TRAINING, LIVE)]
    assert blocks(result) == [(size, what, who, "ok") for size in (16, 32) for what, who in of_a_size]
    assert [row[2:] for row in blocks(result, MAIN)] == [("e3nn's layers", "ok"), (NATIVE, "ok"), (LIVE, "ok")]
    assert stored == list(range(1, 12)), "a run that is cut off leaves its rows"
    first, frozen = result["rows"][:2]
    assert first["ratio"] is None
    assert 0 < frozen["ratio"]["q20"] <= frozen["ratio"]["median"] <= frozen["ratio"]["q80"]
    assert first["errors"] == {"energy": 0, "forces": 0}
    assert 0 < frozen["errors"]["forces"] < 1e-4, "other numbers"
    live = result["rows"][3]
    assert 0 < live["errors"]["gradients"] < 1e-3
    assert live["compared_at"] == 16
    for row in result["rows"]:
        assert set(row["shares"]) == set(PARTS)
        assert row["operators"] > 50
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert row["memory_bytes"] is None or row["memory_bytes"] >= 0
    assert first["edges"] > 16
    assert result["memory_kept"] is True
    assert "kept by the process when freed: yes" in result["notes"][0]
    assert "multiplied by" in result["notes"][1]


def test_forces_are_of_the_order_of_an_electronvolt(folder: Path) -> None:
    options = {"cutoff": 3.5, "hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1}
    units = networks.units_of("TFN", options, 16, torch.device("cpu"))
    subject = networks.subject_of("TFN", options, 16, **units)
    energy, forces = subject.evaluate(subject.make(torch.float64), False)
    assert float(forces.square().sum(-1).mean().sqrt()) == pytest.approx(1, rel=0.01)
    assert float(energy.detach()) / 16 == pytest.approx(-1.5, abs=0.01)


@pytest.mark.slow
def test_the_goals_are_judged_on_their_row_alone(folder: Path) -> None:
    goals = measured(folder, sizes=[16])["goals"]
    words = [f"main job, training step, {kind}: {who}" for kind, who in (("exact", NATIVE), ("with tables", LIVE))]
    assert [goal["where"] for goal in goals][:2] == words
    assert [goal["quantity"] for goal in goals] == ["ratio", "ratio", "memory"]
    assert goals[1]["met"] is False

    def row(who: str, kind: str, atoms: int, threads: int, median: float) -> dict[str, Any]:
        about = {"network": "mace", "what": FORCES, "implementation": who, "kind": kind, "memory_bytes": int(median)}
        return about | {"atoms": atoms, "threads": threads, "seconds": {"median": median}}

    rows = [row("mace-torch, eager", "peer", 256, 1, 80), row("mace-torch, compiled", "peer", 256, 1, 40)]
    rows += [row(NATIVE, EXACT, 256, 1, 8), row("slower", EXACT, 256, 1, 16), row(COMPRESSED, TABLES, 256, 1, 2)]
    rows += [row(NATIVE, EXACT, 64, 1, 1), row(NATIVE, EXACT, 256, 2, 1)]
    wanted = {
        "mace": {FORCES: {"exact": 5, "tables": 21, "ratio": 20, "memory": 0.05}},
        "nequip": {FORCES: {"exact": 1}},
    }
    judgements = judged(rows, wanted, {"judged_atoms": 256, "judged_threads": 1})
    assert [(goal["measured"], goal["met"]) for goal in judgements] == [
        (5, True),
        (20, False),
        (20, True),
        (0.05, True),
    ]
    without_peers = judged(rows[2:], wanted, {"judged_atoms": 256, "judged_threads": 1})
    assert {goal["met"] for goal in without_peers} == {None}


def test_a_wrong_network_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = network_entrants._live

    def wrong(*args: Any) -> torch.nn.Module:
        network = right(*args)
        with torch.no_grad():
            next(network.parameters()).mul_(1.01)
        return network

    maker = Maker(TABLES, wrong, (TRAINING,), of_package=True)
    monkeypatch.setitem(network_entrants.OWN, LIVE, maker)
    result = measured(folder, sizes=[16])
    assert blocks(result)[-1] == (16, TRAINING, LIVE, "wrong")
    row = result["rows"][3]
    assert row["seconds"] is row["ratio"] is row["memory_bytes"] is None
    assert row["errors"]["forces"] > 1e-4
    assert "differs from the reference" in row["reason"]


def test_what_float32_hides_is_seen_in_float64(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a millionth: less than float32 is rounded by."""
    right = network_entrants.copied

    def wrong(network: torch.nn.Module) -> Any:
        potential = right(network)
        potential.scales *= 1 + 1e-7
        return potential

    monkeypatch.setattr(network_entrants, "copied", wrong)
    result = measured(folder, sizes=[16])
    rows = [row for row in result["rows"] if row["implementation"] == NATIVE and row["network"] == "TFN"]
    assert [row["status"] for row in rows] == ["wrong", "wrong"]
    assert {row["reason"] for row in rows} == {"differs from the reference by more than is allowed in float64"}


def test_what_does_not_fit_is_skipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_timing, "refusal", lambda device: None)
    monkeypatch.setattr(network_timing, "peak_extra", lambda *args: 2**30)
    free = iter([1.0, 3.0, 3.0, 3.0])  # GiB, asked for each row of the second size: 2.2 are needed
    monkeypatch.setattr(network_timing, "free_memory", lambda device: int(next(free) * 2**30))
    result = measured(folder)
    assert blocks(result)[4:] == [
        (32, FORCES, COMPRESSED, "ok"),
        (32, FORCES, NATIVE, "skipped"),
        (32, TRAINING, NATIVE, "ok"),
        (32, TRAINING, LIVE, "ok"),
    ]
    frozen, skipped = result["rows"][4:6]
    assert frozen["compared_at"] == 16, "there was nothing to compare with at this size"
    assert frozen["ratio"] is None
    assert skipped["reason"] == "would need about 2.2 GiB, as 16 atoms took 1.0; 1.0 GiB are free"


def test_what_was_never_compared_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(entrant: Entrant, *args: Any) -> Any:
        raise ConfigError("no comparison")

    monkeypatch.setattr(network_timing, "compare", refused)
    result = measured(folder, sizes=[16])
    assert {(status, row["reason"]) for *_, status in blocks(result) for row in result["rows"][:4]} == {
        ("skipped", "no comparison")
    }


def test_the_command_shows_and_the_report_draws(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqlayers.bench.cli.keep_memory", lambda: KeptMemory(False, "as it is"))
    file = folder / "ours.json"
    options = ["--config", str(folder / "networks.yaml"), "--sizes", "16,32", "--runs", "1", "--json", str(file)]
    run(["networks", "ours", *options], lambda options: molecules())
    printed = capsys.readouterr().out
    for word in ("whole networks", "us per atom", COMPRESSED, "parts of the time", "main job", "3 goals", "freed: no"):
        assert word in printed
    assert json.loads(file.read_text())["memory_kept"] is False
    run(["report", str(file), "--out", str(folder / "report")], lambda _: molecules())
    assert {path.name for path in (folder / "report").iterdir()} == {"ours.md", "ours_networks.png"}
    result = load(file)
    for row in result["rows"]:
        row |= dict.fromkeys(("seconds", "ratio", "memory_bytes", "shares", "errors")) | {"status": "wrong"}
    assert len(tables(result)) == 2
    assert len(write_report(result, folder / "empty")) == 2


@pytest.mark.slow
def test_other_threads_add_rows(folder: Path) -> None:
    (folder / "networks.yaml").write_text(CONFIG.replace("threads: [1]", "threads: [1, 2]"))
    before = torch.get_num_threads()
    result = measured(folder, sizes=[16], runs=1)
    assert torch.get_num_threads() == before
    rows = [row for row in result["rows"] if row["network"] == "TFN" and row["what"] == FORCES]
    assert [(row["threads"], row["shares"] is None) for row in rows] == [(1, False), (1, False), (2, True), (2, True)]
    (parts,) = [table for table in tables(result) if table.title.startswith("parts")]
    assert len(parts.rows) == 4 + 3, "other threads take no row there"


def test_the_shipped_configuration() -> None:
    path = find_config("networks")
    fields = read_fields(str(path), read_config(path), FIELDS)
    assert (path.parent / fields["model"]).is_file()
    assert set(fields["goals"]) <= {*fields["networks"], MAIN}
    for name in ("TFN", "NequIP", "MACE"):
        networks.subject_of(name, fields["networks"][name], 8).make(torch.float32)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  TFN: {", "  TFM: {", "expected a network among mace, nequip, .*; got 'TFM'. Did you mean 'TFN'"),
        ("layers: 1}", "layer: 1}", "networks: TFN must have options that it knows, got .*layer"),
        ("sizes: [32, 16]", "sizes: [30]", "sizes must be multiples of 4 atoms, got 30"),
        ("sizes: [32, 16]", "sizes: 16", "sizes must be a list of positive integers"),
        ("peers: [eager]", "peers: [eagr]", "expected a peer among eager, compiled, symmetrix; got 'eagr'"),
        ("device: cpu", "device: gpu", "expected a device among cpu, cuda; got 'gpu'"),
        ("training step: {", "train: {", "main job must have keys among energy and forces, training step, got none"),
        ("exact: 2", "exakt: 2", "expected a goal among exact, .*; got 'exakt'. Did you mean 'exact'"),
        ("{main job: {training step: {exact: 2, tables: 100000, memory: 0.5}}}", "{main job: 3}", "a mapping of mapp"),
        ("runs: 2", "runs: 0", "runs must be a positive integer, got 0"),
    ],
)
def test_bad_configurations(old: str, new: str, message: str, folder: Path) -> None:
    assert old in CONFIG
    (folder / "networks.yaml").write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        measured(folder)


def test_absent_packages_and_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqlayers.bench.cli.keep_memory", lambda: KeptMemory(False, "as it is"))
    for options, message in {
        "": "must have network after it, got nothing",
        "schnet": r"network must be one of .*, got 'schnet'",
        "ours --sizes 64,x": r"--sizes must be a list of positive integers.*, got '64,x'",
        "ours --sizes 30": "sizes must be multiples of 4 atoms, got 30",
        "ours --device gpu": "--device must be one of cpu, cuda, got 'gpu'",
        "ours --peers eagr": "expected a peer among eager, compiled, symmetrix; got 'eagr'",
    }.items():
        with pytest.raises(ConfigError, match=message):
            run(["networks", *options.split()], lambda options: molecules())
    monkeypatch.setitem(sys.modules, "mace", None)
    with pytest.raises(ConfigError, match=r"networks mace needs the package mace, which is not installed.*howto/mace"):
        run_networks("mace", load_batch=molecules)
