"""Suites of products: their problems, graphs and goals, and what is answered where they are wrong."""

from pathlib import Path

import pytest

from eqlayers.bench.products.bounds import TIMES_BOUND
from eqlayers.bench.products.peers import PEERS
from eqlayers.bench.products.problems import read_graphs
from eqlayers.bench.products.suite import read_suite
from eqlayers.errors import ConfigError
from tests.bench.products.test_problems import PROBLEMS

FOLDER = Path(__file__).resolve().parents[3] / "configs" / "bench"
SUITES = ("cpu", "gpu", "gpu-small", "smoke")


@pytest.mark.parametrize("name", SUITES)
def test_suites_can_be_read(name: str) -> None:
    suite = read_suite(name)
    assert len({case.name for case in suite.cases}) == len(suite.cases)
    assert any(case.goals for case in suite.cases) == (name != "gpu-small")
    names = {*suite.peers, *(peer for case in suite.cases for peer in case.peers or ())}
    assert names <= set(PEERS)


def test_the_cpu_suite_has_every_goal() -> None:
    cases = read_suite("cpu").cases
    channelwise = [name for name, p in PROBLEMS.items() if p.mode == "uvu" and name not in ("small", "odd")]
    goals = {group: {c.problem.name: c.goals for c in cases if c.group == group} for group in ("unfused", "fused")}
    assert goals["unfused"] == {name: {"ratio": {"fwd": 30, "bwd": 20}, "share": {"fwd": 0.6}} for name in channelwise}
    fused = {
        "ratio": {"fwd": 100, "bwd": 40, "double_bwd": 40},
        "memory": dict.fromkeys(("fwd", "bwd", "double_bwd"), 0.2),
    }
    assert goals["fused"] == dict.fromkeys(channelwise, fused)
    assert {c.problem.name for c in cases if c.goals.get("ratio") == {"fwd": 5, "bwd": 5}} == {
        "tetris-poly",
        "diffdock",
        "e3nn-example",
    }


def test_the_gpu_suite_has_every_problem_and_graph() -> None:
    cases = read_suite("gpu").cases
    published = {name for name in PROBLEMS if name.startswith(("mace", "nequip"))}
    graphs = set(read_graphs(FOLDER / "graphs.yaml")) - {"cpu"}
    fused = {(c.problem.name, c.graph.name) for c in cases if c.group in ("peers", "graphs")}
    assert fused == {(problem, graph) for problem in published for graph in graphs}
    assert {c.problem.name for c in cases} == set(PROBLEMS) - {"small", "odd"}
    assert {c.dtype for c in cases} == {"float32", "float64", "bfloat16"}
    (target,) = (c for c in cases if c.group == "target")
    assert target.goals == {"times_bound": dict.fromkeys(("fwd", "bwd", "double_bwd"), TIMES_BOUND)}
    assert set(target.peers or ()) == set(PEERS)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for path in FOLDER.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("smoke", "runs: 3 ", "run: 3 ", "among .*; got 'run'. Did you mean 'runs'"),
        ("smoke", "runs: 3 ", "runs: 0 ", "runs must be a positive integer, got 0"),
        ("smoke", "threads: 1 ", "#", "expected the key 'threads'"),
        ("smoke", "device: cpu", "device: gpu", "expected a device among cpu, cuda; got 'gpu'"),
        ("smoke", "operation: conv", "operation: convolve", "Did you mean 'conv'"),
        ("smoke", "layouts: [ir_mul, mul_ir]", "layouts: [irmul]", "Did you mean 'ir_mul'"),
        (
            "smoke",
            "problems: [small]",
            "problems: [smal]",
            "must match a problem among small, odd, got 'smal'",
        ),
        ("smoke", "edges: [20, 40]", "graphs: [cpu]", "expected a graph among"),
        ("smoke", "edges: [20, 40]", "#", "expected edges: .* or graphs: "),
        ("smoke", "ratio: {fwd: 1}", "ratios: {fwd: 1}", "Did you mean 'ratio'"),
        ("smoke", "edges: [30]", "edges: [30]\n    dtypes: [float]", "Did you mean 'float64'|Did you mean 'float"),
        ("smoke", "ratio: {fwd: 1}", "ratio: {forward: 1}", "must have keys among fwd, bwd, double_bwd, got none"),
        ("smoke", "ratio: {fwd: 1}", "ratio: {fwd: much}", "fwd must be a positive number, got 'much'"),
        ("smoke", "cases:", "cases: [", "must be YAML, got in .*, line 1"),
        ("small", "check: [16", "check: [17", r"check = \[17, 4, 32.*they have \[16, 4, 32"),
        ("small", "mode: uvu", "mode: uvv", "expected a mode among uvu, uvw"),
        ("small", "in1: 4x0e", "weights: some\n    in1: 4x0e", "expected a value of weights among per edge, shared"),
    ],
)
def test_wrong_suites(file: str, old: str, new: str, message: str, copy: Path) -> None:
    text = (copy / f"{file}.yaml").read_text()
    assert old in text
    (copy / f"{file}.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        read_suite(str(copy / "smoke.yaml"))


def test_names_and_paths(copy: Path) -> None:
    assert read_suite(str(copy / "smoke.yaml")) == read_suite("smoke")
    with pytest.raises(
        ConfigError, match=r"must be a file, got .*smoky.yaml', which does not exist. There is .*smoke.yaml"
    ):
        read_suite("smoky")
    with pytest.raises(ConfigError, match=r"--only must .*got 'x'"):
        read_suite("smoke").only("x")
    assert [case.name for case in read_suite("smoke").only("fused/*").cases] == ["fused/small/E20", "fused/small/E40"]
