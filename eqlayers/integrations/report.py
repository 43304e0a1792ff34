"""The report of `accelerate`: a row for each known module, replaced or not, and the share of known parameters."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.errors import EqlayersWarning
from .forces import ForceCheck, check_forces

#: Kinds of module that the sentence names.
NAMED = 3


@dataclass(frozen=True)
class Coverage:
    """The part of a model that :func:`accelerate` knows, replaced or not; ``str`` gives one sentence.

    A module or parameter that is held in several places count once. What is inside of an e3nn layer (its generated
    code) or of TorchScript count as part of it.

    Attributes:
        modules, known_modules: Number of modules, and of those among them that are layers of e3nn or of eqlayers.
        parameters, known_parameters: Number of elements of all parameters, and of those in such layers.
        elsewhere: The other parameters: class of the module that holds them, and their number; most first.
    """

    modules: int
    known_modules: int
    parameters: int
    known_parameters: int
    elsewhere: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        text = (
            f"{self.known_modules:,} of {self.modules:,} modules and {self.known_parameters:,} of "
            f"{self.parameters:,} parameters are in layers that eqlayers knows"
        )
        if not self.known_modules:
            text = f"no layer of e3nn was found: {text}"
        if self.elsewhere:
            named = [f"{kind} ({numel:,})" for kind, numel in self.elsewhere[:NAMED]]
            text += f"; the other parameters are in {', '.join(named)}"
        if rest := self.elsewhere[NAMED:]:
            text += f" and {len(rest)} more kinds of module ({sum(numel for _, numel in rest):,})"
        return text


def cover(
    modules: Iterable[nn.Module], closed: Callable[[nn.Module], bool], known: Callable[[nn.Module], bool]
) -> Coverage:
    """Count modules and parameters; parameters inside of ``closed`` modules count as theirs."""
    seen: set[nn.Parameter] = set()
    count = {True: 0, False: 0}
    numel = {True: 0, False: 0}
    elsewhere: Counter[str] = Counter()
    for module in modules:
        here = known(module)
        count[here] += 1
        parameters = [p for p in module.parameters(recurse=closed(module)) if p not in seen and not is_lazy(p)]
        seen.update(parameters)
        size = sum(p.numel() for p in parameters)
        numel[here] += size
        if size and not here:
            elsewhere[_name(module)] += size
    return Coverage(sum(count.values()), count[True], sum(numel.values()), numel[True], tuple(elsewhere.most_common()))


def _name(module: nn.Module) -> str:
    """The class of a module with the module that users import it from."""
    if isinstance(module, torch.jit.ScriptModule):
        return f"{getattr(module, 'original_name', type(module).__name__)} in TorchScript"
    kind = type(module)
    home = "torch.nn" if kind.__module__.startswith("torch.nn.modules.") else kind.__module__
    return f"{home}.{kind.__qualname__}"


@dataclass(frozen=True)
class Row:
    """The result for one module.

    Attributes:
        path: Where it is in the model; empty for the model itself. A module in several places has its first one here.
        kind: What it is: class and irreps.
        target: What :func:`eqlayers.accelerate` calls it, such as 'gate'; empty for what no target names.
        replacement: Class that stands in for it; empty if it was left.
        backend: Backends that run it, joined by '+': 'cpu+torch' of a gate is a kernel, and functions in torch.
        paths: Number of paths; of degrees for harmonics.
        error: Largest difference from the original as a fraction of its tolerance, see :func:`eqlayers.accelerate`;
            None if nothing was compared.
        saved_bytes: Bytes per row (sample or edge) that the original keeps for its backward pass and the replacement
            does not; None if nothing was compared. See :class:`Report`.
        reason: Why it was left; empty if it was replaced.
        note: What the reader should know of a replaced module; empty if nothing.
        places: All its paths.
    """

    path: str
    kind: str
    target: str
    replacement: str = ""
    backend: str = ""
    paths: int = 0
    error: float | None = None
    saved_bytes: float | None = None
    reason: str = ""
    note: str = ""
    places: tuple[str, ...] = ()


def warn_fault(row: Row) -> None:
    """Warn of an exception that no check of this package raised: the module of ``row`` stays, which may be a fault."""
    warnings.warn(
        f"accelerate must replace every layer that it knows, or refuse it, got {row.path or 'the model'} ({row.kind}), "
        f"which {row.reason}. It stays as it is; report this.",
        EqlayersWarning,
        stacklevel=2,
    )


#: Advice for a model of this package's layers, which has nothing to replace.
_FASTER = (
    "For simulations, eqlayers.compress(potential) puts its radial networks into tables. eqlayers.explain(model) names "
    "the backend of each layer; the argument backend of a layer or network picks another one"
)
_HEADER = ("module", "was", "is", "backend", "paths", "error/tolerance", "saved/row")


@dataclass(frozen=True)
class Report:
    r"""The report of :func:`accelerate`; ``str`` and ``print`` give a table.

    The bytes saved per row are measured on small inputs: with :math:`S(n)` the bytes of all tensors that autograd keeps
    for the backward pass of a module over n rows, they are :math:`(S(2n) - S(n))/n` of the original less the same of
    the replacement. A row is a sample of a product or linear map, an edge of a convolution or of harmonics, an atom of
    a contraction.

    Attributes:
        rows: In the order of ``model.named_modules()``.
        model: The model that was changed; the copy if ``inplace=False``.
        coverage: What share of the model is in layers that are known, replaced or not, and where the rest is.
        forces: What :meth:`check_forces` found; None before.
        ours: Number of layers of this package that the model had before, replacements not counted.
    """

    rows: tuple[Row, ...]
    model: nn.Module = field(repr=False)
    coverage: Coverage
    forces: ForceCheck | None = None
    ours: int = 0

    def check_forces(self, energy: Callable[[Tensor], Tensor], positions: Tensor) -> Report:
        """The report with two physical checks of the changed model; see :func:`eqlayers.integrations.check_forces`.

        Args:
            energy: Energy of the model, of positions ``[A, 3]``; what it gives is summed.
            positions: ``[A, 3]``, of one structure without periods, if torques are to mean anything.
        """
        return replace(self, forces=check_forces(energy, positions))

    @property
    def replaced(self) -> tuple[Row, ...]:
        """Rows of modules that were replaced."""
        return tuple(row for row in self.rows if row.replacement)

    @property
    def skipped(self) -> tuple[Row, ...]:
        """Rows of modules that were left, with their reasons."""
        return tuple(row for row in self.rows if not row.replacement)

    @property
    def worst(self) -> float | None:
        """The largest error as a fraction of its tolerance; None if nothing was compared."""
        return max((row.error for row in self.rows if row.error is not None), default=None)

    @property
    def saved_bytes(self) -> float | None:
        """Sum of the bytes that are saved, with one row in every module; None if nothing was compared."""
        known = [row.saved_bytes for row in self.rows if row.saved_bytes is not None]
        return sum(known) if known else None

    def __str__(self) -> str:
        lines = [list(_HEADER)] + [_cells(row) for row in self.replaced]
        widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADER))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        text = [line.rstrip() for line in text] if self.replaced else []
        return "\n".join([*text, *self._remarks(), self.summary()])

    def summary(self) -> str:
        """One line: how many, how exact, how much smaller; or that the model runs layers of this package already."""
        count = len(self.replaced)
        if not count and self.ours:
            left = f", {len(self.skipped)} left" if self.skipped else ""
            plural = "" if self.ours == 1 else "s"
            return f"nothing to replace{left}: the model already runs {self.ours} layer{plural} of eqlayers. {_FASTER}"
        parts = [f"{count} module{'' if count == 1 else 's'} replaced, {len(self.skipped)} left"]
        if self.worst is not None:
            parts.append(f"largest error {self.worst:.2g} of its tolerance")
        if self.saved_bytes:
            parts.append(f"with a row in each they keep {_bytes(self.saved_bytes)} less for backward")
        return "; ".join(parts)

    def __rich__(self) -> Any:
        """The table as the package rich draws it."""
        from rich.console import Group
        from rich.table import Table

        table = Table(*_HEADER)
        for row in self.replaced:
            table.add_row(*_cells(row))
        return Group(*([table] if self.replaced else []), *self._remarks(), self.summary())

    def _remarks(self) -> list[str]:
        notes = dict.fromkeys(row.note for row in self.replaced if row.note)
        left = [f"left: {row.path or 'the model'} ({row.kind}) {row.reason}" for row in self.skipped]
        forces = [] if self.forces is None else [str(self.forces)]
        return [*left, *(f"note: {note}" for note in notes), *forces, str(self.coverage)]


def _cells(row: Row) -> list[str]:
    path = row.path if len(row.places) < 2 else f"{row.path} (+{len(row.places) - 1} more)"
    error = "-" if row.error is None else f"{row.error:.2g}"
    saved = "-" if row.saved_bytes is None else _bytes(row.saved_bytes)
    return [path, row.kind, row.replacement, row.backend, str(row.paths), error, saved]


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
