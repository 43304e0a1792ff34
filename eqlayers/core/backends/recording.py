"""A record of the forms that a run asks for, seen where backends run them; nothing is checked otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from ..forms.request import Request, Runner

#: In the order of the form's results.
Results = Sequence[Tensor]
#: Stands for the kernels of a request, which the second argument finds: called with what these are called with.
Instead = Callable[..., Results]
#: Innermost last.
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
    """The runner, whose calls watchers see."""
    for one in WATCHERS:
        find = partial(_same, partial(one, request, find))
    return find()


def _same(runner: Runner) -> Runner:
    return runner
