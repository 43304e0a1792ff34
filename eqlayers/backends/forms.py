"""Forms and the tables of graphs; the device of the tensors, or the caller, chooses the backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.c.run import edges as c_edges
from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.forms.product import TABLED, ProductForm, SumForm
from eqlayers_kernels.triton.run import edges as triton_edges

from ..errors import BackendError
from ..forms.keys import find as find_form
from ..forms.program import FormCall, register_program
from . import cpu, cpu_formulas, triton_formulas
from .multilinear import ends_of as ends_of_tables
from .operands import check_edges, check_operands, check_places, shape_of, with_table
from .registry import FormulaFinder, FormUse, find, select
from .rows import Ends, gathered, summed
from .triton import edges_of_tables

#: The backend that runs forms on each type of device.
BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}
#: Rows of x, y, w and z that kernels of products have: row by row, and along the edges of a graph.
KERNELS = {(x, "each", w, z) for x, z in (("each", "each"), ("src", "dst")) for w in ("each", "one")} | {TABLED}
#: Who finds the kernels of a formula, by backend.
FORMULAS: dict[str, FormulaFinder] = {"cpu": cpu_formulas.find_runner, "triton": triton_formulas.find_runner}


def run_form(
    operands: Sequence[Tensor],
    graph: Tensor | None,
    rows: int,
    num_src: int,
    num_dst: int,
    key: str,
    backend: str = "",
    deterministic: bool = True,
) -> list[Tensor]:
    """Look at the operands of a form, and run it.

    Args:
        operands: ``[rows, width]`` each as the form says, ``[width]`` for one row that serves all.
        graph: The tables of :func:`edge_tables`; None if no operand or result has rows of senders or receivers.
        rows, num_src, num_dst: Rows of the batch, senders and receivers.
        key: See :mod:`eqlayers.forms.keys`.
        backend: Who runs it; empty for the one of the tensors' device.
        deterministic: Whether sums must have a fixed order.

    Returns:
        The results, ``[rows, width]`` or ``[width]`` each.

    Raises:
        ShapeError, DTypeError, DeviceError: The tensors do not fit the form.
        BackendError: The compiler failed, or the backend runs no such forms. ConfigError: The key is unknown.
        IndexRangeError: The tables do not fit its rows; checked on CPU only.
    """
    form = find_form(key)
    sizes = with_table(form, operands, (rows, num_src, num_dst))
    check_operands(form, operands, graph, sizes)
    first = operands[0]
    home = BY_DEVICE["cpu" if first.is_cpu else "cuda"]
    name = backend or home
    if name != home:  # on another device than its own it would read addresses that are none
        if find(name).form is None:
            raise BackendError(f"backend must run whole forms here, got {backend!r}. Call it through a layer.")
        program = register_program(form.program) if isinstance(form, ProductForm) else ""
        select(FormCall(first.dtype, first.device.type, program), name)
    if isinstance(form, Formula):
        return FORMULAS[name](form, key, first.dtype, graph is not None, first.device)(operands, graph, sizes)
    how = _How(graph, sizes, name, deterministic)
    return _run_product(form, operands, how) if isinstance(form, ProductForm) else _run_sum(form, operands, how)


class _How(NamedTuple):
    """The arguments that all parts of a call share."""

    graph: Tensor | None
    sizes: Sequence[int]
    backend: str
    deterministic: bool


def _run_product(form: ProductForm, operands: Sequence[Tensor], how: _How) -> list[Tensor]:
    if not form.kind.results:
        return []
    if form.rows not in KERNELS:
        return _run_row_by_row(form, operands, how)
    first, graph, (rows, num_src, num_dst, *table) = operands[0], how.graph, how.sizes
    shared, key = form.rows[2] == "one", register_program(form.program)
    use = FormUse(key, form.kind, first.dtype, graph is not None, shared, how.deterministic, form.reading)
    count = {"x": rows, "y": rows, "w": rows, "z": rows}
    if graph is not None:
        count["x"], count["z"] = num_src, num_dst
    if table:
        count["c"], (count["t"],) = rows, table
    runner = find(how.backend).form
    assert runner is not None
    found = runner(use, first.device)(dict(zip(form.names, operands, strict=True)), graph, count)
    return [found[name] for name in form.kind.results]


def _run_row_by_row(form: ProductForm, operands: Sequence[Tensor], how: _How) -> list[Tensor]:
    """A product with rows that no kernel has of its own: gathered before, summed after."""
    ends = None if how.graph is None else ends_of(how.graph, *how.sizes)
    given = [
        gathered(one.rows, t, ends).expand(how.sizes[0], -1) for one, t in zip(form.operands, operands, strict=True)
    ]
    plain = replace(form, rows=("each",) * 4)
    found = _run_product(plain, given, how._replace(graph=None))
    return [summed(one.rows, t, ends, how.deterministic) for one, t in zip(form.results, found, strict=True)]


def ends_of(graph: Tensor, rows: int, num_src: int, num_dst: int) -> Ends:
    """The sender and the receiver of every row.

    Raises:
        IndexRangeError: The tables do not fit these rows; checked on CPU only.
    """
    if graph.device.type != "cpu":
        return ends_of_tables(triton_edges.unpack(graph, rows, num_src, num_dst))
    src, dst = edges_of_tables(graph, rows, num_src, num_dst)
    return Ends(src, dst, num_src, num_dst)


def _run_sum(form: SumForm, operands: Sequence[Tensor], how: _How) -> list[Tensor]:
    out: list[Tensor | None] = [None] * len(form.results)
    for part, picks, targets in form.parts:
        own = [operands[pick] for pick in picks]
        found = _run_product(part, own, how) if isinstance(part, ProductForm) else _run_sum(part, own, how)
        for target, value in zip(targets, found, strict=True):
            so_far = out[target]
            out[target] = value if so_far is None else so_far + value
    return [
        operands[0].new_zeros(shape_of(one, how.sizes)) if t is None else t
        for t, one in zip(out, form.results, strict=True)
    ]


def edge_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """The edges ``[2, E]`` sorted by receiver and by sender, as the kernels of their device read them.

    Raises:
        ShapeError, DTypeError: ``edge_index`` is no ``[2, E]`` tensor of integers, or a number of nodes is negative.
        IndexRangeError: An index lies outside its nodes (found on CPU only).
    """
    check_edges(edge_index, num_src, num_dst)
    if edge_index.device.type == "cpu":
        return cpu.edge_tables(edge_index, num_src, num_dst)
    return triton_edges.pack(edge_index, num_src, num_dst)


def place_tables(graph: Tensor, edge_index: Tensor, place: Tensor, num_src: int, num_dst: int, places: int) -> Tensor:
    """The tables of a graph, and behind them the edges sorted by their places in a table of radial functions.

    Raises:
        ShapeError, DTypeError, DeviceError: The tensors do not fit a graph and its edges.
        IndexRangeError: A place lies outside the table (found on CPU only).
    """
    check_places(graph, edge_index, place, num_src, num_dst)
    if edge_index.device.type == "cpu":
        return cpu.place_tables_of(graph, edge_index, place, num_src, places)
    return torch.cat([graph, triton_edges.pack_places(edge_index, place, places)])


def length_of(edge_index: Tensor, num_src: int, num_dst: int) -> int:
    """Elements of :func:`edge_tables`, which raises the same errors but for what lies inside."""
    check_edges(edge_index, num_src, num_dst)
    if edge_index.device.type == "cpu":
        return c_edges.tables(edge_index.shape[1], num_src, num_dst).length
    return triton_edges.length(edge_index.shape[1], num_src, num_dst)
