"""Whole tensor products as one call: a program of paths under its key, the hash or the text of its content."""

from __future__ import annotations

from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import Program

from .description import KNOWN, Description

#: Rows of x, y, w and z: row by row or along a graph, with weights of every row or one row of them for all.
ROW_MAPS = {
    (graph, shared): ("src" if graph else "each", "each", "one" if shared else "each", "dst" if graph else "each")
    for graph in (False, True)
    for shared in (False, True)
}


class Form(Description):
    """A program under its key, row by row. Operators take the key, a string, so that compilers see a constant.

    The key is a short content hash, known to processes that have built the form, or the text of operators that have it.
    ``calls`` are what eager calls carry: along a graph or row by row, with one row of weights for all or one for each.
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
