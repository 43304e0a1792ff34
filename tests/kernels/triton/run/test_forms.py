"""Printed Triton kernels against the interpreter of programs: requests, layouts, dtypes, graphs, blocks and groups."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.program import LAYOUTS, Program
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import groups, tuning
from eqlayers_kernels.triton.run import edges as sorting
from eqlayers_kernels.triton.run.edges import pack, unpack
from eqlayers_kernels.triton.run.forms import FormRunner
from tests.kernels.triton.seas import DEVICE, results_in_seas, sea

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")

FORWARD = Task(0, ("z",))
BACKWARD = Task(1, ("x", "y", "w"))
DOUBLE = Task(2, ("x", "y", "w", "z"), ("x", "y", "w"))
#: Modes with one axis, on both sides of a warp's width; one without channels.
SPECS = (
    ("uvu", (40, 1, 0), (3, 3, 1)), ("uvu", (5, 1, 0), (1, 3, 3)), ("uvv", (1, 7, 0), (3, 1, 3)),
    ("uuu", (5, 5, 0), (3, 3, 1)), ("uuw", (6, 6, 1), (1, 3, 3)), ("uvuv", (1, 1, 0), (3, 3, 3)),
)  # fmt: skip
FEW = SPECS[1:3]
ON = tuning.PROCESSORS["cuda"]


def run(
    program: Program,
    task: Task,
    arrays: Any,
    edges: Any,
    shared: bool,
    dtype: torch.dtype,
    atomic: bool,
    on: tuning.Processor,
    stored: bool | None = None,
) -> dict[str, np.ndarray]:
    """Results by operand; operands lie in seas of NaN, results, NaN until written, in seas of sentinels."""
    tensors = {name: sea(torch.from_numpy(a).to(DEVICE, dtype), torch.nan) for name, a in arrays.items()}
    tables = None
    if edges:
        index = torch.from_numpy(np.stack([edges.src, edges.dst])).to(DEVICE)
        tables = unpack(pack(index, edges.senders, edges.receivers), edges.src.size, edges.senders, edges.receivers)
    with results_in_seas():
        found = FormRunner(program, task, dtype, edges is not None, shared, on, atomic, stored=stored)(tensors, tables)
    out = {name: value.double().cpu().numpy() for name, value in found.items()}
    return {name: value[None] if name == "w" and shared else value for name, value in out.items()}


def check(
    programs: Any,
    program: Program,
    task: Task,
    dtype: torch.dtype = torch.float64,
    edges: Any = None,
    shared: bool = False,
    rows: int = 5,
    atomic: bool = False,
    on: tuning.Processor = ON,
) -> dict[str, np.ndarray]:
    # operands that every dtype holds exactly, so that only sums and results are rounded
    drawn = programs.draw(program, "float32", rows, shared, edges)
    arrays = {name: torch.from_numpy(a).to(dtype).double().numpy() for name, a in drawn.items()}
    ways = (False, True) if edges and "x" in task.results and not atomic else (None,)  # summed at senders in two ways
    for stored in ways:
        got = run(program, task, arrays, edges, shared, dtype, atomic, on, stored)
        _compare(programs, program, task, dtype, got, arrays, edges)
    return got


def _compare(
    programs: Any, program: Program, task: Task, dtype: torch.dtype, got: dict[str, np.ndarray], arrays: Any, edges: Any
) -> None:
    half = dtype in (torch.float16, torch.bfloat16)
    summed = "float64" if dtype == torch.float64 else "float32"
    # the interpreter truncates to bfloat16: one unit in the last place, not half of one
    programs.compare(program, task, summed, got, arrays, edges, eps=torch.finfo(dtype).eps if half else 0)


GRAPH = ([0, 3, 1, 0, 3, 3, 2], [2, 0, 0, 2, 2, 4, 2], 4, 6)  # src, dst, senders, receivers; some without edges


def graph(programs: Any) -> Any:
    src, dst, senders, receivers = GRAPH
    return programs.Edges(np.array(src), np.array(dst), senders, receivers)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("task", [FORWARD, BACKWARD, DOUBLE], ids=["values", "gradients", "second gradients"])
@pytest.mark.parametrize(
    ("layout", "by_graph", "shared"),
    [("mul_ir", False, False), ("ir_mul", False, True), ("mul_ir", True, True), ("ir_mul", True, False)],
)
def test_all_modes(programs: Any, layout: str, by_graph: bool, shared: bool, task: Task) -> None:
    program = programs.random_program(layout, True, SPECS)
    assert groups.why_not(program) is None
    check(programs, program, task, edges=graph(programs) if by_graph else None, shared=shared)


@pytest.mark.parametrize("task", [FORWARD, DOUBLE], ids=["values", "second gradients"])
def test_without_weights(programs: Any, task: Task) -> None:
    program = programs.random_program("mul_ir", False, SPECS[:4])
    without = tuple(path for path in program.paths if path.weight is None)
    assert len(without) >= 4
    check(programs, dataclasses.replace(program, paths=without), task)


def name_of(task: Task) -> str:
    return f"{task.order}-{''.join(task.results)}-{''.join(task.tangents)}"


REQUESTS = [
    Task(1, ("x",)), Task(1, ("y",)), Task(1, ("x", "w")),
    Task(2, ("z",), ("y",)), Task(2, ("y",), ("x", "w")), Task(2, ("x", "w"), ("w",)), Task(2, ("w",), ("x",)),
]  # fmt: skip


@pytest.mark.parametrize("task", REQUESTS, ids=name_of)
def test_only_what_is_wanted(programs: Any, task: Task) -> None:
    got = check(programs, programs.random_program("ir_mul", True, FEW), task, edges=graph(programs))
    assert set(got) == set(task.results)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("task", [BACKWARD, DOUBLE, *REQUESTS], ids=name_of)
def test_gradients_by_receivers(programs: Any, task: Task) -> None:
    """In any order, all is computed in one walk, and only the gradient of x is added in memory."""
    shared = "w" in task.results and task.order == 2
    for program in (programs.random_program("ir_mul", True, SPECS), programs.random_program("mul_ir", False, FEW)):
        cut = groups.plan(program, task, True, shared, double=True, on=ON, atomic=True)
        assert {kernel.text.traversal for kernel in cut.kernels} == {"by_dst"}
        assert cut.added == {"x"} & set(task.results)
        for kernel in cut.kernels:
            assert ("atomic_add" in kernel.text.source) == ("x" in task.results)
        check(programs, program, task, edges=graph(programs), shared=shared, atomic=True)


def test_order_is_fixed_unless_asked(programs: Any) -> None:
    """Without the gradient of x nothing leaves a receiver; with it, edges are walked by senders, or it is
    stored for each edge."""
    program = programs.random_program("ir_mul", True, FEW)
    for task, traversals in ((FORWARD, {"by_dst"}), (Task(1, ("y", "w")), {"by_dst"}), (DOUBLE, {"by_dst", "by_src"})):
        for stored in (False, True):
            cut = groups.plan(program, task, True, False, double=False, on=ON, stored=stored)
            wanted = {"by_dst"} if stored else traversals
            assert {kernel.text.traversal for kernel in cut.kernels} == wanted == set(cut.traversals.values())
            assert cut.stored is (stored and "x" in task.results)
            assert not cut.added
            assert not any("atomic" in kernel.text.source for kernel in cut.kernels)


def test_gradients_are_stored_where_that_moves_less(programs: Any) -> None:
    """Three rows of x for an edge instead of one of g; no more than the weights' gradient; not for shared weights."""
    program = programs.random_program("ir_mul", True, FEW)

    def stores(widths: tuple[int, ...], task: Task = BACKWARD, shared: bool = False) -> bool:
        wide = SimpleNamespace(widths=widths)
        return groups.stores(wide, task, shared)  # type: ignore[arg-type]

    assert stores((1152, 16, 2176, 9088))
    assert not stores((1152, 16, 2176, 3 * 1152))
    assert not stores((1152, 16, 1151, 9088))
    assert not stores((1152, 16, 2176, 9088), shared=True)
    assert not stores((1152, 16, 2176, 9088), Task(1, ("x",)))
    assert groups.plan(program, BACKWARD, True, False, double=False, on=ON, atomic=True, stored=True).added == {"x"}


