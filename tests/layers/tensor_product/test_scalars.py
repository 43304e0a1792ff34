"""Paths that are matrix products give what the same layer gives path by path: values, derivatives, any layout."""

from typing import Any

import pytest
import torch

import eqlayers as eq
from eqlayers.layers.tensor_product import lower
from eqlayers.testing import check_derivatives

IN1, IN2 = "4x0e + 3x0o + 2x1o", "5x0e + 2x0o + 1x1o"
OUT = "3x0e + 2x0o + 4x1o + 2x1e"
EPS = torch.finfo(torch.float64).eps
pytestmark = pytest.mark.kernels  # the paths that stay are in a kernel


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path with scalars in the second input is a matrix product, however small."""
    monkeypatch.setattr(lower, "COPIES", 1)


def layer(layout: str = "mul_ir", backend: str | None = None, **kwargs: Any) -> eq.TensorProduct:
    torch.manual_seed(3)
    return eq.FullyConnectedTensorProduct(IN1, IN2, OUT, layout=layout, backend=backend, **kwargs).double()


def inputs(rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 13, dtype=torch.float64), torch.randn(rows, 10, dtype=torch.float64)


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_equals_the_definition(always: None, layout: str, backend: str | None) -> None:
    fast, slow = layer(layout, backend), layer(layout, "reference")
    assert len(fast.plan.dense.program.paths) == 6
    assert 0 < fast.plan.rest.paths < fast.plan.paths
    x, y = inputs()
    want = slow(x, y)
    assert (fast(x, y) - want).abs().max() <= 100 * EPS * want.abs().max()
    assert torch.equal(fast(x[0], y[:, None]), fast(x[0].expand(5, 13)[:, None], y[:, None]))
    assert fast(x[:0], y[:0]).shape == (0, slow.irreps_out.dim)


def test_all_paths_may_be_matrix_products(always: None) -> None:
    product = eq.FullyConnectedTensorProduct("4x0e + 2x1o", "5x0e", "3x0e + 2x1o + 2x2e").double()
    assert product.plan.rest.paths == 0
    assert product.selected_backend() == "torch"
    assert "torch.matmul" in product.explain()
    x, y = torch.randn(7, 10).double(), torch.randn(7, 5).double()
    got = product(x, y)
    product.backend = "reference"
    assert (got - product(x, y)).abs().max() <= 100 * EPS * got.abs().max()
    assert not got[:, 9:].any(), "no path leads there"


def test_a_mixed_layer_says_so(always: None) -> None:
    assert "6 of 10 paths: torch.matmul" in layer().explain()
    assert layer().selected_backend() == "cpu+torch"


def test_three_derivatives(always: None) -> None:
    product = layer()
    x, y = inputs(2)
    weight = product.weight.detach().clone()
    assert torch.autograd.gradcheck(
        lambda *a: product(*a), [t.requires_grad_() for t in (x, y, weight)], fast_mode=True
    )
    report = check_derivatives(lambda *a: product(*a), [x, y, weight], 3, max_elements=1)
    assert {entry.operand for entry in report.entries if entry.order == 3} >= {"input 0", "input 1", "input 2"}


def test_weights_per_sample_stay_in_one_kernel(always: None) -> None:
    product = layer(shared_weights=False, internal_weights=False)
    x, y = inputs()
    weight = torch.randn(5, product.weight_numel, dtype=torch.float64)
    want = torch.cat([layer("mul_ir", "reference")(x[i], y[i], weight[i])[None] for i in range(5)])
    assert (product(x, y, weight) - want).abs().max() <= 100 * EPS * want.abs().max()
    assert product.selected_backend() == "cpu"


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
def test_compiles_and_exports(always: None) -> None:
    torch._dynamo.reset()
    product, (x, y) = layer(), inputs()
    want = product(x, y)
    assert torch.allclose(torch.compile(product, backend="aot_eager", fullgraph=True)(x, y), want, rtol=1e-12)
    assert torch.allclose(torch.export.export(product, (x, y)).module()(x, y), want, rtol=1e-12)
    assert torch.func.vmap(product)(x, y).allclose(want, rtol=1e-12)


def test_small_products_stay_in_one_kernel() -> None:
    assert layer().plan.dense is None
    assert eq.FullyConnectedTensorProduct("128x0e", "10x0e", "128x0e").plan.dense is not None
    assert eq.FullyConnectedTensorProduct("2x1o", "24x0e", "2x1o").plan.dense is not None
    assert eq.FullyConnectedTensorProduct("64x1o", "10x0e", "64x1o").plan.dense is None


def test_paths_without_weights_take_no_place_among_them(always: None) -> None:
    """Before and between paths that are matrix products; others with weights do."""
    paths = [(2, 0, 2, "uvu", False), (0, 0, 0, "uvw", True), (0, 0, 3, "uvu", True), (1, 0, 1, "uvu", False)]
    paths.append((2, 0, 2, "uvw", True))
    args = ("4x0e + 3x0o + 2x1o", "5x0e", "3x0e + 3x0o + 2x1o + 4x0e", paths)
    fast, slow = (eq.TensorProduct(*args, backend=name).double() for name in (None, "reference"))
    slow.load_state_dict(fast.state_dict())
    assert [path.weight for path in fast.plan.dense.program.paths] == [0, 4 * 5 * 3 + 4 * 5]
    x, y = torch.randn(5, 13).double(), torch.randn(5, 5).double()
    want = slow(x, y)
    assert (fast(x, y) - want).abs().max() <= 100 * EPS * want.abs().max()
