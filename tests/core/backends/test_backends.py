"""Backends in their order, constants, tables of graphs, and formulas in plain torch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import eqlayers
from eqlayers.core.backends import BACKENDS, Backend, find, register, select, verdicts
from eqlayers.core.backends.constants import Constants
from eqlayers.core.backends.rows import Endpoints
from eqlayers.core.backends.tables import check_graph_tables, edge_tables, endpoints_of, length_of
from eqlayers.core.backends.torch_formulas import Primitives, run_in_torch
from eqlayers.core.forms.request import Request, Sizes
from eqlayers.errors import BackendError, ConfigError, IndexRangeError, ShapeError
from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula
from eqlayers_kernels.triton import availability
from tests.each import each
from tests.formulas import cubic, edges_of_points, functions

CPU = torch.device("cpu")
CALL = Request(None, "", torch.float32, CPU)


def fake(name, reason=None, **options):
    """A backend that refuses with a reason, or accepts."""
    return Backend(name, lambda call: reason, **options)


@pytest.fixture
def registry():
    """An empty registry; the real one comes back afterwards."""
    real = dict(BACKENDS)
    BACKENDS.clear()
    yield BACKENDS
    BACKENDS.clear()
    BACKENDS.update(real)


def test_the_order_of_preference():
    assert list(BACKENDS) == ["triton", "cpu", "torch", "sparse", "reference"]
    assert [b.automatic for b in BACKENDS.values()] == [True, True, True, True, False]
    assert all(find(name).name == name for name in BACKENDS)


def test_the_reference_is_not_chosen_even_when_all_others_refuse(registry):
    for backend in (fake("first", "is asleep"), fake("second", "needs a moon"), fake("reference", automatic=False)):
        register(backend)
    with pytest.raises(BackendError, match=r"each refused:\n  first: is asleep\n  second: needs a moon$"):
        select(CALL)
    assert select(CALL, "reference").name == "reference"


def test_the_first_that_accepts_runs(registry):
    for backend in (fake("a", "refuses all"), fake("bb", only_named=lambda call: True), fake("ccc"), fake("dddd")):
        register(backend)
    assert select(CALL).name == "ccc"
    assert [select(CALL, name).name for name in ("bb", "dddd")] == ["bb", "dddd"]
    assert verdicts(CALL) == {
        "a": "refuses: refuses all",
        "bb": "accepts, only when named",
        "ccc": "runs",
        "dddd": "accepts, behind the chosen one",
    }


def test_a_named_backend_that_refuses_says_why_and_nothing_else_runs(registry):
    register(fake("moon", "needs a full moon, got a new one"))
    register(fake("torch"))
    message = r"backend 'moon' must accept this call, but it needs a full moon, got a new one\. Pass backend=None"
    with pytest.raises(BackendError, match=message):
        select(CALL, "moon")


def test_unknown_names():
    for function in (lambda: find("cuda"), lambda: select(CALL, "cuda")):
        with pytest.raises(
            ConfigError, match=r"one of triton, cpu, torch, sparse, reference or None, got 'cuda'\. Pass one"
        ):
            function()


def test_names_are_registered_once(registry):
    register(fake("twice"))
    with pytest.raises(ConfigError, match="must be new, got 'twice' again"):
        register(fake("twice"))
    assert list(registry) == ["twice"]


def test_only_torch_runs_on_other_devices():
    call = replace(CALL, device=torch.device("meta"))
    assert verdicts(call)["triton"] == "refuses: needs CUDA or HIP tensors, got meta"
    assert verdicts(call)["cpu"] == "refuses: needs CPU tensors, got meta"
    assert select(call).name == "torch"


def test_explain_gives_every_verdict():
    text = eqlayers.explain()
    assert text.splitlines()[:2] == ["TensorProduct on cpu, torch.float32, backend=auto", "  all 1 paths: cpu runs"]
    assert "    cpu: runs" in text
    assert "    torch: accepts, behind the chosen one" in text
    assert "    sparse: accepts, behind the chosen one" in text
    assert "    reference: accepts, only when named" in text
    accepts = "    triton: accepts, only when named" in text  # the interpreter, on CPU tensors
    assert accepts == (availability.why_not() is None)
    assert "torch.float64" in eqlayers.explain(dtype=torch.float64)


class Maker:
    """Makes the numbers of a constant, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Tensor:
        self.calls += 1
        return torch.arange(3.0)


