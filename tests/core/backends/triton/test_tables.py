"""Convolutions that read tables on printed Triton kernels, in the interpreter or on a GPU, against stored weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import eqlayers as eq
from eqlayers.core.forms.request import Request
from eqlayers.errors import IndexRangeError
from eqlayers.functional import TabledWeights
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.run import edges as sorting
from tests.core.backends.triton.test_forms import DEVICE
from tests.watching import watching

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")

#: Channels below, above and at a block; a path without weights, and two that write the same.
IN, SH, OUT = "9x0e + 5x1o + 33x1e", "0e + 1o", "9x0e + 33x1e + 5x0e"
PATHS = [(0, 0, 0, "uvu", True), (1, 1, 2, "uvu", True), (1, 1, 2, "uvu", True), (2, 0, 1, "uvu", False)]
PATHS += [(2, 0, 1, "uvu", True)]
SENDERS, RECEIVERS, ROWS = 6, 8, 12


def conv(layout: str, backend: str | None, deterministic: bool = True) -> eq.TensorProductConv:
    task: dict[str, Any] = {"shared_weights": False, "internal_weights": False, "deterministic": deterministic}
    return eq.TensorProductConv(IN, SH, OUT, PATHS, layout=layout, backend=backend, **task).to(DEVICE)


def graph(edges: int) -> eq.Graph:
    """One receiver and one sender of most edges, whose edges are cut; others without any."""
    src, dst = torch.randint(0, SENDERS - 1, (edges,)), torch.randint(1, RECEIVERS - 1, (edges,))
    src[: edges // 2], dst[edges // 3 :] = 2, 4
    return eq.Graph(torch.stack([src, dst]).to(DEVICE), SENDERS, RECEIVERS)


def operands(reads: int, orders: int, edges: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, y, table, coefficients; and intervals, one with most edges, some without any."""
    numel = conv("ir_mul", None).weight_numel
    shapes = (SENDERS, 9 + 15 + 99), (edges, 4), (ROWS, numel), (edges, reads)
    interval = torch.randint(0, (ROWS - reads) // orders, (edges,))
    interval[: edges // 2] = 1
    drawn = [torch.randn(shape, dtype=torch.float64).to(DEVICE, dtype).requires_grad_() for shape in shapes]
    return [*drawn, interval.to(DEVICE)]


def derivatives(layer: eq.TensorProductConv, given: list[Tensor], orders: int, edges: eq.Graph, stored: bool) -> Any:
    """Value, gradients, and gradients of a function of these."""
    x, y, table, c, interval = given
    made = TabledWeights(table, interval, c, orders)
    z = layer(x, y, made.weights() if stored else made, edges)
    factors = torch.linspace(-1, 1, z.numel(), dtype=z.dtype, device=z.device).view(z.shape)
    first = torch.autograd.grad((z * factors).sin().sum(), (x, y, table, c), create_graph=True)
    scalar = torch.stack([(3 * g / g.detach().abs().max().clamp(min=1e-9) + 1).sin().mean() for g in first]).sum()
    return [z, *first, *torch.autograd.grad(scalar, (x, y, table, c))]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("reads", "orders", "layout"),
    [
        pytest.param(4, 1, "mul_ir", marks=pytest.mark.slow),
        pytest.param(4, 1, "ir_mul", marks=pytest.mark.slow),
        pytest.param(4, 2, "mul_ir", marks=pytest.mark.slow),
        (6, 3, "ir_mul"),
    ],
)
def test_two_orders_are_those_of_stored_weights(reads: int, orders: int, layout: str) -> None:
    given, edges = operands(reads, orders, 24), graph(24)
    seen: list[Request] = []

    def watch(use: Request, run: Any) -> Any:
        seen.append(use)
        return run()

    with watching(watch):
        mine = derivatives(conv(layout, "triton"), given, orders, edges, stored=False)
    forms = [use for use in seen if use.form.reading]
    assert {use.backend for use in forms} == {"triton"}
    assert {use.form.task.results for use in forms} >= {("z",), ("x", "y", "t", "c"), ("x", "y", "c", "z"), ("t",)}
    wanted = derivatives(conv(layout, "torch"), given, orders, edges, stored=True)
    for a, b in zip(mine, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12 * float(b.detach().abs().max()))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("frozen", range(4))
def test_one_operand_may_be_frozen(monkeypatch: pytest.MonkeyPatch, frozen: int) -> None:
    monkeypatch.setattr(sorting, "LEAST", 2)
    given, edges = operands(4, 1, 5), graph(5)
    tensors = [t.requires_grad_(n != frozen) for n, t in enumerate(given[:4])]
    wanted = [t for t in tensors if t.requires_grad]
    found = []
    for name in ("triton", "torch"):
        x, y, table, c = tensors
        z = conv("ir_mul", name)(x, y, TabledWeights(table, given[4], c), edges).square().sum()
        first = torch.autograd.grad(z, wanted, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), wanted)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12 * float(b.detach().abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_and_gradients_in_any_order(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(sorting, "LEAST", 2)
    given, edges = operands(4, 1, 11, dtype), graph(11)
    x, y, table, c, interval = given
    z = conv("ir_mul", "triton", deterministic=False)(x, y, TabledWeights(table, interval, c), edges)
    mine = [z, *torch.autograd.grad(z.sum(), (x, y, table, c))]
    exact = [t.detach().double().requires_grad_() for t in given[:4]]
    wanted = conv("ir_mul", "torch")(exact[0], exact[1], TabledWeights(exact[2], interval, exact[3]), edges)
    right = [wanted, *torch.autograd.grad(wanted.sum(), exact)]
    eps = torch.finfo(dtype).eps
    for a, b in zip(mine, right, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=2 * eps, atol=60 * eps * float(b.detach().abs().max()))


@pytest.mark.slow
def test_no_edges_and_many_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, table, c, interval = operands(4, 1, 0)
    z = conv("ir_mul", "triton")(x, y, TabledWeights(table, interval, c), graph(0))
    gradients = torch.autograd.grad(z.sum(), (x, y, table, c))
    assert [g.shape for g in gradients] == [t.shape for t in (x, y, table, c)]
    assert not any(t.any() for t in (z, *gradients))
    given, edges = operands(4, 1, 20), graph(20)
    wanted = derivatives(conv("ir_mul", "torch"), given, 1, edges, stored=True)
    monkeypatch.setitem(
        tuning.PROCESSORS, "cuda", tuning.PROCESSORS["cuda"]._replace(accesses=12)
    )  # so few that almost every path is a kernel of its own
    for a, b in zip(derivatives(conv("ir_mul", "triton"), given, 1, edges, stored=False), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12 * float(b.detach().abs().max()))


def test_programs_that_no_kernel_runs_get_stored_weights() -> None:
    paths = [(0, 0, 0, "uvw", True), (0, 1, 1, "uvu", True)]
    given = {"shared_weights": False, "internal_weights": False}
    layer, other = (eq.TensorProductConv("3x0e", SH, "3x0e + 3x1o", paths, backend=b, **given) for b in (None, "torch"))
    x, y, c = torch.randn(SENDERS, 3), torch.randn(9, 4), torch.rand(9, 4)
    made = TabledWeights(torch.randn(ROWS, layer.weight_numel), torch.randint(0, 9, (9,)), c)
    edges = eq.Graph(torch.randint(0, SENDERS, (2, 9)), SENDERS)
    torch.testing.assert_close(layer(x, y, made, edges), other(x, y, made, edges))


@pytest.mark.skipif(DEVICE != "cpu", reason="tables on GPUs are not looked at: it would make the stream wait")
def test_places_of_another_graph_are_noticed() -> None:
    x, y, table, c, interval = operands(4, 1, 12)
    edges = graph(12)
    layer = conv("ir_mul", "triton")
    made = TabledWeights(table, interval, c)
    layer(x, y, made, edges)
    kept = edges.interval_tables(interval, len(table) - 3, lambda place: place)
    kept[-1] = kept[-1] + 1 if int(kept[-1]) < 8 else 0
    with pytest.raises(IndexRangeError, match="graph must"):
        layer(x, y, made, edges)
