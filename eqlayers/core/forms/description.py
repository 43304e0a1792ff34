"""Descriptions: what is computed, under its key, with its derivatives."""

from __future__ import annotations

from collections.abc import Sequence

from eqlayers_kernels.forms.product import AnyForm

#: Places in the sizes of a call of the rows of an operand.
PLACES = {"each": 0, "src": 1, "dst": 2, "table": 3}
#: Of this process, by key.
KNOWN: dict[str, Description] = {}


class Description:
    """A form under its key. Calls carry it in eager mode; operators in graphs have its key.

    Args:
        form: A product, a sum of products or a formula.
        key: See :mod:`eqlayers.core.forms.keys`.
        program: Key of the program that it is of; '' for formulas.

    Attributes:
        shapes: For each operand its width, and the place of its rows in the sizes of a call; None for one row for all.
        batch: Number of an operand that has a row for each row of the batch; None if none has.
    """

    __slots__ = ("_along", "_gradients", "batch", "form", "key", "program", "shapes")

    def __init__(self, form: AnyForm, key: str, program: str = "") -> None:
        self.form, self.key, self.program = form, key, program
        self.shapes = [(one.width, PLACES.get(one.rows)) for one in form.operands]
        self.batch = next((number for number, (_, place) in enumerate(self.shapes) if place == 0), None)
        self._gradients: dict[tuple[tuple[bool, ...], tuple[bool, ...]], Description] = {}
        self._along: dict[tuple[bool, ...], Description] = {}

    def gradient(self, given: tuple[bool, ...], wanted: tuple[bool, ...]) -> Description:
        """The gradients of ``sum(result * cotangent)`` over the given results, by the wanted operands."""
        found = self._gradients.get((given, wanted))
        if found is None:
            key = f"{self.key}/g{_flags(given)}:{_flags(wanted)}"
            found = KNOWN.get(key) or self.step(key, self.form.gradient(given, wanted))
            self._gradients[given, wanted] = found
        return found

    def along(self, moving: tuple[bool, ...]) -> Description:
        """The derivative along tangents of the operands that move."""
        found = self._along.get(moving)
        if found is None:
            key = f"{self.key}/a{_flags(moving)}"
            found = self._along[moving] = KNOWN.get(key) or self.step(key, self.form.along(moving))
        return found

    def step(self, key: str, form: AnyForm) -> Description:
        """Another form of the same program, known from then on."""
        return KNOWN.setdefault(key, Description(form, key, self.program))

    def __deepcopy__(self, memo: dict[int, object]) -> Description:
        return self

    def __repr__(self) -> str:
        return f"Description({self.key}, {len(self.shapes)} operands)"


def _flags(values: Sequence[bool]) -> str:
    return "".join(["1" if value else "0" for value in values])
