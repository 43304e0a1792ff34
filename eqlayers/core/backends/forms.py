"""Runs forms: chooses the backend by device or by name, and caches its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eqlayers_kernels.forms.product import TABLED

from ..dtypes import ACCUMULATE
from ..errors import BackendError
from ..forms.description import Description, describe, short
from ..forms.request import Request, Runner, Sizes
from . import cpu
from .ahead import WATCHERS, watched
from .operands import check_operands, shape_of, with_table
from .registry import find, select
from .rows import gathered, summed
from .tables import endpoints_of

STRIDED = torch.strided
#: The backend that runs forms on each type of device.
BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}
#: Rows of x, y, w and z for which kernels of products exist: row by row, and along the edges of a graph.
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
    """Check the operands of a form, and run it: the implementation of the torch operator ``eqlayers::form``.

    ``graph`` are the tables of :func:`.tables.edge_tables`, or None; for keys see
    :mod:`eqlayers.core.forms.description`. Errors are as of `check_operands`; BackendError if the compiler failed;
    ConfigError for an unknown key.
    """
    description = describe(key)
    sizes = with_table(description.form, operands, Sizes(rows, num_src, num_dst))
    check_operands(description.form, operands, graph, sizes)
    first = operands[0]
    home = BY_DEVICE["cpu" if first.is_cpu else "cuda"]
    if backend and backend != home:  # a kernel for another device would read invalid addresses
        if find(backend).kernels is None:
            raise BackendError(f"backend must run whole forms here, got {backend!r}. Call it through a layer.")
        select(description.request(first.dtype, first.device), backend)
    runner = find_runner(description, backend or home, first, graph is not None, deterministic)
    assert runner is not None
    return list(runner(operands, graph, sizes))


def fits(description: Description, operands: Sequence[Tensor], sizes: Sizes) -> bool:
    """Whether plain operands of equal dtype pass `check_operands`, so that a kernel can read them directly."""
    first, shapes = operands[0], description.shapes
    dtype, is_cpu = first.dtype, first.is_cpu
    if dtype not in ACCUMULATE or len(shapes) != len(operands) or not (is_cpu or first.is_cuda):
        return False
    for (width, index), t in zip(shapes, operands, strict=True):
        if t.shape != ((width,) if index is None else (sizes[index], width)):
            return False
        if width and not (t.dtype is dtype and t.is_cpu is is_cpu and t.layout is STRIDED):
            return False
        if width and not (is_cpu or t.device == first.device):
            return False
    return True


#: Kernels of this process, by the properties of a call, and by request.
RUNNERS: dict[Any, Runner] = {}


def find_runner(
    description: Description, name: str, like: Tensor, graph: bool, deterministic: bool, named: str | None = ""
) -> Runner | None:
    """The cached kernels of a form on a backend, for operands of the dtype and on the device of ``like``.

    ``named`` is the backend that the caller named, or None; or empty if the backend was chosen before. Kernels that
    are not cached are compiled if ``name`` is the chosen backend, else the result is None. BackendError if the compiler
    fails or the named backend refuses.
    """
    if not deterministic and torch.are_deterministic_algorithms_enabled():
        deterministic = True
    lookup = description.key, name, like.dtype, None if like.is_cpu else like.device, graph, deterministic
    runner = RUNNERS.get(lookup)
    if runner is None or WATCHERS:
        request = Request(description.form, description.key, like.dtype, like.device, name, graph, deterministic)
        if named != "" and select(request, named).name != name:
            return None
        runner = _MAKERS[description.form.family](request)
        if not WATCHERS:
            RUNNERS[lookup] = runner
    return runner


def _of_product(request: Request) -> Runner:
    form = request.form
    if not form.task.results:
        return lambda operands, graph, sizes: []
    whole = request.backend == "cpu" and cpu.is_map(form)
    if "z" in form.task.tangents and not (whole or (request.backend == "cpu" and form.of_nodes and form.channelwise)):
        return _of_sum(replace(request, form=form.apart()))
    if form.rows not in KERNELS and not whole:
        return _row_by_row(request)
    # only gradients of x along a graph may have no fixed order
    ordered = request.deterministic or not (request.graph and "x" in form.task.results)
    return _cached(replace(request, key=form.name, deterministic=ordered))


def _of_formula(request: Request) -> Runner:
    return _cached(replace(request, key=short(request.key), deterministic=True))


def _cached(request: Request) -> Runner:
    def kernels() -> Runner:
        runner = RUNNERS.get(request)
        if runner is None:
            make = find(request.backend).kernels
            assert make is not None
            runner = RUNNERS[request] = make(request)
        return runner

    return watched(request, kernels)


def _row_by_row(request: Request) -> Runner:
    """Run a product for whose rows no kernel exists: gather operands, run row by row, sum results."""
    form, ordered = request.form, request.deterministic
    plain = _of_product(replace(request, form=replace(form, rows=("each",) * 4), graph=False))

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sizes) -> list[Tensor]:
        endpoints = None if graph is None else endpoints_of(graph, sizes)
        wide = [
            gathered(o.rows, t, endpoints).expand(sizes.rows, -1) for o, t in zip(form.operands, operands, strict=True)
        ]
        results = plain(wide, None, sizes)
        return [summed(one.rows, t, endpoints, ordered) for one, t in zip(form.results, results, strict=True)]

    return run


def _of_sum(request: Request) -> Runner:
    form = request.form
    parts = [(_MAKERS[part.family](replace(request, form=part)), picks, targets) for part, picks, targets in form.parts]
    if [one[1:] for one in parts] == [(tuple(range(len(form.operands))), tuple(range(len(form.results))))]:
        return parts[0][0]

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
    """Name of the backend that runs a form; warns once if only a missing C compiler excludes backend cpu."""
    request = Request(describe(key).form if key else None, key, dtype, torch.device(device))
    name = select(request, backend).name
    if backend is None and name != "cpu" and device == "cpu" and (reason := cpu.refuse(request)) is not None:
        cpu.warn_once(reason)
    return name
