"""Lines of a path read each element once, and store sums where the row of a result ends."""

import numpy as np

from eqlayers_kernels.arithmetic.writer import Dual, Task
from eqlayers_kernels.forms.program import LAYOUTS, Axis, Path, Program, Slot
from eqlayers_kernels.triton.print.path import Body, TritonWriter
from tests.each import each

PATH = Path(
    Slot(7, 5, 3), Slot(2, 1, 3), Slot(4, 5, 1), 6, (Axis(5, x=1, w=1, z=1),), ((0, 0, 0, 0.5), (2, 2, 0, -1.0))
)
BACKWARD = Task(1, ("x", "y", "w"))


def body(task: Task = BACKWARD, layout: str = "ir_mul", reads: int = 0, **scopes: str) -> Body:
    """A body of rows, but for the operands whose scope is named."""
    workspaces = frozenset(f"g{name}" for name, scope in scopes.items() if scope == "segment" and name in task.results)
    everywhere = dict.fromkeys("xywztc", "row") | scopes
    program = Program((PATH,), (22, 5, 11, 9), layout)
    return Body(program, task, everywhere, True, frozenset(), workspaces, reads)


@each("layout", LAYOUTS)
def test_columns_are_those_of_the_slot(layout: str) -> None:
    u = np.arange(5)
    for operand, step in (("x", 1), ("z", 1), ("y", 0)):
        slot = getattr(PATH, operand)
        for component in range(slot.dim):
            text = body(layout=layout).column(PATH, operand, component, step)
            wanted = slot.columns(layout)[component][u * step]
            np.testing.assert_array_equal(eval(text, {"u": u}) + 0 * u, wanted)
    np.testing.assert_array_equal(eval(body().column(PATH, "w", 0, 1), {"u": u}), 6 + u)
    rows = body(reads=3).rows_of_table(PATH, 1)
    np.testing.assert_array_equal(
        [eval(row, {"u": u}) for row in rows], [[6 + 11 * k + c for c in u] for k in range(3)]
    )


def test_elements_are_read_once_where_their_row_begins() -> None:
    """A tangent beside its value; a mask where channels are ragged, none where an operand has no channels."""
    lines = body(Task(2, ("z",), ("x",)), y="segment")
    out = TritonWriter(lines, 0, PATH)
    assert out.load("x", 1) == out.load("x", 1) == Dual("x_0", "dx_1")
    assert out.load("y", 2) == Dual("y_2")
    assert lines.inside == [
        "x_0 = tl.load(x_n + 12 + u * 1, mask=inside, other=0.0).to(ACC)",
        "dx_1 = tl.load(dx_n + 12 + u * 1, mask=inside, other=0.0).to(ACC)",
    ]
    assert lines.before == ["y_2 = tl.load(y_n + 4).to(ACC)"]


def test_sums_are_stored_where_the_row_of_their_result_ends() -> None:
    """A row of the loop is written in it, a node behind it or into the room of its pieces; shared weights are added."""
    lines = body(x="segment", w="program")
    out = TritonWriter(lines, 0, PATH)
    for operand, component in (("x", 0), ("y", 1), ("w", 0), ("y", 1)):
        out.add(operand, component, Dual(f"new_{operand}"))
    assert lines.before == ["gx_sum1 = tl.zeros((BLOCK,), ACC)", "gw_sum3 = tl.zeros((BLOCK,), ACC)"]
    assert lines.inside == [
        "gx_sum1 = gx_sum1 + new_x",
        "gy_sum2 = new_y",
        "gw_sum3 = gw_sum3 + new_w",
        "gy_sum2 = gy_sum2 + new_y",
    ]
    lines.store(later=frozenset({"gy_n + 3"}))
    assert lines.inside[4:] == []
    assert [line.replace("gw_n + 6 + u * 1", "W") for line in lines.after] == [
        "tl.store(gx_n + 7 + u * 1, gx_sum1, mask=whole_u & inside)",
        "tl.store(gx_room_n + 7 + u * 1, gx_sum1, mask=piece_u & inside)",
        "tl.store(W, tl.load(W, mask=again_u & inside, other=0.0) + gw_sum3, mask=inside)",
    ]
    out.add_total("y", 1, Dual("whole"))
    lines.again = frozenset({"gy_n + 3"})
    lines.store()
    assert lines.inside[4:] == [
        "gy_sum2_whole = whole",
        "tl.store(gy_n + 3, tl.load(gy_n + 3) + tl.sum(gy_sum2, 0) + gy_sum2_whole)",
    ]
    lines.store()
    assert len(lines.after) == 3, "what is stored is not stored again"
