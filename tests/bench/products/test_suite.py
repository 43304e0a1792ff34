"""Problems, graphs and suites: the numbers that describe them, and what is answered where they are wrong."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from e3nn import o3

from eqlayers.bench.config import find_config
from eqlayers.bench.gpu.bounds import TIMES_BOUND
from eqlayers.bench.products.peers import PEERS
from eqlayers.bench.products.problems import GraphSpec, Problem, read_graphs, read_problems
from eqlayers.bench.products.suite import read_suite
from eqlayers.errors import ConfigError

FOLDER = Path(__file__).resolve().parents[3] / "configs" / "bench"
PROBLEMS = {
    name: problem
    for file in ("uvu", "uvw", "small")
    for name, problem in read_problems(FOLDER / f"{file}.yaml").items()
}
SUITES = ("cpu", "gpu", "gpu-small", "smoke")


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_numbers_of_a_problem_are_those_of_its_e3nn_layer(problem: Problem) -> None:
    layer = o3.TensorProduct(**problem.arguments())
    irreps = (layer.irreps_in1, layer.irreps_in2, layer.irreps_out)
    dims = tuple(r.dim for r in irreps)
    terms = 0
    for ins in layer.instructions:
        degrees = [r[i].ir.l for r, i in zip(irreps, (ins.i_in1, ins.i_in2, ins.i_out), strict=True)]
        terms += int((o3.wigner_3j(*degrees).abs() > 1e-6).sum())
    assert problem.facts() == (*dims, layer.weight_numel, len(layer.instructions), terms)


def test_channelwise_paths_follow_the_rule() -> None:
    """in1 outermost, then in2, then the irreps of the product; every path has an output of its own, sorted."""
    problem = PROBLEMS["nequip-water"]
    in1, in2, keep = (o3.Irreps(text) for text in (problem.in1, problem.in2, problem.out))
    expected = [
        (i, j, ir) for i, (_, a) in enumerate(in1) for j, (_, b) in enumerate(in2) for ir in a * b if ir in keep
    ]
    assert [(i, j, problem.irreps_out[k].ir) for i, j, k, *_ in problem.instructions] == expected
    outputs = [k for _, _, k, *_ in problem.instructions]
    assert sorted(outputs) == list(range(len(outputs)))
    assert problem.irreps_out == problem.irreps_out.sort().irreps


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


def test_graphs_have_their_edges_sorted_by_receiver() -> None:
    for spec in read_graphs(FOLDER / "graphs.yaml").values():
        src, dst = spec.edge_index().numpy()
        assert len(src) == spec.edges
        assert (np.diff(dst * spec.nodes + src) >= 0).all()
        assert 0 <= min(src.min(), dst.min()) <= max(src.max(), dst.max()) < spec.nodes


def test_diamond_and_molecules_connect_what_they_should() -> None:
    src, dst = read_graphs(FOLDER / "graphs.yaml")["carbon"].edge_index().numpy()
    assert set(np.bincount(dst)) == set(np.bincount(src)) == {158}
    assert len(np.unique(dst * 1000 + src)) == 158000
    src, dst = GraphSpec("m", 64, 500, "molecules").edge_index().numpy()
    assert (src // 2 == dst // 2).all()
    assert (src != dst).all()


def test_a_graph_with_another_number_of_edges() -> None:
    with pytest.raises(ConfigError, match="'ring' must have 5 edges between 3 nodes, how: complete gives 6"):
        GraphSpec("ring", 3, 5, "complete").edge_index()


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
    with pytest.raises(
        ConfigError, match=r"--only must match a case of smoke, got 'x'. The cases are unfused/small/E30"
    ):
        read_suite("smoke").only("x")
    assert [case.name for case in read_suite("smoke").only("fused/*").cases] == ["fused/small/E20", "fused/small/E40"]


def test_a_name_where_there_is_no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("eqlayers.bench.config.__file__", str(tmp_path / "a" / "b" / "config.py"))
    with pytest.raises(ConfigError, match=r"a path such as path/to/cpu.yaml was expected, got the name 'cpu'"):
        find_config("cpu")


def test_every_line_is_explained() -> None:
    for path in FOLDER.glob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        assert [line for line in lines if "#" not in line] == [], path
        assert yaml.safe_load(path.read_text())
