"""Cases of products and their operands: problems, graphs, suites, sums of magnitudes, and columns of peers."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from e3nn import o3

from eqlayers.bench.cases import Refusal
from eqlayers.bench.products.check import check, excess, product_magnitude
from eqlayers.bench.products.implementation import path_signs, weight_columns
from eqlayers.bench.products.operands import DIRECTIONS, RESULTS, Columns, Operands, draw, layout_form, prepare
from eqlayers.bench.products.peers import PEERS, build_peer
from eqlayers.bench.products.problems import GraphSpec, Problem, choose, read_graphs, read_problems
from eqlayers.bench.products.suite import Case, read_suite
from eqlayers.bench.roofline import TIMES_BOUND
from eqlayers.errors import ConfigError
from eqlayers.irreps.algebra import wigner_3j
from eqlayers.irreps.instructions import Instruction, normalise, read_instructions
from tests.each import each

SMALL = Problem("small", "uvu", "4x0e+4x1o", "0e+1o", "0e+1o")
ODD = Problem("odd", "uvu", "3x0o+5x1o+2x2e", "0e+1o", "0e+0o+1o+2e")
SHARED = Problem("shared", "uvw", "2x0e+3x1o", "2x0e+1x1o", "2x0e+2x1o", "shared")
PER_EDGE = Problem("per edge", "uvw", "2x0e+3x1o", "2x0e+1x1o", "2x0e+2x1o")
EVERY = (SMALL, ODD, SHARED, PER_EDGE)


def made(
    problem: Problem = SMALL, operation: str = "product", dtype: torch.dtype = torch.float32
) -> tuple[Case, Operands]:
    case = Case("test", problem, operation, GraphSpec("g", 5, 23))
    return case, draw(problem, operation, case.graph, dtype, torch.device("cpu"))


def passes(name: str, problem: Problem, operation: str) -> bool:
    case, operands = made(problem, operation)
    verdicts = check(problem, operands, [build_peer(name, case, operands)], DIRECTIONS)
    return {verdict.status for verdict in verdicts.values()} == {"ok"}


def other_sign(degree: int) -> float:
    """Coefficients of paths into vectors have the other sign in the fakes of other packages."""
    return -1.0 if degree == 1 else 1.0


def inner_order(irreps: o3.Irreps) -> Columns:
    """Columns with the channels innermost."""
    return layout_form(SimpleNamespace(irreps_in1=irreps, irreps_in2=irreps, irreps_out=irreps), "ir_mul")["x"]


def test_peers_of_gpus_refuse_a_cpu() -> None:
    build: Callable[..., object] = PEERS["openequivariance"].build
    with pytest.raises(Refusal, match="GPUs only"):
        build(*made(SMALL, "product"))
    with pytest.raises(Refusal, match="only gradients of convolutions on GPUs"):
        build_peer("eqlayers-unordered", *made(SMALL, "conv"))


def test_signs_of_other_coefficients() -> None:
    """One odd path with the other sign; other numbers are refused."""
    signs = path_signs(SMALL, lambda *ls: -3 * wigner_3j(*ls) if ls == (1, 0, 1) else wigner_3j(*ls))
    assert signs == [1.0, 1.0, -1.0, 1.0]
    with pytest.raises(Refusal, match=r"coefficients of \(1, 1, 0\) are not e3nn's"):
        path_signs(SMALL, lambda *ls: np.roll(wigner_3j(*ls), 1, 0) if ls == (1, 1, 0) else wigner_3j(*ls))


def test_weights_of_a_path_have_its_sign() -> None:
    columns = weight_columns(SMALL, [1.0, 1.0, -1.0, 1.0])
    assert columns.into(torch.ones(1, 16)).tolist() == [[1.0] * 8 + [-1.0] * 4 + [1.0] * 4]
    backwards = weight_columns(SMALL, [1.0, 1.0, -1.0, 1.0], torch.arange(15, -1, -1))
    numbers = torch.arange(16.0)[None]
    assert backwards.into(numbers).tolist() == [[15.0, 14, 13, 12, -11, -10, -9, -8, 7, 6, 5, 4, 3, 2, 1, 0]]
    assert torch.equal(backwards.back(backwards.into(numbers)), numbers)


def test_directions_are_derivatives() -> None:
    """The second direction against the first by central differences; both are e3nn's own otherwise."""
    case, operands = made(dtype=torch.float64)
    right = build_peer("e3nn", case, operands)
    step, values = 1e-4, operands.values
    generator = torch.Generator().manual_seed(3)
    moves = {n: torch.randn(values[n].shape, generator=generator, dtype=torch.float64) for n in ("x", "y", "w", "gz")}

    def first(sign: float) -> float:
        moved = {n: v + sign * step * moves[n] if n in moves else v for n, v in values.items()}
        return sum(float((g * values[c]).sum()) for g, c in zip(prepare(right.fn, moved, "bwd")(), "abc", strict=True))

    second = prepare(right.fn, values, "double_bwd")()
    analytical = sum(float((h * moves[n]).sum()) for h, n in zip(second, ("x", "y", "w", "gz"), strict=True))
    assert (first(1) - first(-1)) / (2 * step) == pytest.approx(analytical, rel=1e-6)  # error of the step: 1e-8


def test_moved_bytes_count_operands_results_and_indices_once() -> None:
    _, operands = made(operation="conv")
    x, y, w, z = 5 * 16, 23 * 4, 23 * 16, 5 * 32
    index = 2 * 23 * 8
    assert operands.moved_bytes("fwd") == 4 * (x + y + w + z) + index
    assert operands.moved_bytes("bwd") == 4 * (2 * (x + y + w) + z) + index
    assert operands.moved_bytes("double_bwd") == 4 * (3 * (x + y + w) + 2 * z) + index
    assert {len(names) for names in RESULTS.values()} == {1, 3, 4}


