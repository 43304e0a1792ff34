"""Backend cpu: what it reads, how it rounds, on how many threads it runs, and what it refuses."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import eqlayers as eq
from eqlayers.core.backends import cpu, verdicts
from eqlayers.core.backends.tables import edge_tables
from eqlayers.core.forms.description import Form, describe
from eqlayers.core.forms.request import Request
from eqlayers.errors import BackendError, ConfigError, IndexRangeError
from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.c.run import edges, launch
from tests.cases import reserved
from tests.each import each

IN1, IN2, OUT = "5x0e + 4x1o", "0e + 1o", "5x0e + 5x1o + 4x1e"
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 2, "uvu", True), (1, 1, 0, "uvw", True)]
FORWARD, BACKWARD = Task(0, ("z",)), Task(1, ("x", "y", "w"))
DOUBLE = Task(2, ("x", "y", "w", "z"), ("x", "y", "w"))
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True, params=[1, 2, 3], ids=["1 thread", "2 threads", "3 threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, needs_a_compiler: None) -> int:
    """Threads that kernels run on; on several there are several chunks, however little there is to do."""
    torch.set_num_threads(request.param)  # set back by the fixture untouched_globals
    if request.param > 1:
        monkeypatch.setattr(launch, "CHUNK_ELEMENTS", 1)
    return request.param


def layer(layout: str = "mul_ir", shared: bool = False, **options: Any) -> eq.TensorProduct:
    return eq.TensorProduct(
        IN1, IN2, OUT, PATHS, shared_weights=shared, internal_weights=False, layout=layout, **options
    )


def operands(form: Form, rows: int = 6, shared: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """All operands and tangents of a form, by the names of the kernels."""
    widths = dict(zip("xywg", form.program.widths, strict=True))
    generator = torch.Generator().manual_seed(3)
    out = {}
    for name in ("x", "y", "w", "g", "dx", "dy", "dw"):
        shape = (widths[name[-1]],) if shared and name[-1] == "w" else (rows, widths[name[-1]])
        out[name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return out


def run(form: Form, task: Task, tensors: dict[str, Tensor], graph: Tensor | None = None) -> dict[str, Tensor]:
    def flags(names: tuple[str, ...], of: str) -> str:
        return "".join(str(int(name in names)) for name in of)

    steps = {0: "", 1: f"/g1:{flags(task.results, 'xyw')}"}.get(task.order)
    if steps is None:
        steps = f"/g1:{flags(task.tangents, 'xyw')}/g{'1' * len(task.tangents)}:{flags(task.results, 'xywz')}"
    rows, sizes = tensors["y"].shape[0], [tensors["y"].shape[0], 0, 0]
    if graph is not None:
        senders = tensors["x"].shape[0]
        sizes = [rows, senders, graph.shape[0] - edges.graph_offsets(rows, senders, 0).length]
    key = form.calls[graph is not None, tensors["w"].ndim == 1].key + steps
    moving = [name for name in "xyw" if name in task.tangents]
    given = [tensors[name] for name in (*"xyw", *("g" * min(task.order, 1)), *(f"d{name}" for name in moving))]
    found = torch.ops.eqlayers.form(given, graph, *sizes, key)
    return dict(zip([name for name in "xywz" if name in task.results], found, strict=True))


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


EDGES = torch.tensor([[5, 0, 3, 3, 5, 0], [2, 2, 0, 6, 2, 1]])


# -- what it reads ----------------------------------------------------------------------------------------------------


def strided(t: Tensor) -> Tensor:
    return torch.stack([t, t + 1], -1)[..., 0]


def columns_of_a_wider_one(t: Tensor) -> Tensor:
    return torch.cat([t + 1, t, t - 1], -1)[:, t.shape[1] : 2 * t.shape[1]]


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.t().contiguous().t(),
    "strided": strided,
    "columns": columns_of_a_wider_one,
    "every second row": lambda t: torch.stack([t, t + 1], 1)[:, 0],
    "from behind": lambda t: torch.cat([torch.ones(3), t.reshape(-1)])[3:].view(t.shape),
}


@each("view", VIEWS)
def test_operands_may_lie_in_memory_as_they_like(view: str) -> None:
    form = layer().plan.form
    tensors = operands(form)
    graph = edge_tables(EDGES, 6, 7)
    in_graph = {**tensors, "g": torch.cat([tensors["g"], tensors["g"][:1]])}
    for task in (FORWARD, BACKWARD):
        views = {name: VIEWS[view](t) for name, t in tensors.items()}
        assert all(not v.is_contiguous() or view == "from behind" for v in views.values())
        assert equal(run(form, task, views), run(form, task, tensors))
        views = {name: VIEWS[view](t) for name, t in in_graph.items()}
        assert equal(run(form, task, views, graph), run(form, task, in_graph, graph))


class Largest(TorchDispatchMode):
    """The bytes of the largest storage that an operator returned."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in [out] if isinstance(out, Tensor) else out:
            self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_an_expanded_operand_is_read_as_it_is_and_never_written_out(layout: str) -> None:
    form = eq.TensorProduct("40x1o", "1o", "1x0e", [(0, 0, 0, "uvw", True)], layout=layout).plan.form
    one, rows = operands(form, 1), 300
    assert form.program.widths == (120, 3, 40, 1)
    expanded = {name: t.expand(rows, -1) for name, t in one.items()}
    with Largest() as largest:
        got = run(form, FORWARD, expanded)["z"]
    assert torch.equal(got, run(form, FORWARD, one)["z"].expand(rows, -1))
    assert 0 < largest.bytes <= 4 * rows * 1, "a full copy of x takes 120 times as much"


