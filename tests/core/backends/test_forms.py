"""Whole products and convolutions: derivatives against backend torch, the forms they ask for, memory that stays."""

import gc
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import eqlayers as eq
from eqlayers.core.backends.forms import fits
from eqlayers.core.backends.operands import check_operands
from eqlayers.core.forms.description import describe
from eqlayers.core.forms.request import Sizes
from eqlayers.errors import EqlayersError
from eqlayers.testing import check_derivatives
from eqlayers_kernels.arithmetic.writer import Task
from tests.cases import towers
from tests.watching import watching

pytestmark = pytest.mark.usefixtures("needs_a_compiler")

# channelwise with and without weights, and one path that mixes channels; two paths share an output
IN1, IN2, OUT = "4x0e + 2x1o", "0e + 1o", "4x0e + 2x1o + 2x1e"
PATHS = [(0, 0, 0, "uvu", True), (1, 1, 2, "uvu", False), (0, 1, 1, "uvw", True), (1, 0, 1, "uvu", False)]
PLAN = eq.TensorProduct(IN1, IN2, OUT, PATHS, layout="ir_mul").plan
EDGES = torch.tensor([[2, 0, 2, 1], [0, 3, 3, 0]])
SENDERS, RECEIVERS, COUNT = 3, 4, 4
EPS = torch.finfo(torch.float64).eps


def operands(graph: bool, shared: bool, requires: Sequence[bool] = (True, True, True)) -> list[Tensor]:
    shapes = [(SENDERS if graph else COUNT, 10), (COUNT, 4), (PLAN.weight_numel,)]
    if not shared:
        shapes[2] = (COUNT, PLAN.weight_numel)
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [t.requires_grad_(needs) for t, needs in zip(drawn, requires, strict=True)]


def function(graph: bool, backend: str | None = None) -> Callable[..., Tensor]:
    if graph:
        edges = eq.Graph(EDGES, SENDERS, RECEIVERS)
        return lambda x, y, w: eq.functional.tensor_product_conv(PLAN, x, y, w, edges, backend=backend)
    return lambda x, y, w: eq.functional.tensor_product(PLAN, x, y, w, backend=backend)


