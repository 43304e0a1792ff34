"""Forms and the tables of graphs; the device of the tensors, or the caller, chooses the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.run import edges as c_edges
from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.forms.product import TABLED, AnyForm, ProductForm, SumForm
from eqlayers_kernels.triton.run import edges as triton_edges

from ..dtypes import ACCUMULATE
from ..errors import BackendError
from ..forms.description import Description
from ..forms.keys import describe, short
from ..forms.program import FormCall
from . import cpu
from .multilinear import ends_of as ends_of_tables
from .operands import check_edges, check_operands, check_places, shape_of, with_table
from .recording import WATCHERS, watched
from .registry import find, select
from .request import Request, Runner
from .rows import Ends, gathered, summed
from .triton import edges_of_tables

#: The backend that runs forms on each type of device.
BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}
#: Rows of x, y, w and z that kernels of products have: row by row, and along the edges of a graph.
KERNELS = {(x, "each", w, z) for x, z in (("each", "each"), ("src", "dst")) for w in ("each", "one")} | {TABLED}


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
        key: See :mod:`eqlayers.core.forms.keys`.
        backend: Who runs it; empty for the one of the tensors' device.
        deterministic: Whether sums must have a fixed order.

    Returns:
        The results, ``[rows, width]`` or ``[width]`` each.

    Raises:
        ShapeError, DTypeError, DeviceError: The tensors do not fit the form.
        BackendError: The compiler failed, or the backend runs no such forms. ConfigError: The key is unknown.
        IndexRangeError: The tables do not fit its rows; checked on CPU only.
    """
    call = describe(key)
    sizes = with_table(call.form, operands, (rows, num_src, num_dst))
    check_operands(call.form, operands, graph, sizes)
    first = operands[0]
    home = BY_DEVICE["cpu" if first.is_cpu else "cuda"]
    name = backend or home
    if name != home:  # on another device than its own it would read addresses that are none
        if find(name).kernels is None:
            raise BackendError(f"backend must run whole forms here, got {backend!r}. Call it through a layer.")
        select(FormCall(first.dtype, first.device.type, call.program), name)
    return list(find_runner(call, name, first, graph is not None, deterministic)(operands, graph, sizes))


def fits(call: Description, operands: Sequence[Tensor], sizes: Sequence[int]) -> bool:
    """Whether these are operands that a kernel reads as they are: what `check_operands` asks, of tensors of one dtype.

    Args:
        call: What they are for.
        operands: In its order, plain.
        sizes: Rows of the batch, senders and receivers, and of a table if there is one.
    """
    first, shapes = operands[0], call.shapes
    dtype, is_cpu = first.dtype, first.is_cpu
    if dtype not in ACCUMULATE or len(shapes) != len(operands) or not (is_cpu or first.is_cuda):
        return False
    for (width, place), t in zip(shapes, operands, strict=True):
        shape = t.shape
        if place is None:
            if shape != (width,):
                return False
        elif len(shape) != 2 or shape[1] != width or shape[0] != sizes[place]:
            return False
        if width and (t.dtype is not dtype or t.layout is not torch.strided):
            return False
        if width and (t.is_cpu is not is_cpu or not (is_cpu or t.device == first.device)):
            return False
    return True


#: Kernels of this process, by all that a call asks for: by its form's key, and by request.
RUNNERS: dict[Any, Runner] = {}


def find_runner(call: Description, name: str, like: Tensor, graph: bool, deterministic: bool) -> Runner:
    """The kernels of a form on a backend, for operands of the dtype and on the device of ``like``; they are kept.

    Raises:
        BackendError: The compiler failed.
    """
    if not deterministic and torch.are_deterministic_algorithms_enabled():
        deterministic = True
    asked = call.key, name, like.dtype, None if like.is_cpu else like.device, graph, deterministic
    found = RUNNERS.get(asked)
    if found is None or WATCHERS:
        found = _runner_of(call.form, call.key, _Asked(name, like.device, like.dtype, graph, deterministic))
        if not WATCHERS:
            RUNNERS[asked] = found
    return found


