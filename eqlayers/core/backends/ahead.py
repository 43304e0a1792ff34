"""Replaces the kernel calls of a block, and so compiles the kernels of a step before the step runs, all at once.

The step runs once with kernels that return ones, so it must change copies of tensors only, and store no results. C
kernels are then compiled without a call; Triton kernels are called with the operands of the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

from torch import Tensor

from ..errors import BackendError
from ..forms.request import Request, Runner, Sizes
from .operands import shape_of

#: The results of a form, in order.
Results = Sequence[Tensor]
#: Replaces kernels: called with the request, a function that returns its kernels, and the arguments of the kernels.
Instead = Callable[..., Results]
#: Active replacements, innermost last.
WATCHERS: list[Instead] = []
MOST_THREADS = 64  # that print kernels and wait for the compiler
_log = logging.getLogger(__name__)


@contextmanager
def instead(of_kernels: Instead) -> Iterator[None]:
    """A block in which every call of a form is ``of_kernels(request, find, operands, tables, sizes)``."""
    WATCHERS.append(of_kernels)
    try:
        yield
    finally:
        WATCHERS.remove(of_kernels)


def watched(request: Request, find: Callable[[], Runner]) -> Runner:
    """The runner of a request, wrapped by all active watchers."""
    for watcher in WATCHERS:
        find = partial(partial, watcher, request, find)  # its call returns the watcher with its arguments, not called
    return find()


def compile_ahead(step: Callable[[], object]) -> int:
    """Compile the kernels that a step on a CPU or a GPU needs; returns the number of distinct requests.

    The step runs once, with ones for the results of layers. Its errors are not raised: kernels of calls that it did not
    reach are compiled at their first call.
    """
    calls: dict[Request, Callable[[], object]] = {}

    def return_ones(
        request: Request, find: Callable[[], Runner], operands: Sequence[Tensor], tables: Tensor | None, sizes: Sizes
    ) -> list[Tensor]:
        detached = [tensor.detach() for tensor in operands]
        # on a CPU, finding the kernels compiles them; Triton compiles at the call
        calls.setdefault(request, find if request.backend == "cpu" else lambda: find()(detached, tables, sizes))
        return [operands[0].new_ones(shape_of(one, sizes)) for one in request.form.results]

    with instead(return_ones):
        try:
            step()
        except Exception as error:  # of a check of numbers, which are wrong here
            _log.debug("the kernels of a step are not all known, as it ended with %r", error)
    if calls:
        pool = ThreadPoolExecutor(min(len(calls), MOST_THREADS))
        try:
            for future in [pool.submit(make) for make in calls.values()]:
                with suppress(BackendError):  # the first call raises it again
                    future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return len(calls)
