"""Operands of whole products and convolutions that do not fit: refused with a fix, before any kernel reads them."""

from typing import Any

import pytest
import torch
from torch import Tensor, ones

import eqlayers as eq
from eqlayers.errors import BackendError, DeviceError, DTypeError, IndexRangeError, ShapeError

PLAN = eq.TensorProduct("2x0e + 1x1o", "0e + 1o", "2x0e + 2x1o", [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]).plan
EDGES = torch.tensor([[2, 0, 2, 1], [0, 3, 3, 0]])
GOOD = {"x": (3, 5), "y": (4, 4), "w": (4, 4)}


def convolve(backend: str | None = None, edges: Any = None, **changed: Tensor) -> Tensor:
    """A convolution of 3 senders, 4 receivers and 4 edges, with some operands changed."""
    x, y, w = (changed.get(name, ones(shape)) for name, shape in GOOD.items())
    graph = eq.Graph(EDGES, 3, 4) if edges is None else edges
    return eq.functional.tensor_product_conv(PLAN, x, y, w, graph, backend=backend)


def multiply(backend: str | None = None, x: Any = (4, 5), y: Any = (4, 4), w: Any = (4, 4)) -> Tensor:
    """A product of 4 rows, with some operands changed."""
    operands = (ones(value) if isinstance(value, tuple) else value for value in (x, y, w))
    return eq.functional.tensor_product(PLAN, *operands, backend=backend)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize(
    ("function", "changed", "error", "message"),
    [
        (convolve, {"x": ones(3, 6)}, ShapeError, r"x .*5.* got \[3, 6\]"),
        (convolve, {"y": ones(4, 3)}, ShapeError, r"edge_attr .*4.* got \[4, 3\]"),
        (convolve, {"w": ones(4, 5)}, ShapeError, r"weight .*\[4, 5\]\. Take the number"),
        (convolve, {"w": torch.tensor(1.0)}, ShapeError, r"weight .*got \[\]"),
        (convolve, {"x": ones(2, 5)}, ShapeError, r"2 senders, got Graph\(4 edges, 3 senders"),
        (convolve, {"y": ones(3, 4)}, ShapeError, r"edge_attr .*a row for each of the edges, got \[3, 4\]"),
        (convolve, {"y": ones(1, 4)}, ShapeError, r"edge_attr .*a row for each of the edges, got \[1, 4\]"),
        (convolve, {"w": ones(5, 4)}, ShapeError, r"weight .* edges, got \[5, 4\]\. Check"),
        (convolve, {"y": ones(2, 2, 4)}, ShapeError, "edge_attr .* flatten batch axes into one graph"),
        (convolve, {"x": ones(3, 5).double()}, DTypeError, "edge_attr .*dtype of x, torch.float64"),
        (convolve, {"w": ones(4, 4).half()}, DTypeError, "weight .*dtype of x, .*float16"),
        (convolve, {"x": ones(3, 5).int()}, DTypeError, "x must be float64, .*int32"),
        (convolve, {"y": ones(4, 4, device="meta")}, DeviceError, "edge_attr .*device of x, cpu, got meta"),
        (convolve, {"edges": EDGES.float()}, DTypeError, r"edge_index .*int64 or int32 .*\[2, E\] or a Graph"),
        (convolve, {"edges": [[0], [1]]}, DTypeError, r"edge_index .*\[\[0\], \[1\]\]\. Convert it"),
        (convolve, {"edges": EDGES.t()}, ShapeError, r"edge_index .*\[4, 2\]\. Pass edge_index\.t\(\)"),
        (convolve, {"edges": EDGES[0]}, ShapeError, r"edge_index .*\[4\]\. Stack \[src, dst\]"),
        (convolve, {"edges": EDGES}, IndexRangeError, r"edge_index\[1\] \(dst\) .*\[0, 3\), the number of receivers"),
        (convolve, {"edges": EDGES.flip(0)}, IndexRangeError, r"edge_index\[0\] \(src\) .*\[0, 3\).* senders"),
        (convolve, {"edges": EDGES - 1}, IndexRangeError, r"edge_index\[[01]\]"),
        (multiply, {"y": (3, 4)}, ShapeError, r"x, y, weight must broadcast, got \[\[4\], \[3\], \[4\]\]"),
        (multiply, {"w": (2, 4)}, ShapeError, "x, y, weight must broadcast"),
        (multiply, {"x": (4, 4)}, ShapeError, "x .*5"),
        (multiply, {"y": ones(4, 4).double()}, DTypeError, "y .*dtype of x"),
        (multiply, {"w": ones(4, 4, device="meta")}, DeviceError, "weight .*device of x, cpu, got meta"),
    ],
)
def test_operands(backend: str, function: Any, changed: dict[str, Any], error: type[Exception], message: str) -> None:
    assert function(backend).shape == (4, 8)
    with pytest.raises(error, match=message):
        function(backend, **changed)


def test_operands_on_other_devices() -> None:
    with pytest.raises(DeviceError, match=r"edge_index .*device of x, cpu, got meta\. Move it with `\.to"):
        convolve(edges=eq.Graph(EDGES.to("meta"), 3, 4))
    meta = [ones(4, n, device="meta") for n in (5, 4, 4)]
    with pytest.raises(BackendError, match="'cpu' must"):
        multiply("cpu", *meta)