def assert_close(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        # sums of fewer than 300 products of numbers of order 1, rounded in another order
        bound = 300 * EPS * max(1.0, float(b.detach().abs().max()))
        assert a.shape == b.shape
        assert (a - b).abs().max() <= bound, f"derivative {number}"


SUBSETS = [s for s in itertools.product((True, False), repeat=3) if any(s)]


@pytest.mark.parametrize(("graph", "shared"), [(False, False), (True, True)], ids=["rows", "graph, shared weights"])
def test_three_orders_equal_those_of_torch(graph: bool, shared: bool) -> None:
    got = towers(function(graph, "cpu"), operands(graph, shared), 3)
    assert_close(got, towers(function(graph, "torch"), operands(graph, shared), 3))
    assert all(value.any() for value in got[-3:])


@pytest.mark.parametrize("requires", SUBSETS[1:], ids=lambda s: "".join(n for n, r in zip("xyw", s, strict=True) if r))
def test_any_subset_may_require_a_gradient(requires: tuple[bool, ...]) -> None:
    """Two orders; first gradients can be differentiated again whenever there is something to differentiate by."""
    got = towers(function(False, "cpu"), operands(False, False, requires), 2)
    assert_close(got, towers(function(False, "torch"), operands(False, False, requires), 2))
    inputs = operands(False, False, requires)
    live = [t for t in inputs if t.requires_grad]
    z = function(False)(*inputs)
    first = torch.autograd.grad(z.square().sum(), live, create_graph=True)
    assert all(grad.requires_grad and grad.shape == t.shape for grad, t in zip(first, live, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["sample", "shared"])
@pytest.mark.parametrize("graph", [False, True], ids=["rows", "graph"])
@pytest.mark.parametrize("requires", SUBSETS, ids=str)
def test_three_orders_of_any_subset(requires: tuple[bool, ...], graph: bool, shared: bool) -> None:
    got = towers(function(graph, "cpu"), operands(graph, shared, requires), 3)
    assert_close(got, towers(function(graph, "torch"), operands(graph, shared, requires), 3))


@pytest.mark.parametrize("along", range(3), ids="xyw")
def test_the_derivative_of_one_gradient_alone(along: int) -> None:
    """A loss of forces has this case: the other gradients were asked for, and have no cotangent."""
    found = []
    for backend in ("cpu", "torch"):
        inputs = operands(False, False)
        first = torch.autograd.grad(function(False, backend)(*inputs).square().sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(first[along].square().sum(), inputs))
    assert_close(*found)


@pytest.mark.parametrize("graph", [False, True], ids=["rows", "graph"])
def test_finite_differences(graph: bool) -> None:
    inputs = operands(graph, graph)
    assert gradcheck(function(graph), inputs, fast_mode=True)
    assert gradgradcheck(function(graph), inputs, fast_mode=True)
    report = check_derivatives(function(graph), inputs, 3, max_elements=1)
    assert {entry.operand for entry in report.entries if entry.order == 3} >= {"input 0", "input 1", "input 2"}


def test_unneeded_gradients_are_not_computed() -> None:
    tasks: list[Task] = []
    with watching(lambda request, run: tasks.append(request.form.task) or run()):
        for requires in SUBSETS:
            inputs = operands(False, False, requires)
            live = [t for t in inputs if t.requires_grad]
            names = tuple(name for name, needs in zip("xyw", requires, strict=True) if needs)
            z = function(False)(*inputs)
            torch.autograd.grad(z.sum(), live)
            assert tasks == [Task(0, ("z",)), Task(1, names)]
            tasks.clear()
            assert [t.grad for t in inputs] == [None] * 3
        with torch.no_grad():
            assert not function(False)(*operands(False, False)).requires_grad
        with torch.inference_mode():
            assert function(False)(*operands(False, False)).is_inference()
        assert {task.order for task in tasks} == {0}


def test_what_was_saved_is_not_overwritten_and_a_change_of_it_is_noticed() -> None:
    inputs = operands(True, True)
    before = [t.detach().clone() for t in inputs]
    z = function(True)(*inputs)
    once = torch.autograd.grad(z.square().sum(), inputs, retain_graph=True)
    again = torch.autograd.grad(z.square().sum(), inputs, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip((*once, *before), (*again, *inputs), strict=True))
    with torch.no_grad():
        inputs[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(z.square().sum(), inputs)


@pytest.mark.parametrize("graph", [False, True], ids=["rows", "graph"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_nothing_is_kept_alive(order: int, graph: bool) -> None:
    """After the last derivative inputs, gradients and results go at once: no cycle waits for the collector."""

    def use() -> list[Any]:
        inputs = operands(graph, graph)
        values: Sequence[Tensor] = [function(graph)(*inputs)]
        kept = [*inputs, *values]
        for _ in range(order):
            total = torch.stack([v.square().sum() for v in values]).sum()
            values = torch.autograd.grad(total, inputs, create_graph=order > 1)
            kept.extend(values)
        return [weakref.ref(t) for t in kept]

    gc.collect()
    gc.disable()
    try:
        assert [ref() for ref in use()] == [None] * (4 + 3 * order)
    finally:
        gc.enable()


def test_a_strided_or_expanded_cotangent() -> None:
    inputs = operands(False, False)
    for cotangent in (torch.ones((), dtype=torch.float64).expand(COUNT, 16), torch.randn(16, COUNT).double().t()):
        got = torch.autograd.grad(function(False)(*inputs), inputs, cotangent)
        want = torch.autograd.grad(function(False)(*inputs), inputs, cotangent.contiguous())
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_operands_fit_where_the_check_passes() -> None:
    """Calls without a transform ask in a shorter way; both must answer alike."""
    description, sizes = describe(PLAN.form.calls[False, False].key), Sizes(COUNT)
    x, y, w = operands(False, False, (False,) * 3)
    calls = {
        "good": (x, y, w),
        "columns": (x[:, 1:], y, w),
        "rows": (x, y[1:], w),
        "axes": (x, y, w[0]),
        "dtype": (x, y.float(), w),
        "whole numbers": (x.long(), y.long(), w.long()),
        "device": (x, y, w.to("meta")),
        "number": (x, y),
    }
    for name, call in calls.items():
        try:
            check_operands(description.form, call, None, sizes)
            passes = True
        except EqlayersError:
            passes = False
        assert fits(description, call, sizes) is passes is (name == "good"), name
    assert fits(description, [t[:0] for t in (x, y, w)], Sizes(0))
