"""Graphs of functions: equal for all sizes, smaller than what was traced, and right where memory is written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx

from eqlayers import Graph, Linear, TensorProductConv
from eqlayers.core.traces.derivable import Derivable
from eqlayers.core.traces.recorded import Recorded
from eqlayers.core.traces.simplify import simplify
from eqlayers.core.traces.trace import SIZES, Refused, trace
from eqlayers.errors import ShapeError
from eqlayers.nn import GatedNonlinearity

ATOMS = ("atoms", None)


def graph_of(function: Callable[..., Sequence[Tensor]], *operands: Tensor) -> fx.GraphModule:
    """The simplified graph of a function of rows."""
    module = trace(function, operands, [ATOMS] * len(operands), "the function")
    simplify(module)
    return module


def calls(module: fx.GraphModule) -> list[str]:
    """Names of the operators."""
    return [str(node.target).split(".")[1] for node in module.graph.nodes if node.op == "call_function"]


def test_equal_nodes_are_one_and_unused_ones_go() -> None:
    module = graph_of(lambda x: [x.sin() + x.sin(), torch.cat([x.cos(), x.cos()]), x.tan()][:2], torch.zeros(3, 2))
    assert sorted(calls(module)) == ["add", "cat", "cos", "sin"]
    x = torch.randn(5, 2)
    for one, other in zip(module(x), (2 * x.sin(), torch.cat([x.cos()] * 2)), strict=True):
        torch.testing.assert_close(one, other)


def test_copies_that_change_nothing_go() -> None:
    def function(x: Tensor) -> list[Tensor]:
        spread = x[:, :1].expand(-1, 2).to(x.dtype, copy=True)  # its columns are no rows of numbers before
        return [x.to(x.dtype, copy=True).sin(), x.double(), spread.view(-1)]

    module = graph_of(function, torch.zeros(3, 2))
    assert [name for name in calls(module) if "copy" in name] == ["_to_copy"] * 2
    x = torch.randn(5, 2)
    for one, other in zip(module(x), function(x), strict=True):
        torch.testing.assert_close(one, other)


def test_integers_and_floats_stay_apart() -> None:
    def function(x: Tensor) -> list[Tensor]:
        index = torch.ones_like(x, dtype=torch.int64)
        return [index * 2, index * 2.0]

    results = graph_of(function, torch.zeros(3, 2))(torch.zeros(4, 2))
    assert [one.dtype for one in results] == [torch.int64, torch.float32]


def test_constants_are_computed_once() -> None:
    weights = torch.arange(4.0).view(2, 2)
    module = graph_of(lambda x: [x @ (2.0 * weights).exp().T], torch.zeros(3, 2))
    assert calls(module) == ["mm"]
    torch.testing.assert_close(module(torch.ones(1, 2))[0], torch.ones(1, 2) @ (2.0 * weights).exp().T)


def test_what_is_written_or_drawn_is_not_united() -> None:
    def function(x: Tensor) -> list[Tensor]:
        first, second = x.new_zeros(2), x.new_zeros(2)
        first.add_(1.0)
        rows = x.new_zeros(2, 2)
        rows[0].sub_(2.0)
        constant = torch.ones(2)
        changed = constant.clone().add_(1.0) + constant
        return [
            first + second,
            rows + x.new_zeros(2, 2),
            torch.rand(9) - torch.rand(9),
            changed,
            x.sin().add_(1) - x.sin(),
        ]

    one, rows, drawn, changed, more = graph_of(function, torch.zeros(3, 2))(torch.zeros(4, 2))
    assert one.tolist() == [1.0, 1.0]
    assert torch.equal(more, torch.ones(4, 2))
    assert rows.tolist() == [[-2.0, -2.0], [0.0, 0.0]]
    assert drawn.abs().max() > 0
    assert changed.tolist() == [3.0, 3.0]


def test_what_is_written_through_a_view_is_read() -> None:
    def function(x: Tensor) -> list[Tensor]:
        columns, once = x.new_zeros(x.shape[0], 2), x * 1
        before = once.view(-1).exp()
        columns[:, 0] = x
        columns[:, 1] += x * x
        once.sub_(1)
        return [columns.sum(1) + before * once.view(-1).exp()]

    x, both = torch.rand(3).requires_grad_(), []
    for call in (Derivable(function, [x], [("atoms",)], [True], "columns"), lambda operands: function(*operands)):
        (result,) = call([x])
        both.append([result, *torch.autograd.grad(result.sum(), x)])
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 1_009])
def test_any_number_of_rows(rows: int) -> None:
    """Sizes of one name are one symbol, whatever the first operands were."""

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x @ y.T, torch.cat([x, y]), (x + y).sum(0) / x.shape[0], x.new_ones(x.shape[0] + y.shape[0])]

    module = graph_of(function, torch.zeros(1, 2), torch.zeros(1, 2))
    x, y = torch.randn(rows, 2), torch.randn(rows, 2)
    for one, other in zip(module(x, y), function(x, y), strict=True):
        assert torch.equal(one, other) or not rows


def test_comparisons_that_hold_for_all_sizes_are_none() -> None:
    """Torch asks whether 3 (n + 2) rows are a multiple of n + 2, and does not see that they are."""

    def function(x: Tensor) -> list[Tensor]:
        rows = torch.cat([x, x.new_ones(2, 6)]).reshape(-1, 2)
        return [rows.reshape(x.shape[0] + 2, 3, 2).sum(0)]

    module = graph_of(function, torch.zeros(1, 6))
    for rows in (0, 1, 5):
        x = torch.randn(rows, 6)
        assert torch.equal(module(x)[0], function(x)[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x * float(x.sum())],
        lambda x: [x if x.shape[0] > 5 else -x],
        pytest.param(
            lambda x: [torch.nn.functional.pad(x, (0, 0, 0, 1))],
            marks=pytest.mark.skipif(torch.__version__ < "2.8", reason="torch 2.6 and 2.7 pad any number of rows"),
        ),
        lambda x: [x if bool((x > 0).all()) else -x],
    ],
)
def test_decisions_by_numbers_and_sizes_are_refused(function: Callable[[Tensor], list[Tensor]]) -> None:
    with pytest.raises(Refused, match=r"the function must be traced once.*test_traces.py:\d+, <lambda>"):
        graph_of(function, torch.zeros(3, 2))


def test_changes_of_operands_are_refused() -> None:
    """A program would leave out the change, such as the change of a buffer with a running mean."""
    kept = torch.zeros(3, 2)

    def function(x: Tensor, mean: Tensor) -> list[Tensor]:
        mean[0].lerp_(x.mean(0)[0], 0.1)
        return [x - mean[0]]

    for changing in (function, lambda x, mean: function(x, kept)):
        with pytest.raises(Refused, match=r"without changes of tensors .*lerp_.* of a weight, a buffer, an input or"):
            graph_of(changing, torch.zeros(3, 2), kept)


def test_gradients_have_memory_of_their_own() -> None:
    """Gradients that are one tensor, or a view of another or of an operand, are added to in place."""
    x, weights = torch.rand(3, 2), [torch.ones(size).requires_grad_() for size in ((2,), (1, 2), (3, 2))]

    def function(x: Tensor, one: Tensor, row: Tensor, whole: Tensor) -> list[Tensor]:
        return [((x + one + row).sin() + whole * x).sum()]

    traced = Derivable(function, [x, *weights], [None] * 4, [False, True, True, True], "a sum")
    for _ in range(2):
        traced([x, *weights])[0].backward()
    for _ in range(2):
        (-function(x, *weights)[0]).backward()
    for weight in weights:
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, torch.zeros_like(weight), rtol=0, atol=1e-6)


def test_errors_of_layers_come_through() -> None:
    layer = Linear("2x0e", "2x0e")
    with pytest.raises(ShapeError, match="features must be"):
        graph_of(lambda x: [layer(x)], torch.zeros(3, 5))


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_and_gradients_of_layers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = Linear("2x0e + 3x1o", "3x0e + 2x1o").to(dtype)

    def function(x: Tensor, scale: Tensor) -> list[Tensor]:
        y = layer(x).square()
        return [y.sum(1), (y * scale).sum(), scale * 2.0]

    x, scale = torch.randn(3, 11, dtype=dtype, requires_grad=True), torch.tensor([2.0], dtype=dtype)
    traced = Derivable(function, [x, scale], [ATOMS, None], [True, False], "the function")
    for rows in (0, 1, 2, 50):
        rows_of = torch.randn(rows, 11, dtype=dtype, requires_grad=True)
        results, expected = traced([rows_of, scale]), function(rows_of, scale)
        assert [one.requires_grad for one in results] == [True, True, False]
        slopes = [torch.autograd.grad(one[0].sum() + 3.0 * one[1], rows_of)[0] for one in (results, expected)]
        for one, other in zip([*results, slopes[0]], [*expected, slopes[1]], strict=True):
            assert torch.equal(one, other)
    with torch.no_grad():
        assert not traced([x, scale])[0].requires_grad


def test_sizes_are_primes_that_nothing_else_has() -> None:
    for size in SIZES.values():
        assert all(size % divisor for divisor in range(2, int(size**0.5) + 1))
    assert len(set(SIZES.values())) == len(SIZES)


@pytest.mark.kernels
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("kind", ["map", "convolution", "mixing", "gate"])
def test_derivatives_that_are_added_are_one_form(kind: str, layout: str) -> None:
    """Of forces: the gradient of a form, and the gradient of its gradient, by the same operands."""
    torch.manual_seed(0)
    irreps, attributes = "4x0e + 4x1o", "0e + 1o"
    gate = GatedNonlinearity(irreps, layout=layout)
    paths = [(0, 0, 0, "uvw" if kind == "mixing" else "uvu", True), (1, 1, 0, "uvu", True), (0, 1, 1, "uvu", True)]
    product = TensorProductConv(
        irreps, attributes, irreps, paths, layout=layout, shared_weights=False, internal_weights=False
    )
    linear = Linear(irreps, gate.irreps_in, layout=layout, internal_weights=False)

    def run(x: Tensor, y: Tensor, edges: Tensor, w: Tensor, v: Tensor) -> Tensor:
        if kind == "map":
            return linear(x, w)
        if kind == "gate":
            return gate(linear(x, w))
        return product(x, y, v, Graph(edges, x.shape[0], copy=False))

    def function(x: Tensor, y: Tensor, edges: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
        x = x.requires_grad_() if x.is_leaf else x
        energy = run(x.sin(), y, edges, w, v.sin()).sin().sum()
        (forces,) = torch.autograd.grad(energy, x, create_graph=True)
        return [energy, forces]

    def operands(rows: int, edges: int) -> list[Tensor]:
        shapes = [(rows, 16), (edges, 4), None, (linear.weight_numel,), (edges, product.weight_numel)]
        index = torch.randint(0, max(rows, 1), (2, edges))
        drawn = [index if shape is None else torch.randn(shape, dtype=torch.float64) for shape in shapes]
        return [t.requires_grad_(number > 2) for number, t in enumerate(drawn)]

    axes = [ATOMS, ("edges", None), (None, "edges"), None, ("edges", None)]
    edgewise = kind in ("convolution", "mixing")
    wanted = [False, False, False, not edgewise, edgewise]
    traced = Derivable(function, operands(3, 5), axes, wanted, "the function")
    keys = [str(node.args[5]) for node in traced.backward.graph.nodes if str(node.target) == "eqlayers.form.default"]
    assert any(key.rpartition("/")[2][0] == "a" for key in keys), "one form has both"
    for rows, edges in ((1, 0), (5, 11), (40, 300)):
        tensors = operands(rows, edges)
        weights = [t for t, want in zip(tensors, wanted, strict=True) if want]
        gradients = []
        for call in (traced, lambda every: function(*every)):
            energy, forces = call(tensors)
            gradients.append(torch.autograd.grad(energy + forces.cos().sum(), weights))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.kernels
def test_gradients_that_end_in_float32_are_computed_in_it() -> None:
    torch.manual_seed(0)
    x, knots = torch.randn(4, 2), torch.randn(6, 3, dtype=torch.float64)
    weights = [torch.randn(3, 5).requires_grad_(), torch.randn(5, 2).requires_grad_()]

    def function(x: Tensor, knots: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
        hidden = knots @ first.double() @ second.double()
        return [(x @ hidden.float().T).sin(), first.double().sum()]

    for exact in (False, True):
        operands = [x, knots.requires_grad_(exact), *weights]
        wanted = [one.requires_grad for one in operands]
        traced = Derivable(function, operands, [ATOMS, None, None, None], wanted, "the function")
        products = [node for node in traced.backward.graph.nodes if str(node.target) == "aten.mm.default"]
        dtypes = {node.meta["val"].dtype for node in products}
        assert dtypes == ({torch.float32, torch.float64} if exact else {torch.float32})
        results, expected = traced(operands), function(*operands)
        assert all(map(torch.equal, results, expected)), "results are exact"
        inputs = [one for one in operands if one.requires_grad]
        gradients = [torch.autograd.grad(one[0].sum() + one[1], inputs) for one in (results, expected)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)


class Stream(NamedTuple):
    """A stream of a GPU, which only notes what it is used for."""

    name: str
    notes: list[tuple[str, ...]]

    def wait_stream(self, other: Any) -> None:
        self.notes.append(("wait", self.name, other.name))


class Rows:
    """Memory for twice as many rows."""

    def sizes(self, operands: Sequence[Tensor]) -> dict[str, int]:
        return {"atoms": len(operands[1])}

    def capacity(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"atoms": 2 * sizes["atoms"]}

    def memory(self, operands: Sequence[Tensor], capacity: Mapping[str, int]) -> list[Tensor]:
        return [operands[0], operands[1].new_zeros(capacity["atoms"])]

    def fill(self, memory: Sequence[Tensor], operands: Sequence[Tensor]) -> None:
        memory[1][: len(operands[1])] = operands[1]


def test_recordings_share_a_stream_and_calls_wait_for_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch uses memory of a pool again on its stream alone; calls of all streams use the memory of a recording."""
    notes: list[tuple[str, ...]] = []
    main, other = Stream("main", notes), Stream("other", notes)
    current, number = [main], count()

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        before, current[0] = current[0], stream
        try:
            yield
        finally:
            current[0] = before

    def graph(graph: Any, pool: Any, stream: Stream, capture_error_mode: str) -> Any:
        notes.append(("record", stream.name, str(pool)))
        if pool == "broken":
            current[0] = stream
            raise RuntimeError("operation not permitted when stream is capturing")
        return on(stream)

    made = SimpleNamespace(pool=lambda: "pool", replay=lambda: notes.append(("replay", current[0].name)))
    fakes: dict[str, Any] = {"Stream": lambda device: Stream(f"side {next(number)}", notes), "stream": on}
    fakes |= {"current_stream": lambda *device: current[0], "device": nullcontext, "CUDAGraph": lambda: made}
    for name, fake in (fakes | {"graph": graph, "is_current_stream_capturing": lambda: False}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    weight, x = torch.ones(1, requires_grad=True), torch.ones(3)
    traced = Derivable(lambda w, x: [w * x], [weight, x], [None, ("atoms",)], [True, False], "it")
    called = Recorded(traced, Rows(), torch.device("cuda"))
    for size in (3, 2):
        (result,) = called([weight, x[:size]])
    assert [note for note in notes if note[0] == "record"] == [("record", "side 0", p) for p in ("None", *["pool"] * 3)]
    waits = [("wait", "side 0", "main"), ("wait", "main", "side 0")]
    assert [note for note in notes if note[0] == "wait"] == 4 * waits, "no stream waits for itself"
    notes.clear()
    with on(other):
        called([weight, x])
    result.backward(torch.ones(2))
    replays = [("replay", "other"), ("wait", "main", "other"), *[("replay", "main")] * 2]
    assert notes == [("wait", "other", "main"), *replays], "the first pass again, as another call was made"
    made.pool = lambda: "broken"
    with pytest.raises(Refused, match="must not wait for the device"):
        called([weight, torch.ones(6)])
    assert current == [main]
