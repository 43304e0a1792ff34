"""Descriptions: forms with their keys, and the descriptions of their derivatives.

Operators take a key, a string, so that compilers see a constant. A key names a program or a formula, by hash or as
text, and the steps that derive another form from it: ``/m`` sets the rows of the operands, ``/t`` interpolates the
weights of a program in a table (rows per interval, rows from interval to interval), ``/g`` takes gradients, ``/a``
derivatives along tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from eqlayers_kernels.forms.formula import ROWS, Formula
from eqlayers_kernels.forms.product import AnyForm, ProductForm
from eqlayers_kernels.forms.program import Program

from ..errors import ConfigError
from .request import SIZE_INDEX, Request
from .text import FORMULA, PROGRAM, read_formula, read_program, write_text

MOST_READS = 16  # rows of a table
#: Descriptions of this process, by key.
KNOWN: dict[str, Description] = {}
_LETTERS = {rows[0]: rows for rows in ROWS}
Flags = tuple[bool, ...]
Rows = tuple[str, str, str, str]
#: Rows of x, y, w and z by (along a graph, shared weights); for results of every edge with its own weights, by the rows
#: of x and y; and for maps, whose y is one row, by the rows of w.
ROW_MAPS: dict[tuple[object, object], Rows] = {
    (False, False): ("each", "each", "each", "each"),
    (False, True): ("each", "each", "one", "each"),
    (True, False): ("src", "each", "each", "dst"),
    (True, True): ("src", "each", "one", "dst"),
    ("src", "each"): ("src", "each", "each", "each"),
    ("src", "dst"): ("src", "dst", "each", "each"),
    ("map", "one"): ("each", "one", "one", "each"),
    ("map", "src"): ("each", "one", "src", "each"),
}


def with_rows(key: str, *rows: str) -> str:
    """The key of the same form with these rows of its operands and results."""
    return f"{key}/m{''.join(one[0] for one in rows)}"


def tabled(key: str, reads: int, orders: int) -> str:
    """The key of a product along a graph whose weights are read from a table; see `ProductForm.tabled`."""
    return f"{key}/t{reads}:{orders}"


class Description:
    """A form with its key. Calls in eager mode pass the object; operators in graphs pass the key.

    ``shapes`` has for each operand its width and the index in `Sizes` of its number of rows (None for a shared row);
    ``batch`` is the number of the first operand with a row for each row of the batch, or None.
    """

    def __init__(self, form: AnyForm, key: str) -> None:
        self.form, self.key, self.moving = form, key, form.moving
        self.shapes = [(one.width, SIZE_INDEX.get(one.rows)) for one in form.operands]
        self.batch = next((number for number, (_, index) in enumerate(self.shapes) if index == 0), None)
        self._derived: dict[Any, Description] = {}

    def vjp(self, has: Flags, requested: Flags) -> Description:
        """The gradients of ``sum(result * cotangent)`` over results that have one, by the requested operands."""
        return self._derived.get((has, requested)) or self._derive(
            (has, requested), f"/g{_text(has)}:{_text(requested)}"
        )

    def requested(self, requested: Flags) -> Flags:
        """The requested operands of a gradient without those whose gradient is 0 for all numbers."""
        moving = iter(self.moving)
        return tuple([flag and next(moving) for flag in requested])

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
        return write_text(FORMULA, base) if base.program is None else write_text(PROGRAM, base.program)

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
    if (len(has), len(requested)) != (len(form.results), len(form.operands)):
        raise ValueError
    return form.vjp(has, requested)


def _jvp(form: Any, text: str) -> Any:
    has_tangent = _flags(text)
    if len(has_tangent) != len(form.operands):
        raise ValueError
    return form.jvp(has_tangent)


_STEPS: dict[str, Callable[[Any, str], Any]] = {"m": _other_rows, "t": _from_table, "g": _vjp, "a": _jvp}


class Form(Description):
    """A program with its key, row by row.

    The key is a content hash, known to processes that have built the form, or the text of the program. ``calls`` has
    the form with each of the rows in `ROW_MAPS`.
    """

    def __init__(self, program: Program, key: str | None = None) -> None:
        super().__init__(ProductForm(program), key or program.key)
        self.program = program
        self.calls = {how: self.with_rows(*rows) for how, rows in ROW_MAPS.items()}
        KNOWN.setdefault(self.key, self)

    def __reduce__(self) -> tuple[type[Form], tuple[Program]]:
        return Form, (self.program,)  # loading it registers its key in the process

    def __repr__(self) -> str:
        return f"Form({self.key}, {len(self.program.paths)} paths, {self.program.num_terms} terms)"


def register_formula(base: Formula) -> Formula:
    """Register the formula, so operators find it by key. Call at construction: torch.compile cannot trace this."""
    if base.key not in KNOWN:
        KNOWN[base.key] = Description(base, base.key)
    return base


def split_key(key: str) -> tuple[str, str, str]:
    """The key of a program or formula, the step that sets rows or '', and all other steps.

    Example:
        >>> split_key("0123456789abcdef/mseod/g1:110")
        ('0123456789abcdef', '/mseod', '/g1:110')
    """
    root, slash, steps = key.partition("/")
    if steps.startswith("m"):
        rows, more, steps = steps.partition("/")
        return root, slash + rows, more + steps
    return root, "", slash + steps


def describe(key: str) -> Description:
    """The description of the form with this key; a text is parsed at the first call.

    ConfigError if no layer of this process has the short key, the text is damaged or of another version, or the form
    has no such derivative.
    """
    known = KNOWN.get(key)
    if known is not None:
        return known
    start, slash, step = key.rpartition("/")
    if slash:
        base = describe(start)
        try:
            return base.step(slash + step)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"a form must have the derivative that its key names, got {step!r}, which this one has not. Call "
                f"the operator through a layer."
            ) from error
    if key.startswith(FORMULA):
        return KNOWN.setdefault(key, Description(read_formula(key), key))
    if key.startswith(PROGRAM):
        return KNOWN.setdefault(key, Form(read_program(key), key))
    raise ConfigError(
        f"a form must be built before it is run, got the key {key!r}, which no layer of this process has. "
        f"Build the layer first, or trace it with torch.export: then the graph holds the program itself."
    )


@torch.compiler.assume_constant_result
def text_of(key: str) -> str:
    """The key with the text of its program or formula instead of the hash; a constant for compilers."""
    root, rows, steps = split_key(key)
    return describe(root).text + rows + steps


def short(key: str) -> str:
    """The key with the hash of its formula instead of the text."""
    root, rows, steps = split_key(key)
    base: Any = describe(root).form
    return (root if base.program else base.key) + rows + steps
