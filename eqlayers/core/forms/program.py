"""Tensor products as one form: a program with its key, the hash or the text of its content."""

from __future__ import annotations

from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import Program

from .description import KNOWN, Description

Rows = tuple[str, str, str, str]
#: Rows of x, y, w and z by (along a graph, shared weights); and for results of every edge with its own weights, by the
#: rows of x and y.
ROW_MAPS: dict[tuple[object, object], Rows] = {
    (False, False): ("each", "each", "each", "each"),
    (False, True): ("each", "each", "one", "each"),
    (True, False): ("src", "each", "each", "dst"),
    (True, True): ("src", "each", "one", "dst"),
    ("src", "each"): ("src", "each", "each", "each"),
    ("src", "dst"): ("src", "dst", "each", "each"),
}


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
