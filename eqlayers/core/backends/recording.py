"""A context manager that replaces the kernel calls of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from ..forms.request import Request, Runner

#: The results of a form, in order.
Results = Sequence[Tensor]
#: Replaces kernels: called with the request, a function that returns its kernels, and the arguments of the kernels.
Instead = Callable[..., Results]
#: Active replacements, innermost last.
WATCHERS: list[Instead] = []


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
        find = partial(_same, partial(watcher, request, find))
    return find()


def _same(runner: Runner) -> Runner:
    return runner
