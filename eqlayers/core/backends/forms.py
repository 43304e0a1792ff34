"""Forms: the device of the tensors, or the caller, chooses the backend, whose kernels are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eqlayers_kernels.forms.product import TABLED

from ..dtypes import ACCUMULATE
from ..errors import BackendError
from ..forms.description import Description
from ..forms.keys import describe, short
from ..forms.request import Request, Runner, Sizes
from . import cpu
from .operands import check_operands, shape_of, with_table
from .recording import WATCHERS, watched
from .registry import find, select
from .rows import gathered, summed
from .tables import ends_of

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
    """Look at the operands of a form, and run it: what the torch operator does, which any code may call.

    ``graph`` are the tables of :func:`.tables.edge_tables`, or None; for keys see :mod:`eqlayers.core.forms.keys`.
    Errors are as of `check_operands`; BackendError if the compiler failed; ConfigError for an unknown key.
    """
    description = describe(key)
    sizes = with_table(description.form, operands, Sizes(rows, num_src, num_dst))
    check_operands(description.form, operands, graph, sizes)
    first = operands[0]
    home = BY_DEVICE["cpu" if first.is_cpu else "cuda"]
    if backend and backend != home:  # on another device than its own it would read addresses that are none
        if find(backend).kernels is None:
            raise BackendError(f"backend must run whole forms here, got {backend!r}. Call it through a layer.")
        select(description.request(first.dtype, first.device), backend)
    runner = find_runner(description, backend or home, first, graph is not None, deterministic)
    assert runner is not None
    return list(runner(operands, graph, sizes))


def fits(description: Description, operands: Sequence[Tensor], sizes: Sizes) -> bool:
    """Whether a kernel reads plain operands as they are: what `check_operands` asks, of tensors of one dtype."""
    first, shapes = operands[0], description.shapes
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


#: Kernels of this process, by all that a call asks for, and by request.
RUNNERS: dict[Any, Runner] = {}


def find_runner(
    description: Description, name: str, like: Tensor, graph: bool, deterministic: bool, named: str | None = ""
) -> Runner | None:
    """The kernels of a form on a backend, for operands of the dtype and on the device of ``like``; they are kept.

    ``named`` is the backend that the caller named, or None: kernels that are not there yet are made if the choice then
    falls on ``name``, else the result is None. It is empty where the choice was made before. BackendError if the
    compiler fails or the named backend refuses.
    """
    if not deterministic and torch.are_deterministic_algorithms_enabled():
        deterministic = True
    asked = description.key, name, like.dtype, None if like.is_cpu else like.device, graph, deterministic
    runner = RUNNERS.get(asked)
    if runner is None or WATCHERS:
        request = Request(description.form, description.key, like.dtype, like.device, name, graph, deterministic)
        if named != "" and select(request, named).name != name:
            return None
        runner = _runner_of(request)
        if not WATCHERS:
            RUNNERS[asked] = runner
    return runner


def _runner_of(request: Request) -> Runner:
    return _MAKERS[request.form.family](request)


def _of_product(request: Request) -> Runner:
    form = request.form
    if not form.kind.results:
        return _nothing
    if form.rows not in KERNELS:
        return _row_by_row(request)
    ordered = request.deterministic or not (request.graph and "x" in form.kind.results)  # else there is one order
    return _kept(replace(request, key=form.name, deterministic=ordered))


def _of_formula(request: Request) -> Runner:
    return _kept(replace(request, key=short(request.key), deterministic=True))


def _kept(request: Request) -> Runner:
    def kernels() -> Runner:
        runner = RUNNERS.get(request)
        if runner is None:
            make = find(request.backend).kernels
            assert make is not None
            runner = RUNNERS[request] = make(request)
        return runner

    return watched(request, kernels)


def _nothing(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sizes) -> list[Tensor]:
    return []


def _row_by_row(request: Request) -> Runner:
    """A product with rows that no kernel has of its own: gathered before, summed after."""
    form, ordered = request.form, request.deterministic
    plain = _of_product(replace(request, form=replace(form, rows=("each",) * 4), graph=False))

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sizes) -> list[Tensor]:
        ends = None if graph is None else ends_of(graph, sizes)
        wide = [
            gathered(one.rows, t, ends).expand(sizes.rows, -1) for one, t in zip(form.operands, operands, strict=True)
        ]
        results = plain(wide, None, sizes)
        return [summed(one.rows, t, ends, ordered) for one, t in zip(form.results, results, strict=True)]

    return run


def _of_sum(request: Request) -> Runner:
    form = request.form
    parts = [(_runner_of(replace(request, form=part)), picks, targets) for part, picks, targets in form.parts]

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sizes) -> list[Tensor]:
        out: list[Tensor | None] = [None] * len(form.results)
        for runner, picks, targets in parts:
            results = runner([operands[pick] for pick in picks], graph, sizes)
            for target, value in zip(targets, results, strict=True):
                so_far = out[target]
                out[target] = value if so_far is None else so_far + value
        return [
            operands[0].new_zeros(shape_of(one, sizes)) if t is None else t
            for t, one in zip(out, form.results, strict=True)
        ]

    return run


_MAKERS: dict[str, Callable[[Request], Runner]] = {"product": _of_product, "sum": _of_sum, "formula": _of_formula}


@torch.compiler.assume_constant_result
def chosen(device: str, dtype: torch.dtype, backend: str | None, key: str) -> str:
    """Name of the backend that runs a form; says once if generated C would, and only a compiler is missing."""
    request = Request(describe(key).form if key else None, key, dtype, torch.device(device))
    name = select(request, backend).name
    if backend is None and name != "cpu" and device == "cpu" and (reason := cpu.refuse(request)) is not None:
        cpu.warn_once(reason)
    return name
