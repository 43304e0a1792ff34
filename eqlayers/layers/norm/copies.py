"""Shared code of norms: squares of irrep copies, and features times a number for each copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.dtypes import ACCUMULATE
from ...irreps.algebra import as_irreps
from ..base.module import FormulaModule
from .functions import CopyPlan, group_means, numbers_of, scaled_by, squares_of


class CopyModule(FormulaModule):
    """Base of the layers that compute with one number for each irrep copy.

    Args:
        irreps: Irreps of the features.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.
        apart: Whether even scalars are apart: they have means and biases.
        normalization: 'component' for squared norms over 2l + 1, 'norm' for squared norms.

    Attributes:
        irreps_in: Of the features.
    """

    def __init__(
        self, irreps: Any, layout: str, backend: str | None, *, apart: bool = False, normalization: str = "norm"
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in = as_irreps(irreps, "irreps")
        self.num_paths = len(self.irreps_in)
        self._plan = plan = CopyPlan(self.irreps_in, layout, apart, normalization)
        self._flat, self._groups, self._counts = plan.flat, plan.groups, plan.counts
        #: Without others there is nothing for these to do.
        self._formulas = [plan.squares, *plan.scaled.values()] if plan.counts[False] else []

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> Any:
        """The formulas; None where all is scalars that are apart."""
        return super().whole_call(ACCUMULATE.get(dtype, dtype), device) if self._formulas else None

    def _of(self, numbers: Tensor, apart: bool) -> Tensor:
        """Select from numbers of all copies ``[..., num_irreps]`` the copies that are apart, or the others."""
        return numbers_of(self._plan, numbers, apart)

    def _joined(self, apart: Tensor, others: Tensor) -> Tensor:
        """The way back of :meth:`_of`."""
        pieces = {flag: iter(t.split(self._counts[flag], -1)) for flag, t in ((True, apart), (False, others))}
        parts = [next(pieces[group.apart]) for group in self._groups if group.mul]
        return torch.cat(parts, -1) if parts else others

    def _squares(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., dim]`` to the scalars that are apart and the squares of the other copies, each ``[..., copies]``."""
        return squares_of(self._plan, x, self.backend)

    def _scaled(self, x: Tensor, numbers: Tensor, scalars: Tensor) -> Tensor:
        """Copies of ``[..., dim]`` times a number each, for each row or for all ``[copies]``; the scalars as given."""
        return scaled_by(self._plan, x, numbers, scalars, self.backend)

    def _group_means(self, numbers: Tensor, apart: bool = False) -> Tensor:
        """Means ``[..., groups]`` over the copies of each group, of those that are apart or of the others."""
        return group_means(numbers, self._counts[apart])

    def extra_repr(self) -> str:
        """Irreps, layout and backend."""
        return f"{self.irreps_in} | {self._kind()}"
