"""Whole tensor products as one call: a program of paths, known to operators by the hash or the text of its content."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch

from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import Program

from ..errors import ConfigError
from .description import KNOWN, Description
from .program_text import PREFIX, read_program, write_program

_forms: dict[str, Form] = {}


def with_rows(key: str, *rows: str) -> str:
    """The key of the same form with these rows of its operands; of a product of x, y, w and z.

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


class Form:
    """A program under its key. Operators take the key, a string, so that compilers see a constant.

    Args:
        program: All paths of a tensor product.

    Attributes:
        key: Short content hash; known to processes that have built the form.
        text: The program itself, a key that every process can read.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.key = program.key
        #: Along a graph or row by row, with one row of weights for all or one for each: what calls in eager mode carry.
        self.calls = {(graph, shared): self._call(graph, shared) for graph in (False, True) for shared in (False, True)}
        _forms.setdefault(self.key, self)

    @cached_property
    def text(self) -> str:
        """The program as text."""
        return write_program(self.program)

    def key_of(self, graph: bool, shared: bool) -> str:
        """The key of the form along a graph, or row by row, with weights of every row, or one set for all."""
        return self.calls[graph, shared].key

    def _call(self, graph: bool, shared: bool) -> Description:
        rows = ("src", "each", "one", "dst") if graph else ("each", "each", "one", "each")
        rows = rows if shared else (rows[0], "each", "each", rows[3])
        key = with_rows(self.key, *rows)
        return KNOWN.get(key) or KNOWN.setdefault(key, Description(ProductForm(self.program, rows), key, self.key))

    def __reduce__(self) -> tuple[type[Form], tuple[Program]]:
        return Form, (self.program,)  # a process that loads it knows its key from then on

    def __deepcopy__(self, memo: dict[int, object]) -> Form:
        return self

    def __repr__(self) -> str:
        return f"Form({self.key}, {len(self.program.paths)} paths, {self.program.num_terms} terms)"


def register_program(program: Program) -> str:
    """Make a program known to this process; its key."""
    return program.key if program.key in _forms else Form(program).key


def find_form(key: str) -> Form:
    """The form of that key, short or the text of a program, which is read when it is first seen.

    Raises:
        ConfigError: No layer of this process has the short key; the text is damaged or of another version.
    """
    form = _forms.get(key)
    if form is None:
        if not key.startswith(PREFIX):
            raise ConfigError(
                f"a form must be built before it is run, got the key {key!r}, which no layer of this process has. "
                f"Build the layer first, or trace it with torch.export: then the graph holds the program itself."
            )
        form = _forms[key] = Form(read_program(key))
    return form


class FormCall(NamedTuple):
    """A request from which a backend decides whether it runs a whole form in one call: dtype, type of device, form."""

    dtype: torch.dtype
    device: str
    key: str = ""  # of the form; empty for any form
