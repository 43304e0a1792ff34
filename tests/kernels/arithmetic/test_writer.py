"""Kinds of computation have pointers in one order, and say which part of a dual number is their result."""

from fractions import Fraction

from eqlayers_kernels.arithmetic.writer import Dual, Task, plus, pointer_of, times

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


#: Exact values, so that a derivative by hand is equal and not near.
NUMBERS = {"a": 3, "da": 5, "b": 7, "db": -2, "c": Fraction(1, 3), "dc": 11}
A, B, C = (Dual(name, f"d{name}") for name in "abc")


def values(number: Dual) -> tuple[object, object]:
    value, tangent = (eval(text, {}, dict(NUMBERS)) if text else 0 for text in number)
    return value, tangent


def test_derivatives_of_products_and_sums_are_those_by_hand() -> None:
    a, da, b, db, c, dc = NUMBERS.values()
    assert values(times(A, B, C)) == (a * b * c, da * b * c + a * db * c + a * b * dc)
    assert values(plus([A, B, C])) == (a + b + c, da + db + dc)
    assert values(times(plus([A, B]), C)) == ((a + b) * c, (da + db) * c + (a + b) * dc), "sums have brackets"
    assert values(plus([times(A, B), times(C, C)])) == (a * b + c * c, da * b + a * db + 2 * c * dc)


def test_zeros_and_ones_leave_no_text_behind() -> None:
    """Kernels hold a line for each text: factors of nothing would be arithmetic on zeros."""
    constant, moving = Dual("a"), Dual("", "db")
    assert times(constant, C) == Dual("a * c", "a * dc")
    assert times(constant, moving) == Dual("", "a * db")
    assert times(moving, moving) == times(constant, Dual()) == plus([]) == Dual()
    assert times(None, A, None) == plus([A]) == plus([Dual(), A]) == A
    assert times() == Dual()
    assert [bool(number) for number in (constant, moving, Dual())] == [True, True, False]
