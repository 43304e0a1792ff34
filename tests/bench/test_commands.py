"""`step`, `cold` and `overhead` on small settings, their mutations, and the command line of all subcommands."""

import importlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers import nn
from eqlayers.bench import cli as console
from eqlayers.bench import measure, overhead
from eqlayers.bench.cases import Suite
from eqlayers.bench.cli import parser, run
from eqlayers.bench.cold import run_cold
from eqlayers.bench.overhead import LAYERS, run_overhead
from eqlayers.bench.products.suite import Case
from eqlayers.bench.report import tables
from eqlayers.bench.results import load
from eqlayers.bench.step import Batch, networks, run_step, swap
from eqlayers.errors import BackendError, ConfigError

STORED = Path(__file__).parent / "stored" / "run.json"
FOLDER = Path(__file__).resolve().parents[2] / "configs" / "bench"

NETWORK = """
data: {cutoff: 4.0, batch_size: 7}
model:
  learning_rate: 0.01
  model:
    class_path: eqlayers.models.MoleculeNetwork
    init_args: {hidden: 4x0e + 4x1o, layers: 2, num_basis: 4, radial_hidden: [8]}
trainer: {gradient_clip_val: 1.0}
"""
STEP = """
device: cpu
model: network.yaml
batch_size: 2
threads: 1
runs: 2
layouts: [ir_mul, mul_ir]
goals: {ratio: 10}
"""
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
    files = {"network": NETWORK, "step": STEP, "overhead": OVERHEAD, "cold": COLD, "problems": PROBLEM}
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def molecules(options: Mapping[str, Any] | None = None) -> Batch:
    """Two molecules of three atoms."""
    assert options is None or options["batch_size"] == 2
    generator = torch.Generator().manual_seed(1)
    inside = torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])
    return Batch(
        z=torch.tensor([8, 1, 1, 6, 1, 7]),
        pos=torch.randn(6, 3, generator=generator),
        edge_index=torch.cat([inside, inside + 3], 1),
        batch=torch.tensor([0, 0, 0, 1, 1, 1]),
        num_graphs=2,
        y=torch.tensor([-2000.0, -1500.0], dtype=torch.float64),
        shifts={1: -13.0, 6: -1000.0, 7: -500.0, 8: -1900.0},
        scale=2.0,
        mean_neighbors=2.0,
    )


# ---- step ----------------------------------------------------------------------------------------------------------


def test_step_compares_and_times_every_network(folder: Path) -> None:
    before = torch.get_rng_state()
    result = run_step(str(folder / "step.yaml"), load_batch=molecules)
    assert torch.equal(before, torch.get_rng_state())
    assert [(row["layout"], row["status"]) for row in result["rows"]] == [
        (l, "ok") for l in ("ir_mul", "mul_ir", "mul_ir")
    ]
    assert all(row["seconds"]["median"] > 0 for row in result["rows"])
    assert len({row["parameters"] for row in result["rows"]}) == 1
    assert [g["measured"] for g in result["goals"]] == [row["ratio"]["median"] for row in result["rows"][:2]]


def test_the_other_network_has_no_layer_of_ours_that_e3nn_has() -> None:
    options = {"hidden": "4x0e + 4x1o", "layers": 2, "num_basis": 4, "radial_hidden": [8]}
    nets = networks(options, molecules(), ["mul_ir"], None)
    kinds = {type(module) for module in nets["e3nn"].modules()}
    assert not kinds & {nn.TensorProduct, nn.TensorProductConv, nn.Linear}
    assert swap(nets["e3nn"]) == 0
    mine = dict(nets["mul_ir"].named_parameters())
    theirs = {name.replace(".product.product.", ".product."): p for name, p in nets["e3nn"].named_parameters()}
    assert {name for name, p in theirs.items() if p.numel()} == set(mine)
    assert all(torch.equal(mine[name], p) for name, p in theirs.items() if p.numel())


