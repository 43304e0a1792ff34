"""Compiles what a step will ask of a CPU or a GPU, before the step runs: on all processors at once, and counted.

The step runs once with kernels that return ones. So it must work on copies of the tensors that it changes, and keep
nothing. The kernels of a CPU are compiled without a call. Triton's are called, with the operands of the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress

from torch import Tensor

from ..errors import BackendError
from ..forms.request import Request, Runner, Sizes
from .operands import shape_of
from .recording import instead

MOST_THREADS = 64  # that print kernels and wait for the compiler
_log = logging.getLogger(__name__)
_Wanted = dict[Request, Callable[[], object]]


def compile_ahead(step: Callable[[], object]) -> int:
    """Compile the kernels that a step on a CPU or a GPU needs: the number of kinds of calls that it came to.

    It runs once, with ones for the results of layers. What it raises is not raised: kernels that it did not come to are
    compiled at their first call.
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


def _returning_ones(wanted: _Wanted) -> AbstractContextManager[None]:
    def ones(
        request: Request,
        find: Callable[[], Runner],
        operands: Sequence[Tensor],
        tables: Tensor | None,
        sizes: Sizes,
    ) -> list[Tensor]:
        detached = [tensor.detach() for tensor in operands]
        # to find the kernels compiles them on a CPU, to call them where Triton compiles
        wanted.setdefault(request, find if request.backend == "cpu" else lambda: find()(detached, tables, sizes))
        return [operands[0].new_ones(shape_of(one, sizes)) for one in request.form.results]

    return instead(ones)
