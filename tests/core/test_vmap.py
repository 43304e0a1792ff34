"""Samples under torch.vmap have the results of a call for each: rows, rows that all share, and graphs."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

import eqlayers as eq
from eqlayers.core.backends import forms
from eqlayers.core.operator import one_by_one
from tests.compile.test_func import (
    ALL,
    COUNT,
    EDGES,
    IN1,
    IN2,
    KINDS,
    LATER,
    OUT,
    PATHS,
    PLAN,
    RECEIVERS,
    SENDERS,
    Function,
    along,
    assert_close,
    first_gradient,
    function,
    operands,
    scalar,
)

pytestmark = pytest.mark.usefixtures("needs_a_compiler")
MAPPED = [
    pytest.param(dims, marks=[] if dims in [(0, 0, None), (None, 0, 0)] else LATER)
    for dims in itertools.product((0, None), repeat=3)
    if any(d == 0 for d in dims)
]


def mapped(fn: Function, graph: bool, shared: bool, dims: Sequence[int | None], size: int = 3) -> tuple[Any, Any]:
    """Under vmap, and sample by sample."""
    many, one = operands(graph, shared, 2, (size,)), operands(graph, shared)
    args = [m if d == 0 else o for m, o, d in zip(many, one, dims, strict=True)]
    singles = [fn(*(t[i] if d == 0 else t for t, d in zip(args, dims, strict=True))) for i in range(size)]
    return vmap(fn, tuple(dims))(*args), torch.utils._pytree.tree_map(lambda *t: torch.stack(t), *singles)


@KINDS
@pytest.mark.parametrize("backend", ["cpu", pytest.param("torch", marks=LATER)])
@pytest.mark.parametrize(
    "dims", MAPPED, ids=lambda dims: "".join(n for n, d in zip("xyw", dims, strict=True) if d == 0)
)
def test_vmap_and_gradients_per_sample(dims: Sequence[int | None], backend: str, graph: bool, shared: bool) -> None:
    fn = function(graph, backend)
    assert_close(*mapped(fn, graph, shared, dims))
    assert_close(*mapped(grad(scalar(fn), ALL), graph, shared, dims))
    assert_close(*mapped(grad(first_gradient(fn), ALL), graph, shared, dims))
    assert_close(*mapped(lambda *a: along(grad(scalar(fn), ALL), a), graph, shared, dims))


def test_vmap_over_samples_without_rows_and_over_any_axis() -> None:
    for backend in ("cpu", "torch"):
        layer = eq.TensorProduct(IN1, IN2, OUT, PATHS, shared_weights=True, backend=backend).double()
        x, y = torch.randn(5, 6).double(), torch.randn(4, 5).double()
        assert_close(vmap(layer, (0, 1), 1)(x, y), layer(x, y.t()).t())

        def loss(parameters: Any, x: Tensor, y: Tensor, layer: torch.nn.Module = layer) -> Tensor:
            return functional_call(layer, parameters, (x, y)).square().sum()

        parameters = {name: p.detach() for name, p in layer.named_parameters()}
        got = vmap(grad(loss), (None, 0, 1))(parameters, x, y)
        for i in range(5):
            assert_close({k: v[i] for k, v in got.items()}, grad(loss)(parameters, x[i], y[:, i]))


@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
@pytest.mark.parametrize("axes", [(2, 0, 1), (0, 2, 0), (1, 1, 1), (2, 2, -1), (None, 2, None)])
def test_vmap_over_any_axis_of_rows(axes: tuple[int | None, ...], shared: bool) -> None:
    """The others stay in their order: more rows than columns, fewer, and as many."""
    for count in (4, 6, 9):
        generator = torch.Generator().manual_seed(2)
        shapes = [(count, 6), (count, 4), (*([] if shared else [count]), PLAN.weight_numel)]
        dims = [d if d is None else d % (len(shape) + 1) for d, shape in zip(axes, shapes, strict=True)]
        dims = [d if d is None else min(d, len(shape)) for d, shape in zip(dims, shapes, strict=True)]
        front = [
            torch.randn(*([] if d is None else [3]), *shape, generator=generator, dtype=torch.float64)
            for d, shape in zip(dims, shapes, strict=True)
        ]
        moved = [t if d is None else t.movedim(0, d).contiguous() for t, d in zip(front, dims, strict=True)]
        for fn in (function(False, "cpu"), grad(scalar(function(False, "cpu")), ALL)):
            got = vmap(fn, tuple(dims))(*moved)
            for i in range(3):
                one = fn(*(t if d is None else t[i] for t, d in zip(front, dims, strict=True)))
                parts = [t[i] for t in (got if isinstance(got, tuple) else (got,))]
                assert_close(parts, one if isinstance(one, tuple) else (one,))


@pytest.mark.parametrize("axes", [(2, 1, 2), (1, 2, 0), (1, None, 1)])
def test_vmap_over_any_axis_in_a_graph(axes: tuple[int | None, ...]) -> None:
    """One call per sample, each with its own slice; fewer samples than rows."""
    fn, front = function(True, "cpu"), operands(True, False, 3, (2,))
    front = tuple(t[0] if d is None else t for t, d in zip(front, axes, strict=True))
    moved = [t if d is None else t.movedim(0, d).contiguous() for t, d in zip(front, axes, strict=True)]
    got = vmap(fn, axes)(*moved)
    for i in range(2):
        assert_close(got[i], fn(*(t if d is None else t[i] for t, d in zip(front, axes, strict=True))))


def test_nested_and_empty_vmaps() -> None:
    for backend in ("cpu", "torch"):
        fn, (x, y, w) = function(False, backend), operands(False, True, 3, (2, 3))
        got = vmap(vmap(grad(scalar(fn), ALL)))(x, y, w)
        one = grad(scalar(fn), ALL)(x[1, 2], y[1, 2], w[1, 2])
        assert_close([g[1, 2] for g in got], one)
    x, y, w = operands(True, True, 3, (0,))
    for graph, a, z in ((True, x, (0, RECEIVERS, 9)), (False, x.new_empty(0, COUNT, 6), (0, COUNT, 9))):
        assert vmap(function(graph, "cpu"))(a, y, w).shape == z


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_vmap_over_graphs(backend: str) -> None:
    x, y, w = operands(True, False, 4, (3,))
    edges = torch.stack([EDGES, EDGES.flip(1), EDGES[:, [0, 0, 1, 1]]])

    def fn(x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
        graph = eq.Graph(edge_index, SENDERS, RECEIVERS)
        return eq.functional.tensor_product_conv(PLAN, x, y, w, graph, backend=backend)

    want = torch.stack([fn(x[i], y[i], w[i], edges[i]) for i in range(3)])
    assert_close(vmap(fn)(x, y, w, edges), want)


def test_vmap_is_one_call_where_rows_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = forms.check_operands

    def counted(form: Any, operands: Any, *rest: Any) -> None:
        calls.append(operands[1].shape[0])
        real(form, operands, *rest)

    monkeypatch.setattr(forms, "check_operands", counted)
    x, y, w = operands(False, True, 2, (3,))
    vmap(function(False, "cpu"), (0, 0, None))(x, y, w[0])
    vmap(grad(scalar(function(False, "cpu")), ALL), (0, 0, None))(x, y, w[0])
    assert calls == [3 * COUNT] * 3


def test_no_samples_at_all_have_the_shapes_of_one() -> None:
    """Arguments in lists are mapped by their own axes; the call with zeros says the shapes."""

    def both(pair: list[Tensor], scale: float) -> list[Tensor]:
        return [scale * pair[0], pair[1].sum(0)]

    first, second = torch.randn(2, 4, 3), torch.randn(4, 5)
    for size in (3, 0):
        parts, dims = one_by_one(both, size, [[2, None], None], [[first[..., :size], second], 2.0])
        assert dims == [0, 0]
        assert [part.shape for part in parts] == [(size, 2, 4), (size, 5)]
        assert torch.equal(parts[0], 2.0 * first[..., :size].movedim(2, 0))
    single, dim = one_by_one(torch.sum, 2, [0], [torch.ones(2, 3)])
    assert (single.tolist(), dim) == ([3.0, 3.0], 0)