def test_a_wrong_layer_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., Tensor] = nn.Linear.forward

    def forward(self: nn.Linear, *args: Tensor) -> Tensor:
        return right(self, *args) * (1.0001 if self.layout == "ir_mul" else 1.0)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    result = run_step(str(folder / "step.yaml"), load_batch=molecules)
    assert [row["status"] for row in result["rows"]] == ["wrong", "ok", "ok"]
    assert result["rows"][0]["seconds"] is None
    assert [g["met"] is None for g in result["goals"]] == [True, False]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("step", "goals: {ratio: 10}", "goals: {speed: 10}", "expected a goal among ratio"),
        ("step", "layouts: [ir_mul, mul_ir]", "layouts: [ir]", "expected a layout among"),
        ("step", "device: cpu", "device: gpu", "expected a device among cpu, cuda; got 'gpu'"),
        ("network", "learning_rate", "rate", "missed 'learning_rate'. Take configs/qm9_mini.yaml"),
        ("network", "MoleculeNetwork", "Other", "class_path must be eqlayers.models.MoleculeNetwork, got"),
    ],
)
def test_wrong_settings_of_step(file: str, old: str, new: str, message: str, folder: Path) -> None:
    text = (folder / f"{file}.yaml").read_text()
    assert old in text
    (folder / f"{file}.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        run_step(str(folder / "step.yaml"), load_batch=molecules)


# ---- overhead ------------------------------------------------------------------------------------------------------


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
    assert len(result["ratios"]) == 4
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


# ---- cold ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_cold_in_fresh_processes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "cold.json"
    run(["cold", "--config", str(folder / "cold.yaml"), "--json", str(file)], molecules)
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
    with pytest.raises(BackendError, match="first calls of eqlayers on tiny must end without an error, got 'nothing'"):
        run_cold(str(folder / "cold.yaml"))


def test_wrong_settings_of_cold(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--only must match a problem among tiny, got 'x'"):
        run_cold(str(folder / "cold.yaml"), only="x")
    with pytest.raises(ConfigError, match="Did you mean 'e3nn'"):
        run_cold(str(folder / "cold.yaml"), peers=["e3n"])


# ---- command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["", "gpu-"])
@pytest.mark.parametrize("kind", ["step", "cold", "overhead"])
def test_the_shipped_settings_can_be_read(kind: str, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the first measurement."""

    class Reached(Exception):
        pass

    def reached(*args: object, **options: object) -> None:
        raise Reached

    monkeypatch.setattr(f"eqlayers.bench.{kind}.describe", reached)
    monkeypatch.setattr(f"eqlayers.bench.{kind}.find_device", lambda name, what: torch.device("cpu"))
    with pytest.raises(Reached):
        run([kind, "--config", f"{config}{kind}"], lambda options: molecules())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("kind", ["step", "cold", "overhead"])
def test_settings_of_a_gpu_where_there_is_none(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"a CUDA or HIP device was expected for 'gpu-{kind}', torch finds none"):
        run([kind, "--config", f"gpu-{kind}"], lambda options: molecules())


def test_a_suite_that_is_cut_off_leaves_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 2**20)
    suites = importlib.import_module("eqlayers.bench.run")
    right, file = suites._run_case, tmp_path / "smoke.json"

    def cut_off(suite: Suite, case: Case, *rest: Any) -> Any:
        if case.name == "fused/small/E40":
            raise KeyboardInterrupt
        return right(suite, case, *rest)

    monkeypatch.setattr(suites, "_run_case", cut_off)
    monkeypatch.setattr(suites, "_memory", lambda *args: 1)
    with pytest.raises(KeyboardInterrupt):
        run(["run", "smoke", "--only", "fused/*", "--peers", "", "--runs", "2", "--json", str(file)], molecules)
    (case,) = load(file)["cases"]
    assert case["name"] == "fused/small/E20"
    assert {row["implementation"] for row in case["results"]} == {"eqlayers"}, "no peer was named"
    assert case["runs"] == 2, "instead of the suite's"


def test_report_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["report", str(STORED), "--out", str(tmp_path)], molecules)
    printed = capsys.readouterr().out
    assert "suite smoke, float32, cpu" in printed
    assert f"wrote {tmp_path}/smoke.md" in printed


@pytest.mark.parametrize("rich", [True, False])
def test_a_result_without_goals_has_no_line_about_goals(
    rich: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_has_rich", lambda: rich)
    result = json.loads(STORED.read_text())
    result["group_goals"] = []
    for case in result["cases"]:
        case["goals"] = []
    file = tmp_path / "run.json"
    file.write_text(json.dumps(result))
    run(["report", str(file)], molecules)
    printed = capsys.readouterr().out
    assert "suite smoke" in printed
    assert "goals" not in printed
    run(["report", str(STORED)], molecules)
    assert re.search(r"^\d+ goals: \d+ met", capsys.readouterr().out, re.MULTILINE)


def test_help_names_every_peer_and_command() -> None:
    text = parser().format_help()
    assert all(
        word in text
        for word in ("run", "report", "layers", "step", "cold", "overhead", "e3nn-compiled", "cuequivariance", "einsum")
    )


def test_tables_of_every_kind(folder: Path) -> None:
    result = run_overhead(str(folder / "overhead.yaml"))
    titles = [table.title for table in tables(result)]
    assert titles == ["host time of one call", "goals"]
