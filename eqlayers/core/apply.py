"""Runs programs on rows of operands by a backend: with a kernel in one call, or as operations of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .backends import BACKENDS
from .backends.forms import chosen
from .backends.rows import Endpoints, gathered, summed
from .backends.whole import contract
from .forms.description import Description, Form
from .forms.request import Sizes
from .graph import Graph
from .operator import WITH_KERNELS, at_once, call_form, sorted_edges
from .torch_internals import is_plain, traced_by_running


def run_program(
    form: Description,
    operands: Sequence[Tensor],
    graph: Graph | None = None,
    backend: str | None = None,
    deterministic: bool = True,
) -> Tensor:
    """Run a program, differentiable to any order: ``[rows, width]``.

    ``form`` is one of `Form.calls`. Operands x, y and w are of one dtype and device, with the rows of the form. The
    edges of ``graph`` are the rows of the batch.
    """
    product: Any = form.form
    if product.program.paths and is_plain(operands):
        results = at_once(form, operands, graph, backend, deterministic)
        if results is not None:
            return results[0]
    first = operands[0]
    name = chosen(first.device.type, first.dtype, backend, form.key)
    by = BACKENDS[name]
    sizes = Sizes(operands[form.batch or 0].shape[0]) if graph is None else graph.sizes
    if by.whole is None and product.program.paths:
        tables = None if graph is None else graph.tables(sorted_edges)
        return call_form(operands, tables, sizes, form.key, name, deterministic)[0]
    endpoints = None if graph is None else Endpoints(*graph.ends, graph.num_src, graph.num_dst)
    wide = [gathered(rows, t, endpoints) for t, rows in zip(operands, product.rows[:3], strict=True)]
    wide = [t.expand(sizes.rows, -1) for t in wide[:2]] + [operands[2] if product.rows[2] == "one" else wide[2]]
    return summed(product.rows[3], _whole(by.name, product.program.key, *wide), endpoints, deterministic)


@traced_by_running  # named by a text: torch 2.6 would trace the code of an attribute
def _whole(backend: str, key: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return (BACKENDS[backend].whole or contract)(key, x, y, w)


def as_rows(t: Tensor, lead: tuple[int, ...]) -> Tensor:
    """``[..., d]`` to ``[N, d]``, one row for all as a view of stride 0."""
    if t.ndim == 2 and len(lead) == 1 and t.shape[0] == lead[0]:
        return t
    expanded = t.expand(*lead, t.shape[-1])
    return expanded if len(lead) == 1 else expanded.reshape(math.prod(lead), t.shape[-1])


def run_by_row(
    form: Form, x: Tensor, y: Tensor, lead: tuple[int, ...], backend: str | None, w: Tensor | None = None
) -> Tensor:
    """Run a program on x, y and w ``[..., width]``, whose leading axes broadcast to ``lead``: ``[*lead, width]``.

    A w without leading axes is shared by all rows; None is for programs without weights.
    """
    w = x.new_empty(0) if w is None else w
    shared = w.ndim == 1
    rows = as_rows(x, lead), as_rows(y, lead), w if shared else as_rows(w, lead)
    z = run_program(form.calls[False, shared], rows, None, backend)
    return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])


def broadcast_at_once(form: Description, operands: Sequence[Tensor], backend: str | None) -> Tensor | None:
    """Run a program on plain operands ``[..., width]`` with broadcast leading axes; None if `at_once` cannot."""
    if backend is not None and backend not in WITH_KERNELS:
        return None
    dtype, leads = operands[0].dtype, []
    for (width, rows), t in zip(form.shapes, operands, strict=True):
        if t.dtype is not dtype or not t.ndim or t.shape[-1] != width:
            return None
        if rows is not None:
            leads.append(t.shape[:-1])
    try:
        lead = torch.broadcast_shapes(*leads)
    except RuntimeError:
        return None
    flat = [t if rows is None else as_rows(t, lead) for (_, rows), t in zip(form.shapes, operands, strict=True)]
    results = at_once(form, flat, None, backend)
    return None if results is None else results[0].reshape(*lead, results[0].shape[-1])
