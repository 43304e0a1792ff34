"""Compiles what a step will ask of the CPU, before the step runs: on all processors at once, and their number is known.

The step runs once with kernels that return ones. So it must work on copies of the tensors that it changes, and keep
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.forms.program import OPERANDS

from ..errors import BackendError
from ..forms.program import find_form
from . import cpu, cpu_formulas
from .forms import FORMULAS
from .registry import BACKENDS, FormulaRun, FormUse, Runner

MOST_THREADS = 64  # that print kernels and wait for the compiler
_log = logging.getLogger(__name__)
_Wanted = dict[tuple[object, ...], Callable[[], object]]


def compile_ahead(step: Callable[[], object]) -> int:
    """Compile the kernels that a step on CPUs needs.

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
    backend, formulas = BACKENDS["cpu"], FORMULAS["cpu"]
    BACKENDS["cpu"] = replace(backend, form=lambda use, device: _form(use, device, wanted))

    def formula(base: Formula, key: str, dtype: torch.dtype, graph: bool, device: torch.device) -> FormulaRun:
        wanted[key, dtype, graph] = lambda: cpu_formulas.find_runner(base, key, dtype, graph, device)
        return lambda operands, tables, sizes: _ones_of_formula(base, operands[0], sizes)

    FORMULAS["cpu"] = formula
    try:
        yield
    finally:
        BACKENDS["cpu"], FORMULAS["cpu"] = backend, formulas


def _form(use: FormUse, device: torch.device, wanted: _Wanted) -> Runner:
    wanted[use,] = lambda: cpu.find_runner(use, device)
    widths = dict(zip(OPERANDS, find_form(use.form).program.widths, strict=True))
    if use.reading is not None:
        widths |= {"t": widths["w"], "c": use.reading.reads}

    def run(tensors: Mapping[str, Tensor], graph: Tensor | None, rows: Mapping[str, int]) -> dict[str, Tensor]:
        first = next(iter(tensors.values()))
        shapes = {name: [rows[name], widths[name]] for name in use.kind.results}
        if use.shared and "w" in shapes:
            shapes["w"] = [widths["w"]]
        return {name: first.new_ones(shape) for name, shape in shapes.items()}

    return run


def _ones_of_formula(base: Formula, like: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    rows, senders, receivers = sizes
    count = {"each": rows, "src": senders, "dst": receivers}
    return [like.new_ones([one.width] if one.rows == "one" else [count[one.rows], one.width]) for one in base.results]
