"""A call beside other work of a GPU: CUDA graphs, streams, devices, and the host that waits for nothing.

In the interpreter a call stands for the replay of a CUDA graph; streams and devices are tested on a GPU alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import eqlayers as eq
from eqlayers.core.traces.recorded import CudaGraphs

IN1, IN2 = "32x0e + 32x1o", "0e + 1o"
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 2, "uvu", True), (1, 1, 3, "uvu", True)]
OUT = "32x0e + 32x1o + 32x1o + 32x0e"
Results = list[Tensor]


class Work:
    """A convolution with its derivatives, on tensors that stay where they are.

    Args:
        device: Of all tensors.
        inside: Whether the edges are sorted in every call, else once, by a graph that is kept.
        seed: Of the numbers; the layer has no parameters.
    """

    def __init__(self, device: torch.device, inside: bool, seed: int = 0) -> None:
        self.nodes, self.edges = (500, 6000) if device.type == "cuda" else (3, 5)
        self.device, self.inside = device, inside
        self.layer = eq.TensorProductConv(
            IN1, IN2, OUT, PATHS, shared_weights=False, internal_weights=False, layout="ir_mul", backend="triton"
        ).to(device)
        widths = (self.layer.irreps_in1.dim, self.layer.irreps_in2.dim, self.layer.weight_numel)
        rows = (self.nodes, self.edges, self.edges)
        shapes = list(zip(rows, widths, strict=True))
        shapes += [(self.nodes, self.layer.irreps_out.dim), *shapes]  # the cotangents
        self.tensors = [torch.empty(shape, device=device) for shape in shapes]
        self.edge_index = torch.empty(2, self.edges, dtype=torch.int64, device=device)
        self.draw(seed, edges=True)
        self.graph = eq.Graph(self.edge_index, self.nodes)

    def draw(self, seed: int, edges: bool) -> None:
        """Other numbers in the same memory, and other edges."""
        generator = torch.Generator().manual_seed(seed)
        for tensor in self.tensors:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        if edges:
            self.edge_index.copy_(torch.randint(self.nodes, self.edge_index.shape, generator=generator))

    def __call__(self) -> Results:
        """z, the gradients, and theirs."""
        x, y, w, gz, *cotangents = (t.detach() for t in self.tensors)
        live = [t.requires_grad_() for t in (x, y, w)]
        gz.requires_grad_()
        z = self.layer(*live, self.edge_index if self.inside else self.graph)
        first = torch.autograd.grad(z, live, gz, create_graph=True)
        second = torch.autograd.grad(first, [*live, gz], cotangents)
        return [t.detach() for t in (z, *first, *second)]


def assert_same_bits(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    assert [torch.equal(a.cpu(), b.cpu()) for a, b in zip(got, want, strict=True)] == [True] * len(want)


def recorded(call: Callable[[], Results], device: torch.device) -> tuple[Results, Callable[[], object]]:
    """Results of a call, and what computes them anew in the same memory: a replay of the CUDA graph that it is in."""
    if device.type == "cpu":
        results = call()
        return results, lambda: [old.copy_(new) for old, new in zip(results, call(), strict=True)]
    return CudaGraphs(device)(call)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("inside", [False, True], ids=["sorted before", "sorted inside"])
def test_a_cuda_graph_is_replayed_with_other_numbers(inside: bool, device: torch.device) -> None:
    work = Work(device, inside)
    results, replay = recorded(work, device)
    before = [t.clone() for t in results]
    for seed in (1, 2):
        work.draw(seed, edges=inside)
        replay()
        assert_same_bits(results, work())
    assert not any(torch.equal(a, b) for a, b in zip(results, before, strict=True))


@contextmanager
def another_stream() -> Iterator[None]:
    """Work goes to a stream of its own, while the default stream is busy; waits for the former at the end."""
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)  # cycles, about two seconds
    with torch.cuda.stream(side):
        yield
        side.synchronize()
        assert not torch.cuda.default_stream().query(), "the default stream must still be busy"


@pytest.mark.gpu
@pytest.mark.parametrize("inside", [False, True], ids=["sorted before", "sorted inside"])
def test_everything_runs_on_the_current_stream(inside: bool) -> None:
    work = Work(torch.device("cuda"), inside)
    want = [t.cpu() for t in work()]
    with another_stream():
        got = [t.cpu() for t in work()]
    assert_same_bits(got, want)


@pytest.mark.gpu
def test_tensors_of_another_device_than_the_current() -> None:
    """Kernels run where the tensors are."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    want, got = (Work(torch.device("cuda", number), True)() for number in (0, 1))
    assert torch.cuda.current_device() == 0
    assert {t.device.index for t in got} == {1}
    assert_same_bits(got, want)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch says that it is a prototype
@pytest.mark.parametrize("inside", [False, True], ids=["sorted before", "sorted inside"])
def test_the_host_waits_for_nothing(inside: bool) -> None:
    torch.use_deterministic_algorithms(False)
    work = Work(torch.device("cuda"), inside)
    want = work()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same_bits(got, want)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_torch_compile(mode: str | None, device: torch.device) -> None:
    """One graph, forward and backward; with 'reduce-overhead' in CUDA graphs."""
    work = Work(device, inside=True)
    options = {"mode": mode} if device.type == "cuda" else {"backend": "aot_eager"}
    torch._dynamo.reset()
    compiled = torch.compile(work.layer, fullgraph=True, **options)

    def run(layer: Callable[..., Tensor]) -> Results:
        x, y, w, gz = (t.detach() for t in work.tensors[:4])
        live = [t.requires_grad_() for t in (x, y, w)]
        z = layer(*live, work.edge_index)
        return [t.detach().clone() for t in (z, *torch.autograd.grad(z, live, gz))]

    for seed in range(4 if device.type == "cuda" else 2):  # recording begins at the second call
        work.draw(seed, edges=True)
        assert_same_bits(run(compiled), run(work.layer))
