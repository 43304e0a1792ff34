"""Real products and convolutions on printed Triton kernels, values and two derivatives, against float64 e3nn.

On a GPU the problems of the benchmark, over enough edges to fill it; in the interpreter one of its small ones.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("yaml")  # the problems are files of benchmarks

import eqlayers as eq
from eqlayers.bench.measure import peak_extra
from eqlayers.bench.products.check import check
from eqlayers.bench.products.implementation import Implementation, ours
from eqlayers.bench.products.operands import DIRECTIONS, Operands, draw, into_form, prepare
from eqlayers.bench.products.problems import GraphSpec, Problem, read_problems
from eqlayers.bench.products.suite import Case
from eqlayers_kernels.triton.run.forms import FormRunner

FOLDER = Path(__file__).parents[3] / "configs" / "bench"
PROBLEMS, MIXING = read_problems(FOLDER / "uvu.yaml"), read_problems(FOLDER / "uvw.yaml")
#: Of the interpreter: an odd number of channels, two degrees, both blocks of channels ragged.
TINY = Problem("tiny", "uvu", "33x0e+2x1o", "0e+1o", "0e+1o")


class Setting(NamedTuple):
    """One row: what is computed, on what."""

    problem: str
    operation: str = "conv"
    layout: str = "ir_mul"
    dtype: torch.dtype = torch.float32
    graph: str = "random"
    shared: bool = False
    deterministic: bool = True

    def __str__(self) -> str:
        words = ["shared"] * self.shared + ["in any order"] * (not self.deterministic)
        about = (self.problem, self.operation, self.layout, str(self.dtype).removeprefix("torch."), self.graph)
        return " ".join((*about, *words))


SETTINGS = [
    Setting("mace-large"),
    Setting("mace-large", layout="mul_ir"),
    Setting("mace-large", "product"),
    Setting("mace-large", dtype=torch.float64),
    Setting("mace-large", dtype=torch.bfloat16),
    Setting("mace-large", dtype=torch.float16, layout="mul_ir"),
    Setting("mace-large", deterministic=False),
    Setting("mace-large", graph="hub"),
    Setting("mace-large", graph="hub", deterministic=False),
    Setting("mace-large", graph="none"),
    Setting("mace-large", "product", graph="none"),
    Setting("mace-large", shared=True),
    Setting("mace-large", "product", shared=True),
    Setting("nequip-lips"),
    Setting("nequip-lips", "product", "mul_ir", torch.float64),
    Setting("own-unequal"),
    Setting("own-unequal", "product", "mul_ir", torch.float64),
    Setting("own-odd", layout="mul_ir"),
    Setting("own-odd", "product", dtype=torch.bfloat16),
    pytest.param(Setting("own-l6"), marks=pytest.mark.slow),  # a hundred paths of high degree: compiles for minutes
]


def made(setting: Setting, device: torch.device) -> tuple[Case, Operands]:
    """Operands on a GPU that it takes many programs to compute; on a CPU a handful of edges."""
    nodes, edges = (700, 12_000) if device.type == "cuda" else (3, 5)
    problem = PROBLEMS[setting.problem] if device.type == "cuda" else TINY
    if setting.shared:
        problem = replace(problem, weights="shared")
    graph = GraphSpec("g", nodes, 0 if setting.graph == "none" else edges)
    operands = draw(problem, setting.operation, graph, setting.dtype, device)
    if setting.graph == "hub" and operands.edge_index is not None:  # unsorted, and all but a few at one node
        index = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(1))
        index[:, : edges - edges // 5] = nodes // 2
        operands = replace(operands, edge_index=index.to(device))
    return Case("test", problem, setting.operation, graph), operands


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Order of derivative of every request that printed kernels run, and whether it adds in memory."""
    orders: list[tuple[int, bool]] = []
    real = FormRunner.__call__

    def recorded(self: FormRunner, *args: Any) -> dict[str, Tensor]:
        orders.append((self.task.order, bool(self.plan.added)))
        return real(self, *args)

    monkeypatch.setattr(FormRunner, "__call__", recorded)
    return orders


