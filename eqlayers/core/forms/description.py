"""Descriptions: forms with their keys, and the descriptions of their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from eqlayers_kernels.forms.formula import ROWS
from eqlayers_kernels.forms.product import AnyForm

from .request import SIZE_INDEX, Request
from .text import write_formula, write_program

MOST_READS = 16  # rows of a table
#: Descriptions of this process, by key.
KNOWN: dict[str, Description] = {}
_LETTERS = {rows[0]: rows for rows in ROWS}
Flags = tuple[bool, ...]


def with_rows(key: str, *rows: str) -> str:
    """The key of the same form with these rows of its operands and results.

    Example:
        >>> with_rows("0123456789abcdef", "src", "each", "one", "dst")
        '0123456789abcdef/mseod'
    """
    return f"{key}/m{''.join(one[0] for one in rows)}"


def tabled(key: str, reads: int, orders: int) -> str:
    """The key of a product along a graph whose weights are read from a table; see `ProductForm.tabled`.

    Example:
        >>> tabled("0123456789abcdef", 4, 1)
        '0123456789abcdef/t4:1'
    """
    return f"{key}/t{reads}:{orders}"


class Description:
    """A form with its key. Calls in eager mode pass the object; operators in graphs pass the key.

    ``shapes`` has for each operand its width and the index in `Sizes` of its number of rows (None for a shared row);
    ``batch`` is the number of the first operand with a row for each row of the batch, or None.
    """

    def __init__(self, form: AnyForm, key: str) -> None:
        self.form, self.key = form, key
        self.shapes = [(one.width, SIZE_INDEX.get(one.rows)) for one in form.operands]
        self.batch = next((number for number, (_, index) in enumerate(self.shapes) if index == 0), None)
        self._derived: dict[Any, Description] = {}

    def vjp(self, has: Flags, requested: Flags) -> Description:
        """The gradients of ``sum(result * cotangent)`` over results that have one, by the requested operands."""
        return self._derived.get((has, requested)) or self._derive(
            (has, requested), f"/g{_text(has)}:{_text(requested)}"
        )

    def jvp(self, has_tangent: Flags) -> Description:
        """The derivative of the results along tangents of operands."""
        return self._derived.get(has_tangent) or self._derive(has_tangent, f"/a{_text(has_tangent)}")

    def with_rows(self, *rows: str) -> Description:
        """The form with other rows of its operands and results."""
        return self._derived.get(rows) or self._derive(rows, with_rows("", *rows))

    def tabled(self, reads: int, orders: int) -> Description:
        """The product along a graph with weights from a table."""
        step = "table", reads, orders
        return self._derived.get(step) or self._derive(step, tabled("", reads, orders))

    def step(self, text: str) -> Description:
        """The form that one step of a key, such as '/g1:110', derives from this one; cached.

        Raises ValueError, KeyError, IndexError, TypeError or AttributeError if there is no such derivative.
        """
        key = self.key + text
        return KNOWN.get(key) or KNOWN.setdefault(key, Description(_STEPS[text[1]](self.form, text[2:]), key))

    def _derive(self, step: Any, text: str) -> Description:
        self._derived[step] = self.step(text)
        return self._derived[step]

    @cached_property
    def text(self) -> str:
        """The program or formula as text, a key that every process can read."""
        base: Any = self.form
        return write_formula(base) if base.program is None else write_program(base.program)

    def request(self, dtype: torch.dtype, device: torch.device) -> Request:
        """The request by which a backend is chosen."""
        return Request(self.form, self.key, dtype, device)

    def __deepcopy__(self, memo: dict[int, object]) -> Description:
        return self

    def __repr__(self) -> str:
        return f"Description({self.key}, {len(self.shapes)} operands)"


def _text(flags: Sequence[bool]) -> str:
    return "".join(["1" if flag else "0" for flag in flags])


def _flags(text: str) -> Flags:
    return tuple({"0": False, "1": True}[digit] for digit in text)


def _other_rows(form: Any, text: str) -> Any:
    rows, count = tuple(_LETTERS[letter] for letter in text), len(form.operands)
    return form.with_rows(rows[:count], rows[count:])


def _from_table(form: Any, text: str) -> Any:
    reads, orders = (int(number) for number in text.split(":"))
    if not 0 < orders <= reads <= MOST_READS:
        raise ValueError
    return form.tabled(reads, orders)


def _vjp(form: Any, text: str) -> Any:
    has, requested = map(_flags, text.split(":"))
    return form.vjp(has, requested)


def _jvp(form: Any, text: str) -> Any:
    has_tangent = _flags(text)
    if len(has_tangent) != len(form.operands):
        raise ValueError
    return form.jvp(has_tangent)


_STEPS: dict[str, Callable[[Any, str], Any]] = {"m": _other_rows, "t": _from_table, "g": _vjp, "a": _jvp}