@pytest.mark.parametrize("name", tuning.PROCESSORS)
def test_every_row_of_processors(programs: Any, name: str) -> None:
    """Programs have the lanes of a warp of the processor, and channels that do not fill them."""
    on = tuning.PROCESSORS[name]
    program = programs.random_program("ir_mul", True, SPECS[:2])
    cut = groups.plan(program, BACKWARD, True, False, double=True, on=on)
    assert min(kernel.block for kernel in cut.kernels) == on.lanes
    check(programs, program, BACKWARD, edges=graph(programs), on=on)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(programs: Any, dtype: torch.dtype) -> None:
    """Half precision is summed in float32 and rounded once."""
    program = programs.random_program("ir_mul", True, FEW)
    for task in (FORWARD, BACKWARD):
        check(programs, program, task, dtype, graph(programs))
    check(programs, program, BACKWARD, dtype, graph(programs), atomic=True)


@pytest.mark.parametrize("by_graph", [False, True], ids=["rows", "graph"])
def test_many_small_kernels_give_the_same(programs: Any, by_graph: bool) -> None:
    """Where little fits into one kernel, results are sums over kernels."""
    program = programs.random_program("mul_ir", True, SPECS[:4])
    few = ON._replace(accesses=1)
    whole = groups.plan(program, BACKWARD, by_graph, False, double=True, on=ON)
    cut = groups.plan(program, BACKWARD, by_graph, False, double=True, on=few)
    assert len(cut.kernels) == len(program.paths) > len(whole.kernels)
    assert max(cut.parts.values()) > 1
    check(programs, program, BACKWARD, edges=graph(programs) if by_graph else None, on=few)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_blocks_of_channels(programs: Any, layout: str) -> None:
    """The gradient of what has no channels is a sum over blocks; the last is ragged."""
    few = ON._replace(registers=1, wide=1)
    program = programs.random_program(layout, True, (("uvu", (70, 1, 0), (1, 3, 3)), ("uvv", (1, 70, 0), (3, 1, 3))))
    assert {kernel.blocks for kernel in groups.plan(program, BACKWARD, False, False, double=True, on=few).kernels} == {
        3
    }
    check(programs, program, BACKWARD, on=few)
    check(programs, program, BACKWARD, edges=graph(programs), shared=True, on=few)
    check(programs, program, BACKWARD, edges=graph(programs), atomic=True, on=few)


