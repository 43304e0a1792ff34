"""Operators called without a layer, every argument wrong in every way: an error that says so, from the fakes as well.

Before operators looked, a table of another dtype ended the process. So the calls run here one after the other, and a
call that came through would be held against the tables that sorting makes.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

import eqlayers as eq
from eqlayers.errors import BackendError, EqlayersError, IndexRangeError, ShapeError
from eqlayers_kernels.c.run import edges
from eqlayers_kernels.triton import availability

pytestmark = pytest.mark.usefixtures("needs_a_compiler")

PATHS = [(0, 0, 0, "uvu", True), (1, 1, 2, "uvu", False), (0, 1, 1, "uvu", True), (1, 0, 3, "uvu", True)]
LAYER = eq.TensorProduct("4x0e + 2x1o", "0e + 1o", "4x0e + 4x1o + 2x1e + 2x1o", PATHS)
ROWS = {graph: LAYER.plan.form.calls[graph, False].key for graph in (False, True)}
WEIGHTS, OUT = LAYER.weight_numel, LAYER.irreps_out.dim
EDGES = torch.tensor([[2, 0, 2, 1, 0], [0, 3, 3, 0, 1]])
SENDERS, RECEIVERS, COUNT = 3, 4, 5
OPS = torch.ops.eqlayers


SIZES = ("rows", "num_src", "num_dst")
#: The derivatives of a form, as its key names them.
STEPS = {"z": "", "gradients": "/g1:111", "second gradients": "/g1:111/g111:1111"}


def good(name: str, graph: bool = True) -> dict[str, Any]:
    """Arguments of a call that is right, by name; whatever is no argument of the operator is an operand."""
    nodes = (SENDERS, RECEIVERS) if graph else (COUNT, COUNT)
    x, y, w = torch.ones(nodes[0], 10), torch.ones(COUNT, 4), torch.ones(COUNT, WEIGHTS)
    how = {
        "graph": OPS.edge_tables(EDGES, SENDERS, RECEIVERS) if graph else None,
        **dict(zip(SIZES, (COUNT, SENDERS, RECEIVERS) if graph else (COUNT, 0, 0), strict=True)),
        "key": ROWS[graph] + STEPS[name],
        "backend": "",
    }
    operands, g = {"x": x, "y": y, "w": w}, {"g": torch.ones(nodes[1], OUT)}
    return {
        "z": {**operands, **how},
        "gradients": {**operands, **g, **how},
        "second gradients": {**operands, **g, "dx": x, "dy": y, "dw": w, **how},
    }[name]


def run(call: dict[str, Any]) -> list[Tensor]:
    """The operator on arguments by name."""
    how = {name: call[name] for name in ("graph", *SIZES, "key", "backend") if name in call}
    found: list[Tensor] = OPS.form([t for name, t in call.items() if name not in how], **how)
    return found


def interpreter_or_skip() -> None:
    pytest.importorskip("triton")
    if not availability.interpreted() or availability.why_not() is not None:
        pytest.skip(availability.why_not() or "Triton's interpreter is off")


Change = Callable[[Any], Any]
#: What an operand may come as, and the error.
OPERANDS: dict[str, tuple[Change, str]] = {
    "a row more": (lambda t: torch.cat([t, t[:1]]), r"(must be|graph must)"),
    "a row less": (lambda t: t[:-1], r"(must be|graph must)"),
    "no rows": (lambda t: t[:0], r"(must be|graph must)"),
    "a column more": (lambda t: torch.cat([t, t[:, :1]], 1), r"must be \[\d, \d+\] for this form, got .* a layer\."),
    "a column less": (lambda t: t[:, :-1], r"must be \[\d, \d+\] for this form, got \[\d, \d+\]\. Call it through"),
    "no columns": (lambda t: t[:, :0], r"must be \[\d, \d+\] for this form, got \[\d, 0\]"),
    "an axis more": (lambda t: t[None], r"must be \[\d, \d+\] for this form, got \[1, \d, \d+\]"),
    "a number": (lambda t: t.new_ones(()), r"must be \[\d, \d+\] for this form, got \[\]"),
    "turned": (lambda t: t.t(), r"(must be|graph must)"),
    "doubles": (lambda t: t.double(), r"must have the dtype of x, torch.float\d+, got torch.float\d+\. Convert it"),
    "halves": (lambda t: t.half(), r"must have the dtype of x, torch.float\d+, got torch.float\d+\. Convert it"),
    "integers": (lambda t: t.long(), r"must (be float64, float32|have the dtype of x).*got torch.int64\. Convert"),
    "complex": (lambda t: t.cfloat(), r"must (be float64, float32|have the dtype of x).*got torch.complex64\. Conv"),
    "truth values": (lambda t: t.bool(), r"must (be float64, float32|have the dtype of x).*got torch.bool\. Convert"),
    "elsewhere": (lambda t: t.to("meta"), r"must be on the device of x, (cpu|meta), got (cpu|meta)\."),
}
LENGTH = edges.graph_offsets(COUNT, SENDERS, RECEIVERS).length
_SHAPE = r"graph must be the tables that edge_tables.* here of 5 (edges|rows).* 3 senders.*, got shape .*Make them"
_DTYPE = r"graph must be the tables that edge_tables.*, int64, got torch\.\w+\. Pass them as they are\."
GRAPHS: dict[str, tuple[Change, str]] = {
    "bool": (lambda t: t.bool(), _DTYPE),
    "elsewhere": (lambda t: t.to("meta"), r"must be on the device of x, (cpu|meta), got (cpu|meta)\."),
    "None": (lambda t: None, "must be given a graph|got None"),
    "a number": (lambda t: t[0], _SHAPE),
    "empty": (lambda t: t[:0], _SHAPE),
    "too short for any receiver": (lambda t: t[: LENGTH - RECEIVERS - 1], _SHAPE),
    "the edges themselves": (lambda t: EDGES, _SHAPE),
}
OTHERS = r"graph must hold the tables that edge_tables.* of these operands, got other numbers\. Make them anew"


def changed(t: Tensor, place: int, value: int) -> Tensor:
    t = t.clone()
    t[place] = value
    return t


#: Tables of a right length and wrong content: only a kernel sees it.
CONTENTS: dict[str, Change] = {
    "one number less": lambda t: t[:-1],
    "one number more": lambda t: torch.cat([t, t[-1:]]),
    "from the second on": lambda t: torch.cat([t[1:], t[:1]]),
    "zeros": torch.zeros_like,
    "large": lambda t: torch.full_like(t, 2**62),
    "backwards": lambda t: t.flip(0),
    "of another graph as long": lambda t: OPS.edge_tables(EDGES[:, :4] % 3, 4, 7),
    "senders and receivers exchanged": lambda t: OPS.edge_tables(EDGES.flip(0), RECEIVERS, SENDERS),
}
COUNTS: dict[str, tuple[Any, str]] = {
    "one more": (lambda count: count + 1, r"must be"),
    "below 0": (lambda count: -1, r"rows, num_src and num_dst must be 0 or more, got .*\. Count the rows and nodes"),
}
_STEP = r"a form must have the derivative that its key names, got .*, which this one has not\. Call"
KEYS: dict[str, tuple[str, str]] = {
    "unknown": ("0123456789abcdef", r"a form must be built before it is run, got the key '0123456789abcdef'"),
    "empty": ("", r"a form must be built before it is run, got the key ''"),
    "damaged": ("eqlayers-2:00:!!", r"the text of a program must hold a program, got 'eqlayers-2:00:!!'"),
    "old": ("eqlayers-0:00:00", r"the text of a program must begin with 'eqlayers-2:'"),
    "a formula, damaged": ("eqlayers-formula-2:00:!!", r"the text of a formula must hold a formula, got"),
    "gradient of too few": (f"{ROWS[True]}/g1:11", _STEP),
    "gradient of too many": (f"{ROWS[True]}/g11:111", _STEP),
    "along too few": (f"{ROWS[True]}/a11", _STEP),
    "no rows": (f"{LAYER.plan.form.key}/mse", _STEP),
    "rows of nothing": (f"{LAYER.plan.form.key}/mseex", _STEP),
    "a digit": (f"{ROWS[True]}/g1:112", _STEP),
    "no step": (f"{ROWS[True]}/", _STEP),
    "another step": (f"{ROWS[True]}/h111", _STEP),
}
BACKENDS: dict[str, tuple[str, str]] = {
    "unknown": ("none_such", r"backend must be one of .* got 'none_such'\. Pass one of these"),
    "without forms": ("reference", r"backend must run whole forms here, got 'reference'\. Call"),
}


def cases() -> list[Any]:
    """Operator, argument, what it comes as, and the message."""
    found = []
    for name in STEPS:
        for argument in good(name):
            table = {"graph": GRAPHS, **dict.fromkeys(SIZES, COUNTS), "key": KEYS, "backend": BACKENDS}.get(
                argument, OPERANDS
            )
            for what, (change, message) in table.items():  # type: ignore[attr-defined]
                if what == "halves" and argument == "x":
                    continue  # float32 is the dtype of their sums
                if name != "z" and argument in ("graph", *SIZES, "key", "backend"):
                    continue  # one function checks these for all three
                for walk in ("graph", "rows")[: 1 if argument in ("graph", *SIZES) else 2]:
                    case = (name, argument, change, message, walk == "graph")
                    found.append(pytest.param(*case, id=f"{name}-{argument}-{what}-{walk}"))
    return found


CASES = cases()


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("name", "argument", "change", "message", "graph"), CASES)
def test_forged_calls_are_refused_and_so_are_their_fakes(
    name: str, argument: str, change: Any, message: str, graph: bool
) -> None:
    call = good(name, graph)
    own = change(call[argument]) if callable(change) else change
    with pytest.raises(EqlayersError, match=message):
        run(call | {argument: own})
    if argument == "backend":
        return  # a fake runs on no backend
    with FakeTensorMode() as mode:
        fakes = {n: mode.from_tensor(t) if isinstance(t, Tensor) else t for n, t in (call | {argument: own}).items()}
        with pytest.raises(EqlayersError, match=message):
            run(fakes)


def test_there_are_enough_of_them() -> None:
    assert len(CASES) > 400


@pytest.mark.parametrize(("name", "backend"), [*((name, "") for name in STEPS), ("z", "triton")])
@pytest.mark.parametrize("content", CONTENTS)
def test_tables_of_another_graph_are_refused_by_the_kernels(name: str, content: str, backend: str) -> None:
    if backend:
        interpreter_or_skip()
    call = good(name)
    message = _SHAPE if "number" in content else OTHERS
    with pytest.raises(EqlayersError, match=message):
        run(call | {"graph": CONTENTS[content](call["graph"]), "backend": backend})


WALKS = {"by_dst": ("z", 1), "to_src": ("gradients", 1), "by_src": ("gradients", 2)}  # and threads


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("change", ["starts late", "ends early"])
def test_tables_that_leave_edges_out_are_refused(walk: str, change: str) -> None:
    """The rows of these edges would keep what was in memory."""
    name, threads = WALKS[walk]
    torch.set_num_threads(threads)
    call = good(name)
    graph, start = call["graph"].clone(), getattr(edges.graph_offsets(COUNT, SENDERS, RECEIVERS), walk)[0]
    nodes = SENDERS if walk == "by_src" else RECEIVERS
    ptr = graph[start : start + nodes + 1]
    if change == "starts late":
        ptr[0] = min(1, int(ptr[1]))
        ptr[1:] = ptr[1:].clamp(min=1)
    else:
        ptr.clamp_(max=COUNT - 1)
    with pytest.raises(IndexRangeError, match="graph must"):
        run(call | {"graph": graph})


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("table", range(3), ids=["ptr", "edges", "others"])
@pytest.mark.parametrize("value", [-1, COUNT, COUNT + 1, 2**40, -(2**63), 2**63 - 1])
def test_every_single_number_of_the_tables_is_looked_at(walk: str, table: int, value: int) -> None:
    """A number out of range, in any place, or edges that end before they begin."""
    name, threads = WALKS[walk]
    torch.set_num_threads(threads)
    call = good(name)
    layout = getattr(edges.graph_offsets(COUNT, SENDERS, RECEIVERS), walk)
    nodes = SENDERS if walk == "by_src" else RECEIVERS
    if table == 2 and value == COUNT:
        value = RECEIVERS if walk == "by_src" else SENDERS
    for place in range((nodes + 2, COUNT, COUNT)[table]):
        graph = changed(call["graph"], layout[table] + place, value)
        if table == 0 and value == COUNT and (place == nodes or graph[layout[0] + place + 1] == COUNT):
            continue  # as it was, or edges that the next node has as well
        with pytest.raises(IndexRangeError, match=OTHERS):
            run(call | {"graph": graph})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(list(STEPS)),
    st.lists(st.tuples(st.integers(0, LENGTH - 1), st.integers(-3, 12) | st.integers(-(2**63), 2**63 - 1)), max_size=4),
    st.integers(1, 3),
)
def test_tables_with_any_numbers_are_refused_or_run(name: str, numbers: list[tuple[int, int]], threads: int) -> None:
    """Numbers in range are read, right or not; no others are."""
    call = good(name)
    graph = call["graph"].clone()
    for place, value in numbers:
        graph[place] = value
    torch.set_num_threads(threads)
    refused = ""
    try:
        run(call | {"graph": graph})
    except IndexRangeError as error:
        refused = str(error)
    assert not refused or (re.search(OTHERS, refused) and not torch.equal(graph, call["graph"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": EDGES[:1]}, r"edge_index must be \[2, E\] = \[src, dst\], got \[1, 5\]\. Stack"),
        ({"edge_index": torch.cat([EDGES, EDGES[:1]])}, r"edge_index must be \[2, E\] = \[src, dst\], got \[3, 5\]"),
        ({"edge_index": EDGES.t()[:, :1]}, r"edge_index must be \[2, E\] .* got \[5, 1\]"),
        ({"edge_index": EDGES.t()[:1]}, r"edge_index must be \[2, E\] .* got \[1, 2\]\. Pass edge_index\.t\(\)"),
        ({"edge_index": EDGES[0]}, r"edge_index must be \[2, E\] .* got \[5\]"),
        ({"edge_index": EDGES[0, 0]}, r"edge_index must be \[2, E\] .* got \[\]"),
        ({"edge_index": EDGES[:0]}, r"edge_index must be \[2, E\] .* got \[0, 5\]"),
        ({"edge_index": EDGES.float()}, r"edge_index must be an int64 or int32 tensor .* got torch.float32\. Convert"),
        ({"edge_index": EDGES.bool()}, r"edge_index must be an int64 or int32 tensor .* got torch.bool\. Convert"),
        ({"num_src": -1}, r"num_src and num_dst must be 0 or more, got -1 and 4\. Count the nodes\."),
        ({"num_dst": -1}, r"num_src and num_dst must be 0 or more, got 3 and -1\. Count the nodes\."),
        ({"num_src": 2}, r"edge_index\[0\] \(src\) must lie in \[0, 2\), the number of senders, got 2 at edge 0"),
        ({"num_dst": 0}, r"edge_index\[1\] \(dst\) must lie in \[0, 0\), the number of receivers, got 0 at edge 0"),
        ({"edge_index": -EDGES}, r"edge_index\[1\] \(dst\) must lie in \[0, 4\).* got -3 at edge 1"),
    ],
)
def test_edges_that_cannot_be_sorted(change: dict[str, Any], message: str) -> None:
    call = {"edge_index": EDGES, "num_src": SENDERS, "num_dst": RECEIVERS} | change
    with pytest.raises(EqlayersError, match=message):
        OPS.edge_tables(**call)
    if "must lie in" not in message:  # a fake has no numbers
        with pytest.raises(EqlayersError, match=message):
            OPS.edge_tables(**(call | {"edge_index": call["edge_index"].to("meta")}))


def test_what_is_unusual_and_right() -> None:
    """No edges, edges and tables and operands that do not lie side by side, weights and constants in float32."""
    none = OPS.edge_tables(EDGES[:, :0], SENDERS, RECEIVERS)
    call = good("z")
    few = {"y": call["y"][:0], "w": call["w"][:0], "graph": none, "rows": 0}
    assert torch.equal(run(call | few)[0], torch.zeros(RECEIVERS, OUT))
    apart = torch.stack([EDGES, EDGES], -1)[..., 0]
    assert torch.equal(OPS.edge_tables(apart, SENDERS, RECEIVERS), call["graph"])
    spread = torch.stack([call["graph"], call["graph"]], -1)[:, 0]
    assert torch.equal(run(call | {"graph": spread})[0], run(call)[0])
    halves = {"x": call["x"].bfloat16(), "w": call["w"].bfloat16()}
    assert torch.equal(run(call | halves)[0], run(call | halves | {"y": call["y"].bfloat16()})[0])


def test_the_interpreter_takes_tables_as_sorting_gives_them_and_no_others() -> None:
    interpreter_or_skip()
    call = good("z") | {"backend": "triton"}
    for place in range(LENGTH):
        other = changed(call["graph"], place, int(call["graph"][place] == 0))
        with pytest.raises(IndexRangeError, match=OTHERS):
            run(call | {"graph": other})


def test_tables_that_do_not_lie_side_by_side_in_the_interpreter() -> None:
    interpreter_or_skip()
    call = good("z") | {"backend": "triton"}
    apart = torch.stack([call["graph"], call["graph"]], -1)[:, 0]
    assert torch.equal(run(call | {"graph": apart})[0], run(call)[0])


def test_a_backend_that_is_named_must_accept_the_call() -> None:
    """The GPU's would read addresses of the CPU's memory; here it is a form that it does not print."""
    mixing = eq.TensorProduct("2x1o", "0e", "3x1o", [(0, 0, 0, "uvw", True)])
    call = [torch.ones(1, 6), torch.ones(1, 1), torch.ones(6)], None, 1, 0, 0, mixing.plan.form.calls[False, True].key
    assert OPS.form(*call)[0].shape == (1, 9)
    with pytest.raises(BackendError, match=r"backend 'triton' must accept this call, but it .*\. Pass backend=None"):
        OPS.form(*call, "triton")


@pytest.mark.parametrize("count", [0, 2, 4])
@pytest.mark.parametrize("name", STEPS)
def test_another_number_of_operands(name: str, count: int) -> None:
    call = good(name)
    how = {own: call.pop(own) for own in ("graph", *SIZES, "key", "backend")}
    operands = [*call.values(), call["x"]]
    message = rf"operands must be {len(call)} tensors for this form, x, y, w.*, got \d\. Call it through a layer"
    with pytest.raises(ShapeError, match=message):
        OPS.form(operands[: len(call) + count - 3], **how)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "rows"])
def test_along_no_tangents_nothing_changes_and_nothing_wanted_is_nothing(graph: bool) -> None:
    call = good("gradients", graph)
    still = call | {"key": f"{call['key']}/g000:1111"}
    for found, like in zip(run(still), list(call.values())[:4], strict=True):
        assert torch.equal(found, torch.zeros_like(like))
    assert run(good("z", graph) | {"g": call["g"], "key": f"{ROWS[graph]}/g1:000"}) == []
    assert run(good("z", graph) | {"key": f"{ROWS[graph]}/g0:000"}) == []
