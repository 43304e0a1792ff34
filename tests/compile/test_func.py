"""torch.func and forward-mode derivatives: whole forms and sparse products under every transform."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import eqlayers as eq

pytestmark = pytest.mark.usefixtures("needs_a_compiler")

IN1, IN2, OUT = "3x0e + 1x1o", "0e + 1o", "3x0e + 1x1o + 1x1e"
PATHS = [(0, 0, 0, "uvu", True), (1, 1, 2, "uvu", False), (0, 1, 1, "uvw", True), (1, 0, 1, "uvu", False)]
PLAN = eq.TensorProduct(IN1, IN2, OUT, PATHS, layout="ir_mul").plan
EDGES = torch.tensor([[2, 0, 2, 1], [0, 3, 3, 0]])
SENDERS, RECEIVERS, COUNT = 3, 4, 4
ALL = (0, 1, 2)
EPS = torch.finfo(torch.float64).eps
Function = Callable[..., Any]


def operands(graph: bool, shared: bool, seed: int = 1, lead: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(SENDERS if graph else COUNT, 6), (COUNT, 4), (*([] if shared else [COUNT]), PLAN.weight_numel)]
    return tuple(torch.randn(*lead, *shape, generator=generator, dtype=torch.float64) for shape in shapes)


def function(graph: bool, backend: str) -> Callable[..., Tensor]:
    if graph:
        edges = eq.Graph(EDGES, SENDERS, RECEIVERS)
        return lambda x, y, w: eq.functional.tensor_product_conv(PLAN, x, y, w, edges, backend=backend)
    return lambda x, y, w: eq.functional.tensor_product(PLAN, x, y, w, backend=backend)


def assert_close(got: Any, want: Any) -> None:
    left, right = (torch.utils._pytree.tree_leaves(t) for t in (got, want))
    for a, b in zip(left, right, strict=True):
        # sums of fewer than 1000 products of numbers of order 1, rounded in another order
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 1000 * EPS * max(1.0, float(b.detach().abs().max()))


def squared(values: Sequence[Tensor]) -> Tensor:
    return torch.stack([v.square().sum() for v in values]).sum()


def scalar(fn: Function) -> Function:
    return lambda *args: fn(*args).sin().sum()


def along(fn: Function, args: Sequence[Tensor]) -> tuple[Any, Any]:
    return jvp(fn, tuple(args), tuple(torch.cos(3 * t) for t in args))


def dual(fn: Function, args: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    with forward_ad.dual_level():
        inputs = [forward_ad.make_dual(t, torch.cos(3 * t)) for t in args]
        return tuple(forward_ad.unpack_dual(fn(*inputs)))  # type: ignore[return-value]


def first_gradient(fn: Function) -> Function:
    return lambda *args: squared(grad(scalar(fn), ALL)(*args))


TRANSFORMS: dict[str, Callable[[Function, Sequence[Tensor]], Any]] = {
    "grad": lambda fn, args: grad(scalar(fn), ALL)(*args),
    "jvp": along,
    "dual numbers": dual,
    "jacrev": lambda fn, args: jacrev(fn, ALL)(*args),
    "jacfwd": lambda fn, args: jacfwd(fn, ALL)(*args),
    "hessian": lambda fn, args: hessian(scalar(fn), ALL)(*args),
    "jacrev of jacrev": lambda fn, args: jacrev(jacrev(scalar(fn), ALL), ALL)(*args),
    "jacfwd of jacfwd": lambda fn, args: jacfwd(jacfwd(scalar(fn), ALL), ALL)(*args),
    "grad of grad of grad": lambda fn, args: grad(lambda *a: squared(grad(first_gradient(fn), ALL)(*a)), ALL)(*args),
    "jvp of grad of grad": lambda fn, args: along(grad(first_gradient(fn), ALL), args),
    "grad of jvp of grad": lambda fn, args: grad(lambda *a: squared(along(grad(scalar(fn), ALL), a)[1]), ALL)(*args),
}
LATER = pytest.mark.slow
KINDS = pytest.mark.parametrize(
    ("graph", "shared"),
    [(False, True), (True, False), pytest.param(False, False, marks=LATER), pytest.param(True, True, marks=LATER)],
    ids=["rows, shared weights", "graph", "rows", "graph, shared weights"],
)


@pytest.mark.thinned(3)
@KINDS
@pytest.mark.parametrize(
    "transform",  # the third order is compared with the tape below
    [pytest.param(name, marks=LATER) if name == "grad of grad of grad" else name for name in TRANSFORMS],
)
def test_whole_forms_and_sparse_products_agree(transform: str, graph: bool, shared: bool) -> None:
    args = operands(graph, shared)
    got, want = (TRANSFORMS[transform](function(graph, backend), args) for backend in ("cpu", "torch"))
    assert_close(got, want)
    assert any(bool(t.any()) for t in torch.utils._pytree.tree_leaves(got))


@KINDS
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_func_derivatives_equal_those_of_the_tape(backend: str, graph: bool, shared: bool) -> None:
    """Both paths share their formulas under torch.func; the tape is what finite differences have checked."""
    fn, args = function(graph, backend), operands(graph, shared)
    live = [t.clone().requires_grad_() for t in args]
    first = torch.autograd.grad(scalar(fn)(*live), live, create_graph=True)
    second = torch.autograd.grad(squared(first), live, create_graph=True)
    third = torch.autograd.grad(squared(second), live)
    assert_close(grad(scalar(fn), ALL)(*args), first)
    assert_close(grad(first_gradient(fn), ALL)(*args), second)
    assert_close(grad(lambda *a: squared(grad(first_gradient(fn), ALL)(*a)), ALL)(*args), third)
    z, pull = vjp(fn, *args)
    assert_close(pull(z.cos()), first)
    tangents = [torch.cos(3 * t) for t in args]
    total = sum((g * t).sum() for g, t in zip(first, tangents, strict=True))
    assert_close(along(scalar(fn), args)[1], total)


def by_tape(fn: Function) -> Function:
    """Gradients written out by the tape, to any order."""

    def run(*args: Tensor) -> tuple[Tensor, ...]:
        live = [t if t.requires_grad else t.clone().requires_grad_() for t in args]
        return torch.autograd.grad(fn(*live), live, create_graph=True)

    return run


def steps(*seeds: float) -> Callable[[Function, Callable[[Function, Sequence[Tensor]], Any]], Function]:
    """One derivative after the other along fixed directions, taken by ``step(fn, directions)``."""

    def nest(fn: Function, step: Callable[[Function, Sequence[Tensor]], Any]) -> Function:
        for seed in seeds:
            fn = step(fn, [torch.sin(seed + torch.arange(t.numel())).double().view(t.shape) for t in ARGS])
        return fn

    return nest


ARGS = operands(False, True)


def forward_step(fn: Function, directions: Sequence[Tensor]) -> Function:
    return lambda *args: jvp(fn, args, tuple(directions))[1]


def tape_step(fn: Function, directions: Sequence[Tensor]) -> Function:
    return lambda *args: torch.stack([(g * d).sum() for g, d in zip(by_tape(fn)(*args), directions, strict=True)]).sum()


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_forward_mode_inside_forward_mode(backend: str) -> None:
    """Torch switches forward mode off inside a jvp: sums in it were constants for the outer levels."""
    fn = scalar(function(False, backend))
    for nest in (steps(1.0, 2.0), steps(1.0, 2.0, 3.0)):
        got, want = nest(fn, forward_step), nest(fn, tape_step)
        assert_close(got(*ARGS), want(*ARGS))
        assert_close(grad(got, ALL)(*ARGS), by_tape(want)(*ARGS))
        assert_close(by_tape(got)(*ARGS), by_tape(want)(*ARGS))
    inside = steps(2.0)(lambda *args: squared(grad(steps(1.0)(fn, forward_step), ALL)(*args)), forward_step)
    beside = steps(2.0)(lambda *args: squared(by_tape(steps(1.0)(fn, tape_step))(*args)), tape_step)
    assert_close(inside(*ARGS), beside(*ARGS))
    assert_close(jacfwd(jacfwd(fn, ALL), ALL)(*ARGS), jacrev(jacrev(fn, ALL), ALL)(*ARGS))


def test_a_graph_first_used_inside_a_transform_serves_outside() -> None:
    graph = eq.Graph(EDGES, SENDERS, RECEIVERS)
    x, y, w = operands(True, True)

    def fn(x: Tensor) -> Tensor:
        return eq.functional.tensor_product_conv(PLAN, x, y, w, graph).square().sum()

    inside = grad(grad(lambda s: fn(s * x)))(torch.tensor(1.0, dtype=torch.float64))
    assert_close(inside, 2 * fn(x))
    assert_close(jvp(fn, (x,), (x,)), (fn(x), 2 * fn(x)))


# -- other layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [n for kind in ("scale", "scale, in torch") for n in (f"fixed {kind}", f"given {kind}")] + ["linear", "gate"],
    indirect=True,
)
def test_layers_under_transforms(case: Any) -> None:
    layer, args = case.layer.double(), [t.double() for t in case.inputs(3)]
    places = tuple(range(len(args)))
    assert_close(jacfwd(layer, places)(*args), jacrev(layer, places)(*args))
    assert_close(hessian(scalar(layer), places)(*args), jacrev(jacrev(scalar(layer), places), places)(*args))
    assert_close(vmap(layer)(*args), layer(*args))
    assert_close(dual(layer, args), along(layer, args))
