"""Whole products and convolutions as operators of torch: its own checks, and many gradients at once."""

import pytest
import torch

from tests.core.backends.test_forms import COUNT, EDGES, PLAN, RECEIVERS, SENDERS, assert_close, function, operands

pytestmark = pytest.mark.usefixtures("needs_a_compiler")


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