class _Asked(NamedTuple):
    """The request of a call, beside its form; see `Request`."""

    backend: str
    device: torch.device
    dtype: torch.dtype
    graph: bool
    deterministic: bool


def _runner_of(form: AnyForm, key: str, asked: _Asked) -> Runner:
    make: dict[str, Callable[[Any, str, _Asked], Runner]] = {
        "product": _of_product,
        "sum": _of_sum,
        "formula": lambda form, key, asked: _of_request(form, short(key), asked._replace(deterministic=True)),
    }
    return make[form.family](form, key, asked)


def _of_product(form: ProductForm, key: str, asked: _Asked) -> Runner:
    if not form.kind.results:
        return _nothing
    if form.rows not in KERNELS:
        return _row_by_row(form, key, asked)
    ordered = asked.deterministic or not (asked.graph and "x" in form.kind.results)  # else there is one order anyway
    return _of_request(form, form.name, asked._replace(deterministic=ordered))


def _of_request(form: ProductForm | Formula, key: str, asked: _Asked) -> Runner:
    request = Request(form, key, *asked)

    def kernels() -> Runner:
        found = RUNNERS.get(request)
        if found is None:
            makers = find(request.backend).kernels
            assert makers is not None
            found = RUNNERS[request] = makers[form.family](request)
        return found

    return watched(request, kernels)


def _nothing(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
    return []


def _row_by_row(form: ProductForm, key: str, asked: _Asked) -> Runner:
    """A product with rows that no kernel has of its own: gathered before, summed after."""
    plain = _of_product(replace(form, rows=("each",) * 4), key, asked._replace(graph=False))

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
        ends = None if graph is None else ends_of(graph, *sizes)
        given = [
            gathered(one.rows, t, ends).expand(sizes[0], -1) for one, t in zip(form.operands, operands, strict=True)
        ]
        found = plain(given, None, sizes)
        return [summed(one.rows, t, ends, asked.deterministic) for one, t in zip(form.results, found, strict=True)]

    return run


def _of_sum(form: SumForm, key: str, asked: _Asked) -> Runner:
    parts = [(_runner_of(part, key, asked), picks, targets) for part, picks, targets in form.parts]

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
        out: list[Tensor | None] = [None] * len(form.results)
        for runner, picks, targets in parts:
            found = runner([operands[pick] for pick in picks], graph, sizes)
            for target, value in zip(targets, found, strict=True):
                so_far = out[target]
                out[target] = value if so_far is None else so_far + value
        return [
            operands[0].new_zeros(shape_of(one, sizes)) if t is None else t
            for t, one in zip(out, form.results, strict=True)
        ]

    return run


def ends_of(graph: Tensor, rows: int, num_src: int, num_dst: int) -> Ends:
    """The sender and the receiver of every row.

    Raises:
        IndexRangeError: The tables do not fit these rows; checked on CPU only.
    """
    if graph.device.type != "cpu":
        return ends_of_tables(triton_edges.unpack(graph, rows, num_src, num_dst))
    src, dst = edges_of_tables(graph, rows, num_src, num_dst)
    return Ends(src, dst, num_src, num_dst)


_settled: dict[tuple[str, torch.dtype, str | None, str, str], str] = {}


@torch.compiler.assume_constant_result
def chosen(device: str, dtype: torch.dtype, backend: str | None, key: str) -> str:
    """Name of the backend that runs a form; says once if generated C would, and only a compiler is missing."""
    use = (device, dtype, backend, key, compiler.wanted())
    name = _settled.get(use) if backend is None or isinstance(backend, str) else None
    if name is None:
        call = FormCall(dtype, device, key)
        name = select(call, backend).name
        if name == BY_DEVICE.get(device):  # it has what it needs; others are asked again, for what may come
            _settled[use] = name
        elif backend is None and device == "cpu" and (reason := cpu.refuse(call)) is not None:
            cpu.warn_once(reason)
    return name


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