def test_columns_there_and_back() -> None:
    columns = Columns(torch.tensor([2, 0, 1]), torch.tensor([1.0, -1.0, 1.0]))
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert columns.into(x).tolist() == [[3.0, -1.0, 2.0]]
    assert columns.back(columns.into(x)).tolist() == x.tolist()
    form = layout_form(ODD, "ir_mul")
    assert form["x"].into(torch.arange(28.0))[:6].tolist() == [0.0, 1.0, 2.0, 3.0, 6.0, 9.0]


IN1, IN2 = o3.Irreps("3x1o + 2x0e"), o3.Irreps("3x1o + 2x2e")
#      mode     groups  multiplicity of out, has weight
MODES = [
    ("uvw", (0, 1), 4, True), ("uvu", (0, 1), 3, True), ("uvv", (0, 1), 2, False), ("uuw", (0, 0), 2, True),
    ("uuw", (0, 0), 1, False), ("uuu", (0, 0), 3, True), ("uvuv", (1, 1), 4, True), ("uvu<v", (0, 0), 3, False),
    ("u<vw", (0, 0), 2, True),
]  # fmt: skip


def channels(
    mode: str, ins: Instruction, weights: np.ndarray, mul1: int, mul2: int, mul_out: int
) -> list[tuple[int, int, int, float]]:
    """(u, v, channel of out, weight) of every product of two channels, by the definition of the modes."""
    w = weights.reshape(ins.path_shape) if ins.has_weight else None
    out = []
    for u, v, k in itertools.product(range(mul1), range(mul2), range(mul_out)):
        pair = [(a, b) for a in range(mul1) for b in range(mul2) if a < b]
        fits, index = {
            "uvw": (True, (u, v, k)),
            "uvu": (k == u, (u, v)),
            "uvv": (k == v, (u, v)),
            "uuw": (u == v, (u, k)),
            "uuu": (u == v == k, (u,)),
            "uvuv": (k == u * mul2 + v, (u, v)),
            "uvu<v": (u < v and pair.index((u, v)) == k, ()),
            "u<vw": (u < v, (pair.index((u, v)) if u < v else 0, k)),
        }[mode]
        if fits:
            out.append((u, v, k, 1.0 if w is None else float(w[index])))
    return out


@each("mode, groups, mul_out, has_weight", MODES)
@each("count", [False, True])
def test_products(mode: str, groups: tuple[int, int], mul_out: int, has_weight: bool, count: bool) -> None:
    ir = next(iter(IN1[groups[0]].ir * IN2[groups[1]].ir))
    out = o3.Irreps([(mul_out, ir)])
    irreps = (IN1, IN2, out)
    read = read_instructions(*irreps, [(*groups, 0, mode, has_weight)])
    (ins,) = normalise(read, irreps, ([1.0] * 2, [1.0] * 2, [1.0]))
    (mul1, ir1), (mul2, ir2) = IN1[groups[0]], IN2[groups[1]]
    c = np.abs(wigner_3j(ir1.l, ir2.l, ir.l)) * ins.path_weight
    c = (c > 0).astype(float) if count else c
    x, y = np.random.default_rng(0).random((2, IN1.dim)), np.random.default_rng(1).random((2, IN2.dim))
    w = np.random.default_rng(2).random(math.prod(ins.path_shape) if has_weight else 0)
    expected = np.zeros((2, mul_out, ir.dim))
    a = x[:, IN1.slices()[groups[0]]].reshape(2, mul1, -1)
    b = y[:, IN2.slices()[groups[1]]].reshape(2, mul2, -1)
    for u, v, k, weight in channels(mode, ins, w, mul1, mul2, mul_out):
        expected[:, k] += weight * np.einsum("ni,nj,ijk->nk", a[:, u], b[:, v], c)
    fn = product_magnitude(irreps, [ins], count=count)
    x, y, w = map(torch.from_numpy, (x, y, w))
    for weights in (w, w.expand(2, -1)):
        np.testing.assert_allclose(fn(x, y, weights).numpy(), expected.reshape(2, -1), rtol=1e-13)


def test_errors_are_held_against_the_bound() -> None:
    one = torch.ones(3, dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    # 13 roundings: one term and twelve more
    assert (
        excess(one + 12.9 * eps, one, one, one, torch.float32)
        < 1
        < excess(one + 13.1 * eps, one, one, one, torch.float32)
    )
    assert excess(one, one[:2], one, one, torch.float32) == float("inf")
    assert excess(one / 0, one, one, one, torch.float32) == float("inf")
    assert excess(one[:0], one[:0], one[:0], one[:0], torch.float32) == 0


FOLDER = Path(__file__).resolve().parents[3] / "configs" / "bench"
PROBLEMS = {
    name: problem
    for file in ("uvu", "uvw", "small")
    for name, problem in read_problems(FOLDER / f"{file}.yaml").items()
}


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


def test_patterns_choose_problems_in_the_order_of_their_file() -> None:
    chosen = choose(PROBLEMS, ["own-*", "mace-first", "own-l6"], "choose")
    assert [problem.name for problem in chosen] == [
        name for name in PROBLEMS if name == "mace-first" or name.startswith("own-")
    ]
    with pytest.raises(ConfigError, match=r"choose must match a problem among .*, got 'mice-\*'\. Correct it"):
        choose(PROBLEMS, ["mace-*", "mice-*"], "choose")


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
        ("smoke", "problems: [small]", "problems: [smal]", "must match a problem among small, odd, got 'smal'"),
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