@pytest.mark.parametrize("shared", [False, True])
def test_edges_of_one_node_are_cut(programs: Any, monkeypatch: Any, shared: bool) -> None:
    """A hub has several pieces, others one or none, and some pieces are none."""
    monkeypatch.setattr(sorting, "LEAST", 2)
    hub = programs.Edges(np.array([0, 1, 2, 0, 1, 2, 3, 0, 0]), np.array([1, 1, 1, 1, 1, 0, 4, 1, 1]), 4, 6)
    tables = unpack(pack(torch.from_numpy(np.stack([hub.src, hub.dst])), 4, 6), 9, 4, 6)["by_dst"]
    assert tables.nodes.shape[0] == 10
    assert (tables.stop - tables.first).tolist() == [1, 1, 2, 2, 2, 0, 0, 1, 0, 0]
    assert tables.targets.tolist() == [0, 6, 7, 8, 9, 2, 3, 4, 5, -1]
    assert tables.workspace_ptr.tolist() == [0, 0, 4, 4, 4, 4, 4]
    program = programs.random_program("ir_mul", True, FEW)
    for task in (FORWARD, BACKWARD):
        check(programs, program, task, edges=hub, shared=shared)
    check(programs, program, BACKWARD, edges=hub, shared=shared, atomic=True)


