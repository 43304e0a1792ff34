"""Compiles what a step will ask of a CPU or a GPU, before the step runs: on all processors at once, and counted.

The step runs once with kernels that return ones. So it must work on copies of the tensors that it changes, and keep
nothing. The kernels of a CPU are compiled without a call. Triton's are called, with the operands of the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.forms.program import OPERANDS

from ..errors import BackendError
from ..forms.program import find_form
from .forms import FORMULAS
from .registry import BACKENDS, Backend, FormulaFinder, FormulaRun, FormUse, Runner

MOST_THREADS = 64  # that print kernels and wait for the compiler
NAMES = ("cpu", "triton")  # backends that compile
_log = logging.getLogger(__name__)
_Wanted = dict[tuple[object, ...], Callable[[], object]]


def compile_ahead(step: Callable[[], object]) -> int:
    """Compile the kernels that a step on a CPU or a GPU needs.

    Args:
        step: Run once, with ones for the results of layers. What it raises is not raised: kernels that it did not come
            to are compiled at their first call.

    Returns:
        The number of kinds of calls that the step came to.

    Example:
        >>> from eqlayers import TensorProduct
        >>> layer = TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)])
        >>> compile_ahead(lambda: layer(torch.randn(5, 2), torch.randn(5, 3)))
        1
    """
    wanted: _Wanted = {}
    with _returning_ones(wanted):
        try:
            step()
        except Exception as error:  # of a check of numbers, which are wrong here
            _log.debug("the kernels of a step are not all known, as it ended with %r", error)
    if wanted:
        pool = ThreadPoolExecutor(min(len(wanted), MOST_THREADS))
        try:
            for made in [pool.submit(make) for make in wanted.values()]:
                with suppress(BackendError):  # raised again by the first call, whose place it names
                    made.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return len(wanted)


@contextmanager
def _returning_ones(wanted: _Wanted) -> Iterator[None]:
    backends, formulas = {name: BACKENDS[name] for name in NAMES}, {name: FORMULAS[name] for name in NAMES}
    for name in NAMES:
        BACKENDS[name] = replace(backends[name], form=_form(backends[name], wanted))
        FORMULAS[name] = _formula(name, formulas[name], wanted)
    try:
        yield
    finally:
        BACKENDS.update(backends)
        FORMULAS.update(formulas)


def _form(backend: Backend, wanted: _Wanted) -> Callable[[FormUse, torch.device], Runner]:
    find = backend.form
    assert find is not None

    def find_runner(use: FormUse, device: torch.device) -> Runner:
        widths = dict(zip(OPERANDS, find_form(use.form).program.widths, strict=True))
        if use.reading is not None:
            widths |= {"t": widths["w"], "c": use.reading.reads}

        def run(tensors: Mapping[str, Tensor], graph: Tensor | None, rows: Mapping[str, int]) -> dict[str, Tensor]:
            first = next(iter(tensors.values()))
            shapes = {name: [rows[name], widths[name]] for name in use.kind.results}
            if use.shared and "w" in shapes:
                shapes["w"] = [widths["w"]]
            own = {name: tensor.detach() for name, tensor in tensors.items()}
            wanted.setdefault((backend.name, use), _task(backend.name, partial(find, use, device), own, graph, rows))
            return {name: first.new_ones(shape) for name, shape in shapes.items()}

        return run

    return find_runner


def _formula(backend: str, find: FormulaFinder, wanted: _Wanted) -> FormulaFinder:
    def find_runner(base: Formula, key: str, dtype: torch.dtype, graph: bool, device: torch.device) -> FormulaRun:
        def run(operands: Sequence[Tensor], tables: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
            found = partial(find, base, key, dtype, graph, device)
            own = [tensor.detach() for tensor in operands]
            wanted.setdefault((backend, key, dtype, graph), _task(backend, found, own, tables, sizes))
            return _ones_of_formula(base, operands[0], sizes)

        return run

    return find_runner


def _task(backend: str, find: Callable[[], Callable[..., object]], *operands: object) -> Callable[[], object]:
    """The work that compiles the kernels of a call: to find them on a CPU, to call them where Triton compiles."""
    return find if backend == "cpu" else lambda: find()(*operands)


def _ones_of_formula(base: Formula, like: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    rows, senders, receivers = sizes
    count = {"each": rows, "src": senders, "dst": receivers}
    return [like.new_ones([one.width] if one.rows == "one" else [count[one.rows], one.width]) for one in base.results]
