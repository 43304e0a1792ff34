"""A program on rows of operands, by a backend: with a kernel in one call, or as operations of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from .backends import BACKENDS
from .backends.forms import chosen
from .backends.rows import Ends, gathered, summed
from .backends.whole import contract
from .forms.description import with_rows
from .forms.program import ROW_MAPS, Form
from .forms.request import Sizes
from .graph import Graph
from .operator import at_once, call_form, sorted_edges
from .torch_internals import is_plain


def run_program(
    form: Form,
    operands: Sequence[Tensor],
    rows: Sequence[str],
    graph: Graph | None = None,
    backend: str | None = None,
    deterministic: bool = True,
) -> Tensor:
    """Run a program, differentiable to any order: ``[rows, width]``.

    Operands x, y and w are of one dtype and device; ``rows`` says of them and of the result which rows they have:
    'each', 'src', 'dst' or 'one', ``[width]``. The edges of ``graph`` are the rows of the batch.
    """
    if form.program.paths and is_plain(operands):
        results = at_once(form.with_rows(*rows), operands, graph, backend, deterministic)
        if results is not None:
            return results[0]
    first = operands[0]
    name = chosen(first.device.type, first.dtype, backend, form.key)
    whole = BACKENDS[name].whole
    if whole is None and form.program.paths:
        tables = None if graph is None else graph.tables(sorted_edges)
        sizes = Sizes(operands[1].shape[0]) if graph is None else graph.sizes
        return call_form(operands, tables, sizes, with_rows(form.key, *rows), name, deterministic)[0]
    ends = None if graph is None else Ends(*graph.ends, graph.num_src, graph.num_dst)
    wide = [t if kind == "one" else gathered(kind, t, ends) for t, kind in zip(operands, rows, strict=False)]
    return summed(rows[3], (whole or contract)(form.key, *wide), ends, deterministic)


def as_rows(t: Tensor, lead: tuple[int, ...]) -> Tensor:
    """``[..., d]`` to ``[N, d]``, one row for all as a view of stride 0."""
    if t.ndim == 2 and len(lead) == 1 and t.shape[0] == lead[0]:
        return t
    expanded = t.expand(*lead, t.shape[-1])
    return expanded if len(lead) == 1 else expanded.reshape(math.prod(lead), t.shape[-1])


def run_by_row(
    form: Form, x: Tensor, y: Tensor, lead: tuple[int, ...], backend: str | None, w: Tensor | None = None
) -> Tensor:
    """A program on ``[..., width]`` of x, y and w, whose leading axes broadcast to ``lead``: ``[*lead, width]``.

    One row of w serves all if it has no other axis; None is for programs without weights.
    """
    w = x.new_empty(0) if w is None else w
    shared = w.ndim == 1
    rows = as_rows(x, lead), as_rows(y, lead), w if shared else as_rows(w, lead)
    z = run_program(form, rows, ROW_MAPS[False, shared], None, backend)
    return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])