def layer_of(setting: Setting, case: Case, operands: Operands) -> Implementation:
    options = {} if setting.deterministic else {"deterministic": False}
    return ours(case, operands, setting.layout, "triton", **options)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_values_and_two_derivatives(setting: Setting, device: torch.device, walks: list[tuple[int, bool]]) -> None:
    torch.use_deterministic_algorithms(setting.deterministic, warn_only=True)  # else sums keep their order
    case, operands = made(setting, device)
    verdicts = check(case.problem, operands, [layer_of(setting, case, operands)], DIRECTIONS)
    assert {direction: (v.status, v.reason) for (_, direction), v in verdicts.items()} == dict.fromkeys(
        DIRECTIONS, ("ok", "")
    )
    assert {order for order, _ in walks} == {0, 1, 2}, "printed kernels must have run"
    assert any(added for _, added in walks) is not setting.deterministic


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "setting",
    [
        Setting("mace-large"),
        Setting("mace-large", graph="hub"),
        Setting("mace-large", shared=True),
        Setting("mace-large", "product", shared=True),
    ],
    ids=str,
)
def test_two_calls_give_the_same_bits(setting: Setting, device: torch.device) -> None:
    torch.use_deterministic_algorithms(False)
    case, operands = made(setting, device)
    item = layer_of(setting, case, operands)
    values = into_form(operands.values, item.form)
    for direction in DIRECTIONS:
        first, second = (prepare(item.fn, values, direction)() for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("problem", MIXING.values(), ids=MIXING)
def test_products_that_mix_channels(problem: Problem, device: torch.device) -> None:
    """Contracted by torch, path by path: every backend gives the same numbers."""
    if device.type == "cpu":
        problem = replace(problem, in1="2x0e+3x1o", in2="0e+1o", out="2x0e+2x1o")
    graph = GraphSpec("g", 1, 5000 if device.type == "cuda" else 3)
    operands = draw(problem, "product", graph, torch.float64, device)
    item = ours(Case("test", problem, "product", graph), operands, "ir_mul", "torch")
    verdicts = check(problem, operands, [item], DIRECTIONS)
    assert {verdict.reason for verdict in verdicts.values()} == {""}


@pytest.mark.gpu
def test_no_features_of_edges_in_memory() -> None:
    """Every direction, its forward call included, needs less beside its results than all messages would take once."""
    setting, device = Setting("mace-large"), torch.device("cuda")
    case, operands = made(setting, device)
    item = layer_of(setting, case, operands)
    values = into_form(operands.values, item.form)
    messages = operands.edges * case.problem.irreps_out.dim * 4
    for direction in DIRECTIONS:
        results = sum(t.numel() * 4 for t in prepare(item.fn, values, direction)())
        assert peak_extra(lambda d=direction: prepare(item.fn, values, d)(), device) < messages + results


def test_more_elements_than_int32_counts(device: torch.device) -> None:
    """The last edges of a graph whose weights have more than 2^31 elements, against those edges alone."""
    problem = PROBLEMS["mace-large"] if device.type == "cuda" else TINY
    edges = 2**31 // problem.weight_numel + 5000 if device.type == "cuda" else 9
    if device.type == "cuda" and torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of the GPU's memory")
    nodes, last = max(2, edges // 100), 4
    dst = torch.arange(edges, device=device).mul(nodes - 1).div(edges, rounding_mode="floor")
    dst[-last:] = nodes - 1  # the last node has the last edges and no others
    index = torch.stack([dst.flip(0), dst])
    layer = eq.TensorProductConv(**problem.arguments(), layout="ir_mul", backend="triton").to(device)
    x = torch.randn(nodes, problem.irreps_in1.dim, device=device).bfloat16()
    y = torch.randn(edges, problem.irreps_in2.dim, device=device).bfloat16()
    w = torch.ones(edges, problem.weight_numel, dtype=torch.bfloat16, device=device)
    w[-last:] = torch.randn(last, problem.weight_numel, device=device).bfloat16()
    results = []
    for rows in (slice(None), slice(-last, None)):
        live = [t.requires_grad_() for t in (x, y[rows].detach(), w[rows].detach())]
        z = layer(*live, index[:, rows])
        gy, gw = torch.autograd.grad(z[-1].float().square().sum(), live[1:])
        results.append([z[-1].detach(), gy[-last:].clone(), gw[-last:].clone()])
        del live, z, gy, gw
    for a, b in zip(*results, strict=True):
        assert b.abs().max() > 0
        assert (a - b).abs().max() <= 4 * torch.finfo(torch.bfloat16).eps * b.abs().max()  # sums of few edges
