"""Kinds of computation have pointers in one order, and say which part of a dual number is their result."""

from eqlayers_kernels.arithmetic.dual import Dual
from eqlayers_kernels.arithmetic.writer import Task, pointer_of

FORWARD = Task(0, ("z",))
BACKWARD = Task(1, ("x", "w"))
DOUBLE = Task(2, ("y", "z"), ("x", "z"))
TABLED = Task(2, ("t", "x", "c"), ("c",), ("x", "y", "t", "c"))


def test_pointers_are_operands_then_tangents_then_results() -> None:
    """Callers pass addresses by this order alone."""
    assert FORWARD.pointers == [("x", "x"), ("y", "y"), ("w", "w"), ("z", "z")]
    assert BACKWARD.pointers == [*FORWARD.pointers[:3], ("g", "z"), ("gx", "x"), ("gw", "w")]
    assert DOUBLE.pointers[3:] == [("g", "z"), ("dx", "x"), ("dz", "z"), ("gy", "y"), ("z", "z")]
    assert [name for name, _ in TABLED.pointers] == ["x", "y", "t", "c", "g", "dc", "gt", "gx", "gc"]
    for task in (FORWARD, BACKWARD, TABLED):
        read = [name for name, _ in task.pointers][: len(task.pointers) - len(task.results)]
        assert list(task.names) == read
    assert Task(2, ("z",), ("x",)).pointers[3:] == [("dx", "x"), ("z", "z")], "the derivative of z needs no cotangent"
    assert [pointer_of(name) for name in "xywz"] == ["x", "y", "w", "g"]


def test_a_kind_says_what_its_results_are() -> None:
    assert [task.gradients for task in (FORWARD, BACKWARD, DOUBLE)] == [False, True, True]
    number = Dual("value", "tangent")
    assert [task.part(number) for task in (FORWARD, BACKWARD, DOUBLE)] == ["value", "value", "tangent"]
    assert TABLED.of_paths == Task(2, ("w", "x"), ("w",)), "paths know weights, each once"
    assert BACKWARD.of_paths == BACKWARD
