"""Texts of dual numbers are values and derivatives of sums and products; an empty text is zero."""

from fractions import Fraction

from eqlayers_kernels.arithmetic.dual import Dual, plus, times

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
