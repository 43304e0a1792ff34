"""Whole tensor products as one call: a program of paths under its key, the hash or the text of its content."""

from __future__ import annotations

from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import Program

from .description import KNOWN, Description

Rows = tuple[str, str, str, str]
#: Rows of x, y, w and z: row by row or along a graph, with weights of every row or one row of them for all; and of
#: results for every edge, with weights of its own, by the rows of x and y.
ROW_MAPS: dict[tuple[object, object], Rows] = {
    (False, False): ("each", "each", "each", "each"),
    (False, True): ("each", "each", "one", "each"),
    (True, False): ("src", "each", "each", "dst"),
    (True, True): ("src", "each", "one", "dst"),
    ("src", "each"): ("src", "each", "each", "each"),
    ("src", "dst"): ("src", "dst", "each", "each"),
}


class Form(Description):
    """A program under its key, row by row. Operators take the key, a string, so that compilers see a constant.

    The key is a short content hash, known to processes that have built the form, or the text of operators that have it.
    ``calls`` are the forms with the rows of `ROW_MAPS`, which calls carry.
    """

    def __init__(self, program: Program, key: str | None = None) -> None:
        super().__init__(ProductForm(program), key or program.key)
        self.program = program
        self.calls = {how: self.with_rows(*rows) for how, rows in ROW_MAPS.items()}
        KNOWN.setdefault(self.key, self)

    def __reduce__(self) -> tuple[type[Form], tuple[Program]]:
        return Form, (self.program,)  # a process that loads it knows its key from then on

    def __repr__(self) -> str:
        return f"Form({self.key}, {len(self.program.paths)} paths, {self.program.num_terms} terms)"
