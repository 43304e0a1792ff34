"""Which forms are asked for while something runs, seen where backends run them; nothing is checked otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ..forms.keys import short
from ..forms.program import find_form
from .forms import FORMULAS
from .registry import BACKENDS, Backend, FormulaFinder, FormulaRun, FormulaUse, FormUse, Runner

#: Of a product by operand, of a formula in order; a watcher hands them on.
Results = Any
Watch = Callable[["SeenUse", Callable[[], Results]], Results]


class SeenUse(NamedTuple):
    """A request, and the backend that got it.

    Attributes:
        use: The call, with the short key of its form, and ``deterministic`` only False where it makes a difference.
        backend: Who runs it.
        device: Type of the device.
    """

    use: FormUse | FormulaUse
    backend: str
    device: str


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Within the block, every call of a form is ``watch(seen, run)``, which returns what ``run()`` does.

    Example:
        >>> seen = []
        >>> with watching(lambda use, run: seen.append(use) or run()):
        ...     pass  # a step of training
        >>> seen
        []
    """
    before, formulas = dict(BACKENDS), dict(FORMULAS)
    for name, backend in before.items():
        if backend.form is not None:
            BACKENDS[name] = replace(backend, form=_watched(backend, watch))
    for name, finder in formulas.items():
        FORMULAS[name] = _watched_formula(name, finder, watch)
    try:
        yield
    finally:
        BACKENDS.update(before)
        FORMULAS.update(formulas)


def _watched_formula(name: str, finder: FormulaFinder, watch: Watch) -> FormulaFinder:
    def find_runner(base: Formula, key: str, dtype: torch.dtype, graph: bool, device: torch.device) -> FormulaRun:
        seen = SeenUse(FormulaUse(short(key), dtype, graph), name, device.type)

        def run(operands: Sequence[Tensor], tables: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
            found: list[Tensor] = watch(seen, lambda: finder(base, key, dtype, graph, device)(operands, tables, sizes))
            return found

        return run

    return find_runner


def _watched(backend: Backend, watch: Watch) -> Callable[[FormUse, torch.device], Runner]:
    assert backend.form is not None
    form = backend.form

    def find_runner(use: FormUse, device: torch.device) -> Runner:
        ordered = use.deterministic or torch.are_deterministic_algorithms_enabled()
        ordered = ordered or not use.graph or "x" not in use.kind.results  # all else has one order in any case
        brief = use._replace(form=find_form(use.form).key, deterministic=ordered)  # a text is a key, too
        seen = SeenUse(brief, backend.name, device.type)

        def run(tensors: Mapping[str, Tensor], graph: Tensor | None, rows: Mapping[str, int]) -> dict[str, Tensor]:
            # what finding it compiles is seen, too
            found: dict[str, Tensor] = watch(seen, lambda: form(use, device)(tensors, graph, rows))
            return found

        return run

    return find_runner
