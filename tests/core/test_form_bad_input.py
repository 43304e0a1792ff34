"""Operands of whole products and convolutions that do not fit: refused with a fix, before any kernel reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import eqlayers as eq
from eqlayers.errors import BackendError, DeviceError, DTypeError, IndexRangeError, ShapeError

PLAN = eq.TensorProduct("2x0e + 1x1o", "0e + 1o", "2x0e + 2x1o", [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]).plan
EDGES = torch.tensor([[2, 0, 2, 1], [0, 3, 3, 0]])
GOOD = {"x": (3, 5), "y": (4, 4), "w": (4, 4)}


def convolve(edges: Any = None, backend: str | None = None, **changed: Tensor) -> Tensor:
    """A convolution of 3 senders, 4 receivers and 4 edges, with some operands changed."""
    x, y, w = (changed.get(name, torch.ones(shape)) for name, shape in GOOD.items())
    graph = eq.Graph(EDGES, 3, 4) if edges is None else edges
    return eq.functional.tensor_product_conv(PLAN, x, y, w, graph, backend=backend)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": torch.ones(3, 6)}, ShapeError, r"x must .*5.* got \[3, 6\]"),
        ({"y": torch.ones(4, 3)}, ShapeError, r"edge_attr must .*4.* got \[4, 3\]"),
        ({"w": torch.ones(4, 5)}, ShapeError, r"weight must be \[4\] or \[\.\.\., 4\], got \[4, 5\]\. Take the number"),
        ({"w": torch.tensor(1.0)}, ShapeError, r"weight must be .* got \[\]"),
        ({"x": torch.ones(2, 5)}, ShapeError, r"the graph must have 2 senders, got Graph\(4 edges, 3 senders"),
        (
            {"y": torch.ones(3, 4)},
            ShapeError,
            r"edge_attr must be \[4, \.\.\.\], a row for each of the edges, got \[3, 4\]",
        ),
        (
            {"y": torch.ones(1, 4)},
            ShapeError,
            r"edge_attr must be \[4, \.\.\.\], a row for each of the edges, got \[1, 4\]",
        ),
        ({"w": torch.ones(5, 4)}, ShapeError, r"weight must be \[4, \.\.\.\], .* edges, got \[5, 4\]\. Check"),
        ({"y": torch.ones(2, 2, 4)}, ShapeError, r"edge_attr must be \[4, .* flatten batch axes into one graph"),
        ({"x": torch.ones(3, 5).double()}, DTypeError, r"edge_attr must have the dtype of x, torch.float64, got"),
        (
            {"w": torch.ones(4, 4).half()},
            DTypeError,
            r"weight must have the dtype of x, torch.float32, got torch.float16",
        ),
        (
            {"x": torch.ones(3, 5).int()},
            DTypeError,
            r"x must be float64, float32, float16 or bfloat16, got torch.int32",
        ),
        ({"y": torch.ones(4, 4, device="meta")}, DeviceError, r"edge_attr must be on the device of x, cpu, got meta"),
    ],
)
def test_operands(backend: str, changed: dict[str, Tensor], error: type[Exception], message: str) -> None:
    assert convolve(backend=backend).shape == (4, 8)
    with pytest.raises(error, match=message):
        convolve(backend=backend, **changed)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize(
    ("edges", "error", "message"),
    [
        (
            EDGES.float(),
            DTypeError,
            r"edge_index must be an int64 or int32 tensor \[2, E\] or a Graph, got torch.float32",
        ),
        ([[0], [1]], DTypeError, r"edge_index must be an int64 or int32 tensor .* got \[\[0\], \[1\]\]\. Convert it"),
        (EDGES.t(), ShapeError, r"edge_index must be \[2, E\] = \[src, dst\], got \[4, 2\]\. Pass edge_index\.t\(\)"),
        (EDGES[0], ShapeError, r"edge_index must be \[2, E\] = \[src, dst\], got \[4\]\. Stack \[src, dst\]"),
        (EDGES, IndexRangeError, r"edge_index\[1\] \(dst\) must lie in \[0, 3\), the number of receivers, got"),
        (EDGES.flip(0), IndexRangeError, r"edge_index\[0\] \(src\) must lie in \[0, 3\), the number of senders, got"),
        (EDGES - 1, IndexRangeError, r"edge_index\[[01]\] .* got"),
    ],
)
def test_edges(backend: str, edges: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        convolve(edges, backend=backend)


def test_a_graph_on_another_device() -> None:
    with pytest.raises(DeviceError, match=r"edge_index must be on the device of x, cpu, got meta\. Move it with `\.to"):
        convolve(eq.Graph(EDGES.to("meta"), 3, 4))


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_products(backend: str) -> None:
    x, y, w = torch.ones(4, 5), torch.ones(4, 4), torch.ones(4, 4)
    product = eq.functional.tensor_product
    assert product(PLAN, x, y, w, backend=backend).shape == (4, 8)
    with pytest.raises(ShapeError, match=r"leading axes of x, y, weight must broadcast, got \[\[4\], \[3\], \[4\]\]"):
        product(PLAN, x, y[:3], w, backend=backend)
    with pytest.raises(ShapeError, match=r"leading axes of x, y, weight must broadcast"):
        product(PLAN, x, y, w[:2], backend=backend)
    with pytest.raises(ShapeError, match=r"x must .*5"):
        product(PLAN, x[:, :4], y, w, backend=backend)
    with pytest.raises(DTypeError, match=r"y must have the dtype of x, torch.float32, got torch.float64"):
        product(PLAN, x, y.double(), w, backend=backend)
    with pytest.raises(DeviceError, match=r"weight must be on the device of x, cpu, got meta"):
        product(PLAN, x, y, w.to("meta"), backend=backend)


def test_the_cpu_backend_refuses_tensors_elsewhere() -> None:
    away = [torch.ones(4, n, device="meta") for n in (5, 4, 4)]
    with pytest.raises(BackendError, match=r"'cpu' must accept this call, but it needs CPU tensors, got meta\. Pass"):
        eq.functional.tensor_product(PLAN, *away, backend="cpu")
