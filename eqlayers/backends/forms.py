"""Forms and the tables of graphs, whoever runs them: the tensors' device says who, or the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eqlayers_kernels.c.run import edges as c_edges
from eqlayers_kernels.forms.formula import Operand
from eqlayers_kernels.forms.product import AnyForm, ProductForm, SumForm
from eqlayers_kernels.triton.run import edges as triton_edges

from ..errors import BackendError
from ..forms.keys import find as find_form
from ..forms.program import FormCall, known
from . import cpu, cpu_formulas, triton_formulas
from .operands import check_edges, check_operands, shape_of
from .registry import FormUse, find, select
from .triton import edges_of_tables

#: The backend that runs forms on each type of device.
BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}
#: Rows of x, y, w and z that kernels of products have: row by row, and along the edges of a graph.
KERNELS = {(x, "each", w, z) for x, z in (("each", "each"), ("src", "dst")) for w in ("each", "one")}
#: Who finds the kernels of a formula, by backend.
FORMULAS = {"cpu": cpu_formulas.find_runner, "triton": triton_formulas.find_runner}


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
        BackendError: The compiler failed, or the backend runs no such forms. ConfigError: Nobody knows the key.
        IndexRangeError: The tables are others than those of its rows; found on CPU only.
    """
    form, sizes = find_form(key), (rows, num_src, num_dst)
    check_operands(form, operands, graph, sizes)
    first = operands[0]
    home = BY_DEVICE[first.device.type]
    name = backend or home
    if find(name).form is None:
        raise BackendError(f"backend must run whole forms here, got {backend!r}. Call it through a layer.")
    if name != home:  # on another device than its own it would read addresses that are none
        program = known(form.program) if isinstance(form, ProductForm) else ""
        select(FormCall(first.dtype, first.device.type, program), name)
    return _run(form, key, operands, graph, sizes, name, deterministic)


def _run(
    form: AnyForm,
    key: str,
    operands: Sequence[Tensor],
    graph: Tensor | None,
    sizes: Sequence[int],
    backend: str,
    deterministic: bool,
) -> list[Tensor]:
    if isinstance(form, ProductForm):
        return _run_product(form, operands, graph, sizes, backend, deterministic)
    if isinstance(form, SumForm):
        return _run_sum(form, key, operands, graph, sizes, backend, deterministic)
    runner = FORMULAS[backend](key, form, operands[0].dtype, graph is not None, operands[0].device)
    return runner(operands, graph, sizes)


def _run_product(
    form: ProductForm,
    operands: Sequence[Tensor],
    graph: Tensor | None,
    sizes: Sequence[int],
    backend: str,
    deterministic: bool,
) -> list[Tensor]:
    if not form.kind.results:
        return []
    if form.rows not in KERNELS:
        return _run_row_by_row(form, operands, graph, sizes, backend, deterministic)
    first, rows = operands[0], sizes[0]
    use = FormUse(known(form.program), form.kind, first.dtype, graph is not None, form.rows[2] == "one", deterministic)
    count = {"x": rows, "y": rows, "w": rows, "z": rows}
    if graph is not None:
        count["x"], count["z"] = sizes[1:]
    runner = find(backend).form
    assert runner is not None
    found = runner(use, first.device)(dict(zip(form.names, operands, strict=True)), graph, count)
    return [found[name] for name in form.kind.results]


def _run_row_by_row(
    form: ProductForm,
    operands: Sequence[Tensor],
    graph: Tensor | None,
    sizes: Sequence[int],
    backend: str,
    deterministic: bool,
) -> list[Tensor]:
    """A product with rows that no kernel has of its own: gathered before, summed after, in the order of the batch."""
    rows, num_src, num_dst = sizes
    ends = {} if graph is None else ends_of(graph, rows, num_src, num_dst)

    def spread(one: Operand, t: Tensor) -> Tensor:
        if one.rows in ends:
            return t.index_select(0, ends[one.rows])
        return t.expand(rows, -1) if one.rows == "one" else t

    given = [spread(one, t) for one, t in zip(form.operands, operands, strict=True)]
    plain = replace(form, rows=("each",) * 4)
    found = _run_product(plain, given, None, (rows, 0, 0), backend, deterministic)
    out = []
    for one, t in zip(form.results, found, strict=True):
        if one.rows in ends:
            t = t.new_zeros(shape_of(one, sizes)).index_add(0, ends[one.rows], t)
        out.append(t.sum(0) if one.rows == "one" else t)
    return out


def ends_of(graph: Tensor, rows: int, num_src: int, num_dst: int) -> dict[str, Tensor]:
    """The sender and the receiver of every row, ``[rows]`` each.

    Raises:
        IndexRangeError: The tables are others than those of these rows; found on CPU only.
    """
    if graph.device.type == "cpu":
        index = edges_of_tables(graph, rows, num_src, num_dst)
        return {"src": index[0], "dst": index[1]}
    found = triton_edges.unpack(graph, rows, num_src, num_dst)
    return {
        name: torch.empty_like(table.edges).scatter_(0, table.edges, table.others)
        for name, table in (("src", found["by_dst"]), ("dst", found["by_src"]))
    }


def _run_sum(
    form: SumForm,
    key: str,
    operands: Sequence[Tensor],
    graph: Tensor | None,
    sizes: Sequence[int],
    backend: str,
    deterministic: bool,
) -> list[Tensor]:
    out: list[Tensor | None] = [None] * len(form.results)
    for number, (part, picks, targets) in enumerate(form.parts):
        own = [operands[pick] for pick in picks]
        for target, value in zip(
            targets, _run(part, f"{key}[{number}]", own, graph, sizes, backend, deterministic), strict=True
        ):
            known = out[target]
            out[target] = value if known is None else known + value
    like = operands[0]
    return [like.new_zeros(shape_of(one, sizes)) if t is None else t for t, one in zip(out, form.results, strict=True)]


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


def length_of(edge_index: Tensor, num_src: int, num_dst: int) -> int:
    """Elements of :func:`edge_tables`, which raises the same errors but for what lies inside."""
    check_edges(edge_index, num_src, num_dst)
    if edge_index.device.type == "cpu":
        return c_edges.tables(edge_index.shape[1], num_src, num_dst).length
    return triton_edges.length(edge_index.shape[1], num_src, num_dst)