def test_a_constant_is_made_once_for_each_key() -> None:
    constants, make = Constants(), Maker()
    first = constants("a", CPU, make)
    assert constants("a", CPU, make) is first
    assert constants(("a", 2), CPU, make) is not first
    assert make.calls == 2
    assert constants("a", torch.device("meta"), make).device.type == "meta"
    assert constants("a", CPU, make) is first, "a device keeps none"
    assert make.calls == 2


@each("mode", ["inference", "gradient of a gradient", "samples", "trace"])
def test_a_constant_that_is_first_wanted_in_a_mode_serves_outside_of_it(mode: str) -> None:
    constants, make = Constants(), Maker()

    def total(x: Tensor) -> Tensor:
        return (x * x * constants("a", CPU, make)).sum()

    x = torch.ones(2, 3)
    if mode == "inference":
        with torch.inference_mode():
            assert total(x) == 6
    elif mode == "gradient of a gradient":
        assert torch.equal(grad(lambda t: grad(total)(t).sum())(x), 2 * torch.arange(3.0).expand(2, 3))
    elif mode == "samples":
        assert vmap(total)(x).tolist() == [3, 3]
    else:
        traced = make_fx(total, tracing_mode="fake")(x)  # whose own tensors hold no numbers
        assert make.calls == 1
        assert traced(2 * x) == 24, "the numbers are in the graph"
    live = x.clone().requires_grad_()
    total(live).backward()
    assert torch.equal(live.grad, 2 * torch.arange(3.0).expand(2, 3))
    assert type(constants("a", CPU, make)) is Tensor
    assert make.calls == 1


EDGES, SIZES = torch.tensor([[2, 0, 1, 1], [3, 0, 0, 4]]), Sizes(4, 3, 5)


def test_the_length_follows_from_the_sizes() -> None:
    graph = edge_tables(EDGES, 3, 5)
    assert graph.shape == (length_of(*SIZES[:3], CPU),)
    check_graph_tables(graph, SIZES, CPU)
    check_graph_tables(torch.cat([graph, graph[:7]]), SIZES, CPU, behind=7)
    with pytest.raises(ShapeError, match=r"here of 4 rows, 3 senders and 6 receivers, got shape \[\d+\]\. Make them"):
        check_graph_tables(graph, SIZES._replace(receivers=6), CPU)


def test_the_ends_of_every_edge_are_read() -> None:
    ends = endpoints_of(edge_tables(EDGES, 3, 5), SIZES)
    assert torch.equal(torch.stack([ends.src, ends.dst]), EDGES)
    assert (ends.num_src, ends.num_dst) == (3, 5)


@pytest.mark.parametrize("place", [0, 3, 8, 12, 20])
def test_a_damaged_table_names_no_ends(place: int) -> None:
    graph = edge_tables(EDGES, 3, 5)
    graph[place] += 1
    with pytest.raises(IndexRangeError, match="got other numbers"):
        endpoints_of(graph, SIZES)


ENDS = Endpoints(torch.tensor([2, 0, 2, 1]), torch.tensor([0, 3, 3, 0]), 3, 5)


