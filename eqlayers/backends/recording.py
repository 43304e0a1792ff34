"""Which forms are asked for while something runs, seen where backends run them; nothing is checked otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.writer import Kind

from ..ops.form import find_form
from .registry import BACKENDS, Backend

Results = dict[str, Tensor]


class FormUse(NamedTuple):
    """One kind of call of a form: all that decides which kernels run it.

    Attributes:
        form: Key of the form.
        kind: What of it is wanted.
        dtype: Of the operands.
        graph: Whether edges of nodes are walked, else rows.
        shared: Whether one row of weights serves all rows.
        deterministic: False where another order of sums is wanted and makes a difference on some device.
        backend: Who runs it.
        device: Type of the device.
    """

    form: str
    kind: Kind
    dtype: torch.dtype
    graph: bool
    shared: bool
    deterministic: bool
    backend: str
    device: str


@contextmanager
def watching(watch: Callable[[FormUse, Callable[[], Results]], Results]) -> Iterator[None]:
    """Within the block, every call of a form is ``watch(asked, run)``, which returns what ``run()`` does.

    Example:
        >>> seen = []
        >>> with watching(lambda asked, run: seen.append(asked) or run()):
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


def _watched(backend: Backend, watch: Callable[[FormUse, Callable[[], Results]], Results]) -> Callable[..., Results]:
    assert backend.form is not None
    form = backend.form

    def run(
        key: str,
        kind: Kind,
        tensors: Mapping[str, Tensor],
        graph: Tensor | None,
        rows: Mapping[str, int],
        deterministic: bool = True,
    ) -> Results:
        x, shared = tensors["x"], tensors["w"].ndim == 1
        ordered = deterministic or torch.are_deterministic_algorithms_enabled()
        ordered = ordered or graph is None or "x" not in kind.results  # all else has one order in any case
        found = find_form(key).key  # a text is a key, too
        asked = FormUse(found, kind, x.dtype, graph is not None, shared, ordered, backend.name, x.device.type)
        return watch(asked, lambda: form(key, kind, tensors, graph, rows, deterministic))

    return run
