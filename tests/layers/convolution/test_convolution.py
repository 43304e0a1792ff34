"""The graph convolution against e3nn's gather, product and scatter; graphs of every kind; bad edges."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers import Graph, TensorProduct, TensorProductConv, functional, to_ir_mul, to_mul_ir
from eqlayers.errors import DeviceError, DTypeError, IndexRangeError, ShapeError
from eqlayers.models import MoleculeNetwork

IN, SH, OUT = "9x0e + 5x1o + 3x1e", "0e + 1o", "9x0e + 5x1o + 3x1e + 5x0e"
PATHS = [
    (0, 0, 0, "uvu", True),
    (0, 1, 1, "uvw", True),
    (1, 1, 3, "uvu", True),
    (1, 0, 1, "uvu", False),
    (2, 0, 2, "uvu", True),
    (2, 1, 1, "uvw", True),
    (1, 1, 0, "uvw", True),
]
SENDERS, RECEIVERS, EDGES = 6, 8, 17
DEPTH = EDGES * 200  # terms that one result sums: edges times channels times coefficients, generously


def conv(layout: str = "mul_ir", **kwargs: Any) -> TensorProductConv:
    kwargs = {"shared_weights": False, "internal_weights": False, **kwargs}
    return TensorProductConv(IN, SH, OUT, PATHS, layout=layout, **kwargs)


@pytest.fixture
def edges() -> Tensor:
    """Unsorted, with repeats and self loops; receivers 0 and 7 and sender 5 have none."""
    src, dst = torch.randint(0, SENDERS - 1, (EDGES,)), torch.randint(1, RECEIVERS - 1, (EDGES,))
    dst[3], src[3] = 2, 2
    return torch.stack([src, dst])


@pytest.fixture
def operands() -> dict[str, Tensor]:
    numel = conv().weight_numel
    shapes = {"x": (SENDERS, 33), "y": (EDGES, 4), "w": (EDGES, numel)}
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def by_e3nn(twins: Any, edge_index: Tensor, receivers: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    product = twins.e3nn(o3.TensorProduct, IN, SH, OUT, PATHS, shared_weights=False, internal_weights=False)

    def run(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        messages = product(x[edge_index[0].long()], y, w)
        return messages.new_zeros(receivers, messages.shape[1]).index_add(0, edge_index[1].long(), messages)

    return run


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_equals_e3nn_to_second_order(
    twins: Any, layout: str, backend: str | None, dtype: torch.dtype, edges: Tensor, operands: dict[str, Tensor]
) -> None:
    layer, edges = conv(layout, backend=backend), edges.to(dtype)

    def ours(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        if layout == "mul_ir":
            return layer(x, y, w, edges, RECEIVERS)
        return to_mul_ir(layer(to_ir_mul(x, layer.irreps_in1), y, w, edges, RECEIVERS), layer.irreps_out)

    wanted = list(operands)
    theirs = twins.two_orders(by_e3nn(twins, edges, RECEIVERS), operands, wanted)
    twins.assert_close(twins.two_orders(ours, operands, wanted), theirs, DEPTH)


@pytest.mark.kernels
def test_backend_cpu_runs_the_layer_as_one_call() -> None:
    assert conv().selected_backend() == "cpu"
    assert conv().explain().count(": cpu runs") == 1


def test_shared_and_internal_weights(twins: Any, edges: Tensor, operands: dict[str, Tensor]) -> None:
    layer = TensorProductConv(IN, SH, OUT, PATHS).double()
    weight = layer.weight.detach()
    expected = by_e3nn(twins, edges, SENDERS + 1)(operands["x"], operands["y"], weight.expand(EDGES, -1))
    x, y = operands["x"], operands["y"]
    for given in (None, weight):
        z = layer(x, y, given, edges, SENDERS + 1)
        twins.assert_close({"z": z.detach()}, {"z": expected}, DEPTH)
    layer(x, y, None, edges, SENDERS + 1).square().sum().backward()
    w = weight.clone().requires_grad_()
    (expected_grad,) = torch.autograd.grad(
        by_e3nn(twins, edges, SENDERS + 1)(x, y, w.expand(EDGES, -1)).square().sum(), w
    )
    twins.assert_close({"w": layer.weight.grad}, {"w": expected_grad}, DEPTH * EDGES)


def test_results_repeat_bit_by_bit_for_any_number_of_threads(edges: Tensor, operands: dict[str, Tensor]) -> None:
    layer = conv()
    torch.use_deterministic_algorithms(False)
    leaves = [t.repeat(40, 1).requires_grad_() for t in operands.values()]
    many = torch.cat([edges + torch.tensor([[SENDERS * i], [RECEIVERS * i]]) for i in range(40)], 1)
    results = []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        z = layer(*leaves, many, RECEIVERS * 40)
        results.append([z, *torch.autograd.grad(z.square().sum(), leaves)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_receivers_without_edges_and_graphs_without_edges(edges: Tensor, operands: dict[str, Tensor]) -> None:
    layer = conv()
    x, y, w = (t.requires_grad_() for t in operands.values())
    z = layer(x, y, w, edges, RECEIVERS)
    assert (z[[0, RECEIVERS - 1]] == 0).all()
    gx, gy, gw = torch.autograd.grad(z.sum(), (x, y, w))
    assert (gx[SENDERS - 1] == 0).all()
    assert gy.shape == y.shape
    assert gw.shape == w.shape
    none = torch.empty(2, 0, dtype=torch.int64)
    z = layer(x, y[:0], w[:0], none, RECEIVERS)
    assert torch.equal(z, torch.zeros(RECEIVERS, layer.irreps_out.dim, dtype=torch.float64))
    assert torch.equal(torch.autograd.grad(z.sum(), x)[0], torch.zeros_like(x))
    assert layer(x[:0], y[:0], w[:0], none).shape == (0, layer.irreps_out.dim)


def test_one_hub_receives_and_sends_everything(twins: Any, operands: dict[str, Tensor]) -> None:
    x, y, w = operands.values()
    for edges in (torch.stack([torch.arange(EDGES) % SENDERS, torch.full((EDGES,), 4)]), torch.zeros(2, EDGES).long()):
        twins.assert_close({"z": conv()(x, y, w, edges)}, {"z": by_e3nn(twins, edges, SENDERS)(x, y, w)}, DEPTH)


@pytest.mark.kernels
def test_a_graph_is_sorted_once_and_serves_all_layers(
    edges: Tensor, operands: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqlayers.core import operator as tensor_product

    calls: list[int] = []
    sort = tensor_product.sort_edges
    monkeypatch.setattr(tensor_product, "sort_edges", lambda *args: calls.append(1) or sort(*args))
    graph = Graph(edges, SENDERS, RECEIVERS)
    x, y, w = operands.values()
    first = conv()(x, y, w, graph)
    assert torch.equal(conv()(x, y, w, graph, RECEIVERS), first)
    assert len(calls) == 1
    assert repr(graph) == "Graph(17 edges, 6 senders, 8 receivers)"
    assert graph.num_edges == EDGES
    assert graph.to("cpu") is graph
    assert torch.equal(functional.tensor_product_conv(conv().plan, x, y, w, graph), first)


def test_state_dicts_fit_the_product_and_e3nn() -> None:
    layer, product = TensorProductConv(IN, SH, OUT, PATHS), TensorProduct(IN, SH, OUT, PATHS)
    product.load_state_dict(layer.state_dict())
    assert torch.equal(product.weight, layer.weight)
    o3.TensorProduct(IN, SH, OUT, PATHS).load_state_dict(layer.state_dict())


def test_weights_of_its_own_need_not_be_named(edges: Tensor, operands: dict[str, Tensor]) -> None:
    layer = TensorProductConv(IN, SH, OUT, PATHS).double()
    x, y, _ = operands.values()
    assert not isinstance(layer, TensorProduct)  # it has no matrix for each sample, and takes other arguments
    assert torch.equal(layer(x, y, edge_index=edges, num_nodes=RECEIVERS), layer(x, y, None, edges, RECEIVERS))
    with pytest.raises(DTypeError, match=r"edge_index must be .* or a Graph, got None"):
        layer(x, y)


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([[0, SENDERS], [0, 1]], r"edge_index\[0\] \(src\) must lie in \[0, 6\), the number of senders, got"),
        ([[0, 1], [0, RECEIVERS]], r"edge_index\[1\] \(dst\) must lie in \[0, 8\), the number of receivers, got"),
        ([[0, -1], [0, 1]], r"edge_index\[0\] \(src\) must lie in"),
    ],
)
def test_edges_out_of_range(index: list[list[int]], message: str, backend: str | None) -> None:
    layer = conv(backend=backend)
    with pytest.raises(IndexRangeError, match=message):
        layer(torch.zeros(SENDERS, 33), torch.zeros(2, 4), torch.zeros(2, layer.weight_numel), torch.tensor(index), 8)


def test_bad_input(edges: Tensor, operands: dict[str, Tensor]) -> None:
    layer = conv()
    x, y, w = operands.values()
    with pytest.raises(
        ShapeError, match=r"edge_index must be \[2, E\] = \[src, dst\], got \[17, 2\]. Pass edge_index.t"
    ):
        layer(x, y, w, edges.t())
    with pytest.raises(DTypeError, match=r"int64 or int32 tensor \[2, E\] or a Graph, got torch.float32. Convert"):
        layer(x, y, w, edges.float())
    with pytest.raises(DTypeError, match=r"or a Graph, got \[\["):
        layer(x, y, w, edges.tolist())
    with pytest.raises(ShapeError, match=r"edge_attr must be \[17, ...\], a row for each of the edges, got \[16, 4\]"):
        layer(x, y[1:], w, edges, RECEIVERS)
    with pytest.raises(ShapeError, match=r"weight must be \[17, ...\], a row for each of the edges"):
        layer(x, y, w[1:], edges, RECEIVERS)
    with pytest.raises(ShapeError, match=r"graph must have 5 senders, got Graph\(17 edges, 6 senders"):
        layer(x[1:], y, w, Graph(edges, SENDERS, RECEIVERS))
    with pytest.raises(ShapeError, match=r"senders and 9 receivers, got Graph"):
        layer(x, y, w, Graph(edges, SENDERS, RECEIVERS), 9)
    with pytest.raises(DTypeError, match="edge_attr must"):
        layer(x, y.float(), w, edges, RECEIVERS)
    with pytest.raises(DeviceError, match="edge_index must"):
        layer(x, y, w, edges.to("meta"), RECEIVERS)
    with pytest.raises(ShapeError, match=r"weight must be \[\d+\] or \[..., \d+\], got \[3\]"):
        functional.tensor_product(layer.plan, x, y[:SENDERS], torch.zeros(3).double())


@pytest.mark.kernels
def test_the_model_predicts_the_same_on_every_backend() -> None:
    kind, pos = torch.tensor([6, 1, 1, 8]), torch.randn(4, 3, dtype=torch.float64)
    edges = torch.tensor([[i, j] for i in range(4) for j in range(4) if i != j]).t()
    model = MoleculeNetwork(hidden="6x0e + 5x1o + 2x1e", lmax=2, layers=2).double()
    expected = model(kind, pos, edges)
    for backend in ("torch", "reference", "cpu"):
        other = MoleculeNetwork(hidden="6x0e + 5x1o + 2x1e", lmax=2, layers=2, backend=backend).double()
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(other(kind, pos, edges), expected, rtol=1e-12, atol=1e-13)