def test_lengths_and_vectors_between_points() -> None:
    base = edges_of_points()
    start, end, shift = (torch.randn(n, one.width).double() for n, one in zip((3, 5, 4), base.operands, strict=True))
    vector, length, harmonics = run_in_torch(base, [start, end, shift], ENDS)
    wanted = end[ENDS.dst] - start[ENDS.src] + shift[:, :3]  # a column of the shift stands behind its block
    torch.testing.assert_close(vector, wanted)
    torch.testing.assert_close(length, wanted.norm(dim=1, keepdim=True))
    unit = wanted / wanted.norm(dim=1, keepdim=True)
    torch.testing.assert_close(harmonics[:, 2:5], unit)
    torch.testing.assert_close(harmonics[:, 6], 1.5 * unit[:, 2] ** 2 - 0.5)
    assert harmonics[:, 1].tolist() == [1.0] * 4, "a number is spread over the rows"
    assert not harmonics[:, [0, 7, 8]].any(), "columns of no component and of none are 0"


def columns_of(one: Operand, channels: int) -> list[int]:
    return [column for component in one.columns(channels) for column in component]


@each("layout", ["mul_ir", "channels"])
def test_layouts_of_channels_differ_in_their_columns_alone(layout: str) -> None:
    """A block of l = 1 behind one of l = 0; components may lie side by side or channels apart."""
    channels, components = 5, (1, 3)
    base, other = cubic(channels, rows="one", components=components), cubic(channels, layout, "one", components)
    x = torch.randn(4, channels * 4).double()
    coefficients = torch.randn(base.operands[1].width).double()
    turned = torch.empty_like(x)
    turned[:, columns_of(other.operands[0], channels)] = x[:, columns_of(base.operands[0], channels)]
    (z,), (wanted,) = (run_in_torch(f, [t, coefficients], None) for f, t in ((other, turned), (base, x)))
    places = [columns_of(f.results[0], channels) for f in (other, base)]
    torch.testing.assert_close(z[:, places[0]], wanted[:, places[1]], rtol=0, atol=0)


def total_of(rows: str) -> Formula:
    """Twice a number, summed over the rows of a node or all."""
    expr = Expression()
    one = Operand("x", 1, (Block(0, 1),))
    double = expr.scale(2.0, expr.load(0, 0))
    return formula(expr, [one], [one._replace(name="z", rows=rows)], [[double]])


def test_rows_of_results_are_summed() -> None:
    x = torch.arange(1.0, 5.0)[:, None]
    assert run_in_torch(total_of("each"), [x], ENDS)[0].flatten().tolist() == [2, 4, 6, 8]
    assert run_in_torch(total_of("one"), [x], None)[0].tolist() == [20]
    assert run_in_torch(total_of("src"), [x], ENDS)[0].flatten().tolist() == [4, 8, 8]
    assert run_in_torch(total_of("dst"), [x], ENDS)[0].flatten().tolist() == [10, 0, 0, 10, 0]
    assert run_in_torch(total_of("one"), [x[:0]], None)[0].tolist() == [0]


def test_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    x = torch.randn(50, 9).half()
    (rounded,) = run_in_torch(functions(3), [x], None)
    (exact,) = run_in_torch(functions(3), [x.double()], None)
    assert rounded.dtype == torch.float16
    # half of the last place, and the errors of float32; 2^-25 is half of the distance of the smallest numbers
    assert bool(((rounded.double() - exact).abs() <= (2.0**-11 + 1e-5) * exact.abs() + 2.0**-25).all())


@each("dtype", [torch.float32, torch.float64])
def test_the_zero_vector_has_no_direction_and_no_derivatives(dtype: torch.dtype) -> None:
    vector = [torch.tensor([0.0, 3.0, torch.nan], dtype=dtype, requires_grad=True) for _ in range(3)]
    inverse = Primitives.inverse_length(*vector)
    assert inverse[:2].tolist() == [0.0, pytest.approx(27**-0.5)]
    assert bool(inverse[2].isnan()), "an undefined number is not hidden"
    first = torch.autograd.grad(inverse[:2].sum(), vector, create_graph=True)
    second = torch.autograd.grad(sum(one[:2].sum() for one in first), vector[0])[0]
    assert all(one[:2].tolist() == [0.0, pytest.approx(-3 * 27**-1.5)] for one in first)
    assert second[0] == 0.0