@pytest.mark.parametrize("shared", [False, True])
def test_leading_axes_broadcast_and_may_be_missing_or_empty(shared: bool) -> None:
    ours, theirs = layer(shared=shared), layer(shared=shared, backend="torch")
    weights = ours.weight_numel
    for x, y, w in (
        ((), (), (1,)),
        ((4,), (), (1,)),
        ((2, 1), (3,), (2, 3)),
        ((0,), (0,), (0,)),
        ((3, 0), (1,), (1, 1)),
    ):
        own = () if shared else w
        tensors = [torch.randn(*lead, n, dtype=torch.float64) for lead, n in ((x, 17), (y, 4), (own, weights))]
        leaves = [[t.clone().requires_grad_() for t in tensors] for _ in range(2)]
        values = [tp(*given) for tp, given in zip((ours, theirs), leaves, strict=True)]
        assert values[0].shape == values[1].shape == (*torch.broadcast_shapes(x, y, own), 32)
        grads = [torch.autograd.grad(z.square().sum(), given) for z, given in zip(values, leaves, strict=True)]
        for a, b in zip((values[0], *grads[0]), (values[1], *grads[1]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)  # sums of at most 100 numbers of order 1


@pytest.mark.parametrize("task", [FORWARD, BACKWARD, DOUBLE], ids=["values", "gradients", "second gradients"])
def test_no_rows_at_all(task: Task) -> None:
    """Also of shared weights, whose gradient is then zero, and of a graph without edges."""
    form = layer().plan.form
    for shared in (True,) if task is DOUBLE else (False, True):
        got = run(form, task, operands(form, 0, shared))
        assert all(value.shape[0] == 0 for name, value in got.items() if not (shared and name == "w"))
        tensors = operands(form, 0, shared) | {"x": torch.ones(2, 17), "dx": torch.ones(2, 17), "g": torch.ones(3, 32)}
        graph = edge_tables(EDGES[:, :0], 2, 3)
        in_graph = run(form, task, tensors, graph)
        assert {name: value.shape[0] for name, value in in_graph.items() if name in "xz"}.items() <= {
            "x": 2, "z": 3
        }.items()  # fmt: skip
        for value in (*got.values(), *in_graph.values()):
            assert not value.any()


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    """Also where the gradient of shared weights is summed over several chunks."""
    form = layer().plan.form
    graph = edge_tables(EDGES, 6, 7)
    for shared in (False, True):
        low, few = operands(form, 700, shared, dtype), operands(form, 6, shared, dtype)
        few["g"] = torch.cat([few["g"], few["g"][:1]])
        for task, tables, tensors in ((FORWARD, None, low), (BACKWARD, None, low), (BACKWARD, graph, few)):
            high = run(form, task, {name: t.float() for name, t in tensors.items()}, tables)
            got = run(form, task, tensors, tables)
            assert equal(got, {name: value.to(dtype) for name, value in high.items()})
            assert any((value != value.to(dtype)).any() for value in high.values())


def test_offsets_beyond_32_bits() -> None:
    """Rows of x 2^30 elements apart, in memory that is never touched in between; as many senders as that takes."""
    form = layer().plan.form
    near = {name: t for name, t in operands(form, 6).items() if name in "xyw"}
    graph = edge_tables(EDGES, 6, 7)
    buffer = torch.frombuffer(reserved(4 * (5 * 2**30 + 64)), dtype=torch.float32)
    far = near | {"x": buffer.as_strided((6, 17), (2**30, 1))}
    far["x"].copy_(near["x"])
    assert equal(run(form, FORWARD, far), run(form, FORWARD, near))
    assert equal(run(form, FORWARD, far, graph), run(form, FORWARD, near, graph))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_edges_are_sorted_whatever_their_type_and_strides(dtype: torch.dtype) -> None:
    want = edge_tables(EDGES, 6, 7)
    assert want.dtype == torch.int64
    for same in (
        EDGES.to(dtype),
        EDGES.to(dtype).t().contiguous().t(),
        EDGES.to(dtype).repeat_interleave(2, 1)[:, ::2],
    ):
        got = edge_tables(same, 6, 7)
        places = edges.graph_offsets(6, 6, 7)
        for walk, nodes in (("by_dst", 7), ("by_src", 6)):
            for start, length in zip(getattr(places, walk), (nodes + 1, 6, 6), strict=True):
                assert torch.equal(got[start : start + length], want[start : start + length])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((0, 3), 6, r"edge_index\[0\] \(src\) must lie in \[0, 6\), the number of senders, got 6 at edge 3"),
        ((0, 0), -1, r"edge_index\[0\] .* got -1 at edge 0"),
        ((1, 5), 7, r"edge_index\[1\] \(dst\) must lie in \[0, 7\), the number of receivers, got 7 at edge 5\. Check"),
    ],
)
def test_indices_outside_their_nodes(place: tuple[int, int], value: int, message: str) -> None:
    wrong = EDGES.clone()
    wrong[place] = value
    with pytest.raises(IndexRangeError, match=message):
        edge_tables(wrong, 6, 7)


