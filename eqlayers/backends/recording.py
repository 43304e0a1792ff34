"""Which forms are asked for while something runs, seen where backends run them; nothing is checked otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..forms.program import find_form
from .registry import BACKENDS, Backend, FormUse, Runner

Results = dict[str, Tensor]


class SeenUse(NamedTuple):
    """What was asked of whom.

    Attributes:
        use: The call, with the short key of its form, and ``deterministic`` only False where it makes a difference.
        backend: Who runs it.
        device: Type of the device.
    """

    use: FormUse
    backend: str
    device: str


@contextmanager
def watching(watch: Callable[[SeenUse, Callable[[], Results]], Results]) -> Iterator[None]:
    """Within the block, every call of a form is ``watch(seen, run)``, which returns what ``run()`` does.

    Example:
        >>> seen = []
        >>> with watching(lambda use, run: seen.append(use) or run()):
        ...     pass  # a step of training
        >>> seen
        []
    """
    before = dict(BACKENDS)
    for name, backend in before.items():
        if backend.form is not None:
            BACKENDS[name] = replace(backend, form=_watched(backend, watch))
    try:
        yield
    finally:
        BACKENDS.update(before)


def _watched(
    backend: Backend, watch: Callable[[SeenUse, Callable[[], Results]], Results]
) -> Callable[[FormUse, torch.device], Runner]:
    assert backend.form is not None
    form = backend.form

    def find_runner(use: FormUse, device: torch.device) -> Runner:
        ordered = use.deterministic or torch.are_deterministic_algorithms_enabled()
        ordered = ordered or not use.graph or "x" not in use.kind.results  # all else has one order in any case
        short = use._replace(form=find_form(use.form).key, deterministic=ordered)  # a text is a key, too
        seen = SeenUse(short, backend.name, device.type)

        def run(tensors: Mapping[str, Tensor], graph: Tensor | None, rows: Mapping[str, int]) -> Results:
            return watch(seen, lambda: form(use, device)(tensors, graph, rows))  # what finding it compiles is seen, too

        return run

    return find_runner
