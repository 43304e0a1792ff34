"""Whole products and convolutions as operators of torch: its own checks, compilers, many gradients at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eqlayers as eq
from eqlayers_kernels.c.build import compiler
from tests.core.backends.test_forms import (
    COUNT,
    EDGES,
    IN1,
    IN2,
    OUT,
    PATHS,
    PLAN,
    RECEIVERS,
    SENDERS,
    assert_close,
    function,
    operands,
)


@pytest.fixture(autouse=True)
def needs_a_compiler() -> None:
    if compiler.why_not() is not None:
        pytest.skip(f"backend cpu {compiler.why_not()}")


# -- operators under torch's own checks -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
@pytest.mark.parametrize(("graph", "shared"), [(False, False), (True, True)], ids=["rows", "graph, shared weights"])
def test_opcheck(graph: bool, shared: bool) -> None:
    x, y, w = operands(graph, shared)
    g = torch.randn(RECEIVERS if graph else COUNT, 16, dtype=torch.float64, requires_grad=True)
    dx, dw = (torch.randn_like(t).requires_grad_() for t in (x, w))
    tables = torch.ops.eqlayers.edge_tables(EDGES, SENDERS, RECEIVERS) if graph else None
    op, key = torch.ops.eqlayers.form.default, PLAN.form.calls[graph, shared].key
    sizes = [COUNT, SENDERS, RECEIVERS] if graph else [COUNT, 0, 0]
    torch.library.opcheck(op, ([x, y, w], tables, *sizes, key))
    torch.library.opcheck(op, ([x, y, w, g], tables, *sizes, f"{key}/g1:111"))
    torch.library.opcheck(op, ([x.detach(), y, w, g], tables, *sizes, f"{key}/g1:011"))
    torch.library.opcheck(op, ([x, y, w, g, dx, dw], tables, *sizes, f"{key}/g1:101/g11:1111", "", False))
    more = [torch.randn_like(t).requires_grad_() for t in (x, g)]
    third = f"{key}/g1:101/g11:1111/g1001:111111"
    torch.library.opcheck(
        op, ([x, y, w, g, dx, dw, *more], tables, *sizes, third), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_opcheck_of_the_sorting(dtype: torch.dtype) -> None:
    torch.library.opcheck(torch.ops.eqlayers.edge_tables.default, (EDGES.to(dtype), SENDERS, RECEIVERS))


# -- compilers --------------------------------------------------------------------------------------------------------


def layers() -> list[tuple[torch.nn.Module, list[Any]]]:
    torch.manual_seed(2)
    product = eq.TensorProduct(IN1, IN2, OUT, PATHS, layout="ir_mul").double()
    conv = eq.TensorProductConv(IN1, IN2, OUT, PATHS, layout="ir_mul", shared_weights=False).double()
    x, y, w = operands(True, False)
    return [(product, operands(False, True)[:2]), (conv, [x, y, w, EDGES, RECEIVERS])]


def gradients(fn: Callable[..., Tensor], layer: torch.nn.Module, inputs: list[Any]) -> list[Tensor]:
    live = [t.detach().clone().requires_grad_() if torch.is_tensor(t) and t.is_floating_point() else t for t in inputs]
    z = fn(*live)
    wanted = [t for t in (*live, *layer.parameters()) if torch.is_tensor(t) and t.requires_grad]
    return [z.detach(), *torch.autograd.grad(z.square().sum(), wanted)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_layers_are_one_graph_and_give_the_same_bits(dynamic: bool) -> None:
    for layer, inputs in layers():
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for got, want in zip(gradients(compiled, layer, inputs), gradients(layer, layer, inputs), strict=True):
            assert torch.equal(got, want)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("conv", [False, True], ids=["product", "convolution"])
def test_other_sizes_run_through_the_same_graph(conv: bool) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def count(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    layer = layers()[conv][0]
    compiled = torch.compile(layer, backend=count, fullgraph=True, dynamic=True)
    for rows in (3, 7, 20):
        x, y, w = (torch.randn(rows, n, dtype=torch.float64) for n in (10, 4, PLAN.weight_numel))
        inputs = (x, y, w, torch.randint(rows, (2, rows)), rows + 2) if conv else (x, y)
        assert torch.equal(compiled(*inputs), layer(*inputs))
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore")
def test_inductor() -> None:
    layer, inputs = layers()[0]
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    assert_close(gradients(compiled, layer, inputs), gradients(layer, layer, inputs))


@pytest.mark.filterwarnings("ignore")
def test_exported_layers_give_the_same_bits() -> None:
    for layer, inputs in layers():
        exported = torch.export.export(layer, tuple(inputs))
        calls = [str(node.target) for node in exported.graph.nodes if "eqlayers" in str(node.target)]
        assert calls == ["eqlayers.form.default"] if len(inputs) == 2 else calls[-1] == "eqlayers.form.default"
        assert torch.equal(exported.module()(*inputs), layer(*inputs))


# -- many gradients at once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize(("graph", "shared"), [(False, False), (False, True), (True, True)], ids=str)
def test_gradients_along_many_vectors_at_once(graph: bool, shared: bool, backend: str) -> None:
    """The older vmap of torch: is_grads_batched, vectorize and batched gradcheck."""
    inputs, run = operands(graph, shared), function(graph, backend)
    draws = torch.randn(3, RECEIVERS if graph else COUNT, 16, dtype=torch.float64)
    got = torch.autograd.grad(run(*inputs), inputs, draws, is_grads_batched=True)
    want = [torch.autograd.grad(run(*inputs), inputs, g) for g in draws]
    assert_close(got, [torch.stack(parts) for parts in zip(*want, strict=True)])
    total = lambda *t: run(*t).sin().sum()  # noqa: E731
    for strategy in ("reverse-mode", "forward-mode"):
        rows = torch.autograd.functional.hessian(total, tuple(inputs), vectorize=True, outer_jacobian_strategy=strategy)
        plain = torch.autograd.functional.hessian(total, tuple(inputs))
        assert_close([h for row in rows for h in row], [h for row in plain for h in row])
