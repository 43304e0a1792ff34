"""What norms share: squares of irrep copies, and features times a number for each copy."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ...algebra import as_irreps
from ...checks import check_choice
from ...functional.formula import run_formula
from ...functional.product import as_rows
from ...lowering.layout import FlatLayout, slots_of
from ...lowering.norms import CopyGroup, scaled_formula, squares_formula
from .base import FormulaModule
from .columns import Columns, Copies, columns_of, take

NORMALIZATIONS = ("component", "norm")


def root(squares: Tensor) -> Tensor:
    """Square roots, with derivatives of every order 0 where the square is 0."""
    positive = squares > 0
    zero = squares.new_zeros(())
    # two choices: a derivative of the root of 0, infinite or NaN, would get through a single one
    return torch.where(positive, torch.where(positive, squares, 1 + zero).sqrt(), zero)


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
        self._flat = FlatLayout(self.irreps_in, layout)
        by_component = check_choice("normalization", normalization, NORMALIZATIONS) == "component"
        self._groups = tuple(
            CopyGroup(mul, ir.dim, apart and ir.is_scalar(), 1 / ir.dim if by_component else 1.0)
            for mul, ir in self.irreps_in
        )
        self._counts = {flag: [g.mul for g in self._groups if g.apart == flag and g.mul] for flag in (True, False)}
        slots = slots_of(o3.Irreps([(mul, "0e") for mul, _ in self.irreps_in]))
        #: Where numbers of copies that are apart, and of the others, stand among those of all.
        self._columns: dict[bool, list[Columns]] = {
            flag: columns_of(
                slots, [Copies(i, 0, g.mul) for i, g in enumerate(self._groups) if g.apart == flag], layout
            )
            for flag in (True, False)
        }
        self._squares_formula = squares_formula(self._groups, layout)
        self._scaled_formulas = {rows: scaled_formula(self._groups, layout, rows) for rows in ("each", "one")}
        #: Without others there is nothing for these to do.
        some = bool(self._counts[False])
        self._formulas = [self._squares_formula, *self._scaled_formulas.values()] if some else []

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> Any:
        """The formulas; None where all is scalars that are apart."""
        return super().whole_call(dtype, device) if self._formulas else None

    def _of(self, numbers: Tensor, apart: bool) -> Tensor:
        """Numbers of all copies ``[..., num_irreps]``: those of the copies that are apart, or of the others."""
        return take(numbers, self._columns[apart])

    def _joined(self, apart: Tensor, others: Tensor) -> Tensor:
        """The way back of :meth:`_of`."""
        pieces = {flag: iter(t.split(self._counts[flag], -1)) for flag, t in ((True, apart), (False, others))}
        parts = [next(pieces[group.apart]) for group in self._groups if group.mul]
        return torch.cat(parts, -1) if parts else others

    def _squares(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., dim]`` to the scalars that are apart and the squares of the other copies, each ``[..., copies]``."""
        none = x.narrow(-1, 0, 0)
        if not self._counts[False]:
            return x, none
        lead = x.shape[:-1]
        found = run_formula(self._squares_formula, [as_rows(x, lead)], None, self.backend)
        found = found if len(lead) == 1 else tuple(t.reshape(*lead, t.shape[-1]) for t in found)
        return (found[0], found[1]) if len(found) == 2 else (none, found[0])

    def _scaled(self, x: Tensor, numbers: Tensor, scalars: Tensor) -> Tensor:
        """Copies of ``[..., dim]`` times a number each, for each row or for all ``[copies]``; the scalars as given."""
        if not self._counts[False]:
            return scalars
        lead = x.shape[:-1]
        shared = numbers.ndim == 1 and len(lead) > 0
        operands = [as_rows(x, lead), numbers if shared else as_rows(numbers, lead)]
        if self._counts[True]:
            operands.append(as_rows(scalars, lead))
        (z,) = run_formula(self._scaled_formulas["one" if shared else "each"], operands, None, self.backend)
        return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])

    def _group_means(self, numbers: Tensor, apart: bool = False) -> list[Tensor]:
        """Means ``[..., 1]`` over the copies of each group, of numbers of copies that are apart or of the others."""
        return [part.mean(-1, keepdim=True) for part in numbers.split(self._counts[apart], -1)]

    def extra_repr(self) -> str:
        """Irreps, layout and backend."""
        return f"{self.irreps_in} | {self._kind()}"
