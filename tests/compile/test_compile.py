"""torch.compile: one graph for every layer, forward and backward, whatever the number of rows; forces in a loss."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from eqlayers.core.graph import Graph, check_range
from eqlayers.nn import EdgeGeometry, TensorProductConv

#: The first layer of each family is compiled in tests/catalogue as well, with its gradients.
SMALL = ["every mode", "product, in torch", "convolution", "fixed scale", "gate"]
LARGE = ["interaction", "energy", "mean of molecules", "dipole"]
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of tracing


def run(fn: Callable[..., Tensor], layer: torch.nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """Value, and gradients with respect to inputs and parameters."""
    live = [t.clone().requires_grad_() if torch.is_tensor(t) and t.is_floating_point() else t for t in inputs]
    z = fn(*live)
    wanted = [t for t in (*live, *layer.parameters()) if torch.is_tensor(t) and t.requires_grad]
    gradients = torch.autograd.grad(z.square().sum(), wanted, allow_unused=True)
    return [z.detach(), *(g for g in gradients if g is not None)]


def assert_close(got: Sequence[Tensor], want: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Equal to a few hundred roundings of the layer's dtype, in another order where a compiler fuses."""
    for a, b in zip(got, want, strict=True):
        assert (a - b).abs().max() <= 300 * torch.finfo(dtype).eps * max(1.0, float(b.abs().max()))


def one_graph_for_all_sizes(case: Any, backend: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(case.layer, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    # the first differs from every width: torch takes equal sizes for one; inductor unrolls sums of up to 32
    for rows in (7, 10, 13) if backend != "inductor" else (37, 41, 45):
        inputs = case.inputs(rows)
        assert_close(run(compiled, case.layer, inputs), run(case.layer, case.layer, inputs), torch.float32)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1] > 0, "another number of rows was compiled again"


@pytest.mark.parametrize("case", SMALL, indirect=True)
def test_one_graph_forward_and_backward(case: Any) -> None:
    one_graph_for_all_sizes(case, "aot_eager")


@pytest.mark.slow
def test_one_graph_of_every_layer(case: Any) -> None:
    one_graph_for_all_sizes(case, "aot_eager")


@pytest.mark.slow
def test_one_graph_of_every_layer_in_inductor(case: Any) -> None:
    one_graph_for_all_sizes(case, "inductor")


@pytest.mark.parametrize("case", ["convolution"], indirect=True)
def test_inductor(case: Any) -> None:
    one_graph_for_all_sizes(case, "inductor")


def test_an_index_out_of_range_is_found_in_a_compiled_graph() -> None:
    def function(index: Tensor, size: int) -> Tensor:
        check_range("batch", index, size, "molecules")
        return index + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert compiled(torch.tensor([0, 1]), 2).tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="batch must"):
        compiled(torch.tensor([0, 2]), 2)


def test_three_atoms_with_their_three_coordinates() -> None:
    """The tracer knows the sizes of positions ``[3, 3]``, as their columns are checked, and traces that of ``[3]``."""
    geometry = EdgeGeometry("0e + 1o")

    def lengths(z: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
        return geometry(pos, Graph(edge_index, z.shape[0], copy=False)).lengths

    torch._dynamo.reset()
    compiled = torch.compile(lengths, backend="aot_eager", fullgraph=True, dynamic=True)
    for nodes, expected in ((3, [1.0, 1.0]), (5, [1.0, 1.0])):
        pos = torch.arange(nodes)[:, None] * torch.tensor([0.0, 0.6, 0.8])
        assert compiled(torch.ones(nodes), pos, torch.tensor([[0, 1], [1, 2]])).tolist() == pytest.approx(expected)


# -- forces -----------------------------------------------------------------------------------------------------------


def losses(layer: torch.nn.Module, inputs: Sequence[Any]) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """A loss of the gradient by the first input that is a tensor of numbers: for compilers, and as users write it."""
    place = next(i for i, t in enumerate(inputs) if torch.is_tensor(t) and t.is_floating_point())

    def energy(x: Tensor) -> Tensor:
        return layer(*inputs[:place], x, *inputs[place + 1 :]).square().sum()

    def through_func() -> Tensor:
        value, pull = torch.func.vjp(energy, inputs[place])
        return value + pull(torch.ones_like(value))[0].square().sum()

    def through_autograd() -> Tensor:
        x = inputs[place].clone().requires_grad_()
        value = energy(x)
        return value + torch.autograd.grad(value, x, create_graph=True)[0].square().sum()

    return through_func, through_autograd


def gradients(loss: Callable[[], Tensor], layer: torch.nn.Module) -> list[Tensor]:
    value = loss()
    slopes = torch.autograd.grad(value, list(layer.parameters()), allow_unused=True)
    return [value.detach(), *(g for g in slopes if g is not None)]


def force_training(case: Any, backend: str) -> None:
    layer = case.layer.double()
    inputs = [t.double() if torch.is_tensor(t) and t.is_floating_point() else t for t in case.inputs(6)]
    through_func, through_autograd = losses(layer, inputs)
    torch._dynamo.reset()
    compiled = torch.compile(through_func, backend=backend, fullgraph=True)
    want = gradients(through_autograd, layer)
    assert len(want) > 1
    assert_close(gradients(compiled, layer), want, torch.float64)


@pytest.mark.parametrize("case", ["every mode"], indirect=True)
def test_a_loss_of_forces(case: Any) -> None:
    force_training(case, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("case", ["product", "fully connected", "learned scale", *LARGE], indirect=True)
def test_a_loss_of_forces_of_every_kind(case: Any, backend: str) -> None:
    force_training(case, backend)


@pytest.mark.parametrize("case", ["product"], indirect=True)
def test_torch_refuses_a_second_derivative_from_outside(case: Any) -> None:
    """Not ours to change; a newer torch that allows it fails here, and the guide can say so."""
    torch._dynamo.reset()
    compiled = torch.compile(case.layer, backend="aot_eager", fullgraph=True)
    x, y = case.inputs(5)
    x.requires_grad_()
    (first,) = torch.autograd.grad(compiled(x, y).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        first.square().sum().backward()


@pytest.mark.parametrize("case", ["convolution", "product"], indirect=True)
def test_finite_differences_of_compiled_layers(case: Any) -> None:
    torch._dynamo.reset()
    layer = case.layer.double()
    inputs = [t.double().requires_grad_() if t.is_floating_point() else t for t in case.inputs(4)]
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.autograd.gradcheck(compiled, inputs, fast_mode=True)


def test_a_graph_keeps_nothing_that_a_compiler_made() -> None:
    """Results of a compiled graph may lie in a pool of memory that its next call writes to."""
    torch.manual_seed(0)
    paths = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]
    conv = TensorProductConv("4x0e", "0e + 1o", "4x0e + 4x1o", paths)
    x, y = torch.randn(5, 4), torch.randn(7, 4)
    graph, other = (Graph(torch.randint(5, (2, 7)), 5) for _ in range(2))
    compiled = torch.compile(conv, backend="aot_eager")
    for one in (graph, other):
        before = dict(vars(one))
        result = compiled(x, y, None, one)
        assert vars(one) == before
        torch.testing.assert_close(result, conv(x, y, None, one))
        kept = one._tables
        assert kept is not None
        torch.testing.assert_close(compiled(x, y, None, one), result)
        assert one._tables is kept