@pytest.mark.parametrize("count", [8, 11, 12, 13, 158, 4000])
def test_pieces_are_even(count: int) -> None:
    """Edges are walked once each; a node just above the length of a piece is not cut into a long and a short one."""
    index = torch.stack([torch.arange(count) % 3, torch.full((count,), 2)])
    table = unpack(pack(index, 3, 4), count, 3, 4)["by_dst"]
    lengths = (table.stop - table.first)[table.nodes == 2]
    kernels = lengths[lengths > 0]
    assert int(kernels.sum()) == count
    assert int(kernels.max()) - int(kernels.min()) <= 1
    assert int(kernels.max()) < 1.5 * max(sorting.LEAST, count / sorting.MOST_PARTS)
    assert kernels.numel() == max(1, round(count / max(sorting.LEAST, -(-count // sorting.MOST_PARTS)) + 1e-9))
    assert int(table.workspace_ptr[3] - table.workspace_ptr[2]) == (kernels.numel() if kernels.numel() > 1 else 0)
    assert int(table.targets.max()) < table.num_nodes + table.workspace_rows


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_at_all(programs: Any, shared: bool) -> None:
    program = programs.random_program("ir_mul", True, FEW)
    none = np.zeros(0, dtype=np.int64)
    for edges in (None, programs.Edges(none, none, 3, 2), programs.Edges(none, none, 0, 0)):
        got = check(programs, program, BACKWARD, edges=edges, shared=shared, rows=0)
        assert all(not value.any() for value in got.values())


def test_rows_are_cut_into_few_partial_sums(programs: Any, monkeypatch: Any) -> None:
    """The gradient of shared weights over many rows: a program sums several, the last ones fewer."""
    monkeypatch.setattr(tuning, "SUMMED_CHUNKS", 3)
    check(programs, programs.random_program("ir_mul", True, FEW), BACKWARD, shared=True, rows=10)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("most", [1, 3])
def test_weights_of_all_edges_are_summed_launch_by_launch(programs: Any, monkeypatch: Any, most: int) -> None:
    """The gradient of shared weights takes as many rows as one launch has programs, however many nodes there are."""
    monkeypatch.setattr(tuning, "SUMMED_SEGMENTS", most)
    program = programs.random_program("ir_mul", True, FEW)
    for atomic in (False, True):
        check(programs, program, BACKWARD, edges=graph(programs), shared=True, atomic=atomic)
    check(programs, program, DOUBLE, edges=graph(programs), shared=True)


def test_results_keep_nothing_else_alive(programs: Any) -> None:
    """The room for pieces of nodes is not part of what is returned."""
    program = programs.random_program("ir_mul", True, SPECS[:2])
    index = torch.stack([torch.arange(20) % 4, torch.full((20,), 2)]).to(DEVICE)
    tables = unpack(pack(index, 4, 3), 20, 4, 3)
    assert tables["by_dst"].workspace_rows > 1
    rows = {"x": 4, "y": 20, "w": 20, "g": 3}
    widths = dict(zip("xywg", program.widths, strict=True))
    tensors = {name: torch.ones(rows[name], widths[name], device=DEVICE) for name in rows}
    for task in (FORWARD, BACKWARD):
        for value in FormRunner(program, task, torch.float32, True, False, ON)(tensors, tables).values():
            assert value.untyped_storage().nbytes() == value.numel() * 4


def test_what_is_not_printed_says_so(programs: Any) -> None:
    reason = groups.why_not(programs.random_program("ir_mul", True, (*FEW, ("uvw", (2, 1, 3), (1, 1, 1)))))
    assert reason == "has 1 of 4 paths that mix channels; backend torch runs them"


def test_sizes_are_arguments(programs: Any) -> None:
    """One text for every number of rows: only channel counts, columns and coefficients are printed."""
    program = programs.random_program("ir_mul", True, FEW)
    kernel = groups.plan(program, FORWARD, True, False, double=False, on=ON).kernels[0]
    sizes = '"segments", "start", "sums", "rows", "count", "spare", "chunk", "z_part"'
    assert f"do_not_specialize=[{sizes}]" in kernel.text.source
    assert kernel.text.source == groups.plan(program, FORWARD, True, False, double=False, on=ON).kernels[0].text.source