# -- how it runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads that each call of a kernel was given."""
    seen: list[int] = []
    real = launch.Compiled.__call__

    def counted(
        self: Any, rows: int, addresses: Any, chunks: int = 1, workers: int = 1, past_caches: bool = False
    ) -> None:
        seen.append(workers)
        real(self, rows, addresses, chunks, workers, past_caches)

    monkeypatch.setattr(launch.Compiled, "__call__", counted)
    return seen


@pytest.mark.parametrize("shared", [False, True])
def test_it_follows_the_number_of_threads_and_that_changes_no_bit(workers: list[int], shared: bool) -> None:
    form = layer().plan.form
    tensors = operands(form, 700, shared)
    index = torch.randint(0, 700, (2, 700), generator=torch.Generator().manual_seed(0))
    graph = edge_tables(index, 700, 700)
    assert 700 * sum(form.program.widths) > 2 * launch.CHUNK_ELEMENTS
    for task, tables in ((FORWARD, None), (BACKWARD, None), (FORWARD, graph), (BACKWARD, graph)):
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            workers.clear()
            found.append(run(form, task, tensors, tables))
            assert set(workers) == {threads}
        assert equal(found[0], found[1])
        assert equal(found[0], found[2])


def test_results_past_the_caches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    form = layer().plan.form
    tensors = operands(form)
    want = run(form, BACKWARD, tensors)
    monkeypatch.setattr(cpu, "PAST_CACHES_BYTES", 16)
    assert equal(run(form, BACKWARD, tensors), want)


def test_large_results_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large enough for large pages: the advice is given within the result, and is not taken back."""
    given: list[tuple[int, int]] = []
    real = cpu.memory.advise_huge_pages
    monkeypatch.setattr(cpu.memory, "advise_huge_pages", lambda *a: (given.append(a), real(*a)))
    form = layer().plan.form
    one = operands(form, 1)
    rows = cpu.memory.WORTH_BYTES // 4 // 32 + 1
    z = run(form, FORWARD, {name: t.expand(rows, -1) for name, t in one.items()})["z"]
    assert given == [(z.data_ptr(), z.nbytes)]
    assert torch.equal(z, run(form, FORWARD, one)["z"].expand(rows, -1))


def test_forms_are_known_by_their_content() -> None:
    form, same = layer().plan.form, layer().plan.form
    assert form.key == same.key != layer("ir_mul").plan.form.key
    assert pickle.loads(pickle.dumps(form)).key == form.key
    assert describe(form.key).form.program == form.program
    with pytest.raises(ConfigError, match=r"got the key 'unknown', which no layer of this process has\. Build"):
        torch.ops.eqlayers.form([torch.ones(1, 1)], None, 1, 0, 0, "unknown")


# -- what it refuses --------------------------------------------------------------------------------------------------


def test_what_is_refused_and_why() -> None:
    assert cpu.refuse(Request(None, "", torch.bfloat16, torch.device("cpu"))) is None
    assert cpu.refuse(Request(None, "", torch.float32, torch.device("cuda"))) == "needs CPU tensors, got cuda"
    wanted = "needs float64, float32, float16, bfloat16, got torch.complex64"
    assert cpu.refuse(Request(None, "", torch.complex64, torch.device("cpu"))) == wanted
    assert verdicts(Request(None, "", torch.float32, torch.device("cpu")))["cpu"] == "runs"
    with pytest.raises(BackendError, match="'cpu' must"):
        eq.functional.sparse_product(
            "mul", torch.ones(1, 1), torch.ones(1, 1), eq.sparse.SparseProductInfo(), backend="cpu"
        )
