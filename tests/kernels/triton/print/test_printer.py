"""Texts of product kernels have their arguments in the order of a launch, and rows where a walk finds them."""

import ast
import re
from typing import Any

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.product import Reading
from eqlayers_kernels.triton.print.printer import KernelText
from tests.each import each

FORWARD, BACKWARD = Task(0, ("z",)), Task(1, ("x", "y", "w"))
SPECS = (("uvu", (5, 1, 0), (3, 3, 1)), ("uvu", (5, 1, 0), (1, 3, 3)))
SIZES = ["segments", "start", "sums", "rows", "count", "spare", "chunk"]
SORTED = ["nodes", "firsts", "stops", "places", "edges", "others"]


def text(programs: Any, task: Task, traversal: str, **options: Any) -> KernelText:
    program = programs.random_program("ir_mul", True, SPECS)
    return KernelText(program, program.paths, task, traversal, **{"shared": False, "masked": True} | options)


def rows_of(kernel: KernelText) -> dict[str, str]:
    """The row at which each pointer stands."""
    return dict(re.findall(r"^ *(\w+)_n = \1 \+ \((.*)\) \* \d+$", kernel.source, flags=re.MULTILINE))


@each(
    "task, traversal, workspaces, tables",
    [
        (FORWARD, "rows", [], []),
        (FORWARD, "by_dst", ["z_room"], SORTED),
        (BACKWARD, "by_dst", [], SORTED),
        (BACKWARD, "by_src", ["gx_room"], SORTED),
        (Task(1, ("t",), (), ("x", "y", "t", "c")), "by_place", ["gt_room"], [*SORTED, "ends"]),
        (Task(1, ("c",), (), ("x", "y", "t", "c")), "by_dst", [], [*SORTED, "ends"]),
    ],
)
def test_arguments_are_pointers_rooms_tables_sizes_and_parts(
    programs: Any, task: Task, traversal: str, workspaces: list[str], tables: list[str]
) -> None:
    reading = Reading(4, 1) if "t" in task.factors else None
    kernel = text(programs, task, traversal, reading=reading, stored=True)
    (function,) = (node for node in ast.parse(kernel.source).body if isinstance(node, ast.FunctionDef))
    pointers = [name for name, _ in task.pointers]
    parts = [f"{name}_part" for name in pointers[len(pointers) - len(task.results) :]]
    arguments = [one.arg for one in function.args.args]
    assert arguments == [*pointers, *workspaces, *tables, *SIZES, *parts, "ACC", "BLOCK", "STAGES"]
    assert function.name == f"{('forward', 'backward')[task.order]}_{traversal}"


def test_rows_are_where_a_walk_finds_them(programs: Any) -> None:
    """Receivers are the nodes of one walk and the other ends of the next; edges have y and weights."""
    by_dst, by_src = (rows_of(text(programs, BACKWARD, traversal)) for traversal in ("by_dst", "by_src"))
    assert (by_dst["x"], by_dst["g"], by_dst["y"], by_dst["w"]) == ("other", "node", "edge", "edge")
    assert (by_src["x"], by_src["g"], by_src["y"], by_src["w"]) == ("node", "other", "edge", "edge")
    assert by_src["gx"] == "place + gx_part * count_long"
    assert by_src["gw"] == "edge + gw_part * rows_long"
    assert by_src["gy"] == "edge + (gy_part + block) * rows_long", "every block of channels has a part of a sum"
    plain = rows_of(text(programs, FORWARD, "rows"))
    assert set(plain.values()) == {"step", "step + z_part * rows_long"}
    shared = rows_of(text(programs, BACKWARD, "by_src", shared=True))
    assert (shared["w"], shared["gw"]) == ("0", "slot + gw_part * sums_long")


def test_gradients_of_senders_are_added_or_stored_for_each_edge(programs: Any) -> None:
    """Along receivers other programs have the same sender: sums in memory have no order of their own."""
    added, stored = (text(programs, BACKWARD, "by_dst", stored=stored) for stored in (False, True))
    assert (added.added, stored.added) == ({"x"}, set())
    assert added.source.count("tl.atomic_add(gx_n") == 4  # components of x
    assert "atomic" not in stored.source
    assert (rows_of(added)["gx"], rows_of(stored)["gx"]) == ("other", "edge + gx_part * rows_long")
    first = stored.paths[0].x.start
    again = text(programs, BACKWARD, "by_dst", stored=True, begun=frozenset({first}))
    assert again.source.count("tl.load(gx_n") == 3, "the slot of three components has gradients already"
    assert "tl.load(gx_n" not in stored.source
    assert ("inside = u < 5" in stored.source, stored.channels) == (True, 5)
