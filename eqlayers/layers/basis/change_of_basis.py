"""Constant matrices on the components of every irrep copy: other conventions of axes, order and layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ...core.checks import check_choice, check_flag, got
from ...core.dtypes import check_same_kind
from ...core.errors import ConfigError, IrrepsError
from ...core.forms.program import Form
from ...irreps.algebra import as_irreps, representation_matrix
from ...irreps.layout import LAYOUTS, FlatLayout
from ..base.module import FormModule
from ..base.run import run_rows
from ..tensor_product.lower import basis_program

#: Name of a basis -> the rotation whose Wigner D matrices lead to it.
_ROTATIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "e3nn": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "polar_z": ((0, 1, 0), (0, 0, 1), (1, 0, 0)),  # (x, y, z) to (y, z, x)
}
#: Entries below are rounding; true ones of the Wigner D matrices of these rotations are far larger.
_ROUNDING = 1e-14
#: Condition of a matrix from which no way back is worth its digits.
_SINGULAR = 1e12


class ChangeOfBasis(FormModule):
    r"""A constant matrix per irrep on the components of every copy: :math:`y_{u m} = \sum_n Q^{(l p)}_{m n} x_{u n}`.

    e3nn's harmonics have the polar axis y, and components (x, y, z) of degree 1. Most others, spherical harmonics in
    physics among them, have the polar axis z, order components by :math:`m = -l, \dots, l`, and thus have components
    (y, z, x) of degree 1. The matrix between both is the Wigner D matrix of that exchange of axes, and sparse.

    Args:
        irreps: Irreps of input and output.
        basis: 'polar_z' as above; 'e3nn', which changes nothing; a matrix [3, 3], orthogonal to 64 roundings of its
            dtype, whose Wigner D matrices are taken; or a mapping from irreps to matrices ``[2 l + 1, 2 l + 1]``; other
            irreps stay as they are.
        inverse: Whether to go from that basis to e3nn's.
        layout: 'mul_ir' (e3nn's) or 'ir_mul', of the input.
        layout_out: Layout of the output; the input's if None.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        IrrepsError, ConfigError: Irreps, a basis or a layout that there are not, or a matrix without inverse.

    Example:
        >>> ChangeOfBasis("1o", "polar_z")(torch.tensor([1.0, 2.0, 3.0]))
        tensor([2., 3., 1.])
        >>> ChangeOfBasis("2x1o", "e3nn", layout_out="ir_mul")(torch.arange(6.0)).tolist()
        [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    """

    def __init__(
        self,
        irreps: Any,
        basis: Any = "polar_z",
        *,
        inverse: bool = False,
        layout: str = "mul_ir",
        layout_out: str | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in = self.irreps_out = as_irreps(irreps)
        self.layout_out = layout if layout_out is None else check_choice("layout_out", layout_out, LAYOUTS)
        self.basis = basis if isinstance(basis, str) else "given"
        self.inverse = check_flag("inverse", inverse)
        self._flat = FlatLayout(self.irreps_in, layout)
        self._matrices = {ir: _inverted(ir, q) if self.inverse else q for ir, q in self._read(basis).items()}
        terms = [self._matrices[ir] for _, ir in self.irreps_in]
        self._form = Form(basis_program(self.irreps_in, terms, layout, self.layout_out))
        self.num_paths = len(self.irreps_in)

    def _read(self, basis: Any) -> dict[o3.Irrep, np.ndarray]:
        """The matrix of every irrep."""
        wanted = dict.fromkeys(ir for _, ir in self.irreps_in)
        if isinstance(basis, Mapping):
            by_irrep = {_irrep(key): value for key, value in basis.items()}
            return {ir: _matrix(ir, by_irrep[ir]) if ir in by_irrep else np.eye(ir.dim) for ir in wanted}
        turn: Any = basis
        if isinstance(basis, str):
            if check_choice("basis", basis, _ROTATIONS) == "e3nn":
                return {ir: np.eye(ir.dim) for ir in wanted}
            turn = np.array(_ROTATIONS[basis], dtype=np.float64)
        out = {}
        for ir in wanted:
            matrix = representation_matrix(o3.Irreps([(1, ir)]), turn).numpy().copy()
            matrix[np.abs(matrix) < _ROUNDING] = 0.0
            out[ir] = matrix
        return out

    def matrix(self, ir: Any) -> Tensor:
        """``[2 l + 1, 2 l + 1]`` float64, of an irrep that the layer has.

        Raises:
            IrrepsError: The layer does not have this irrep.
        """
        irrep = _irrep(ir)
        if irrep not in self._matrices:
            raise IrrepsError(f"ir must be one of {self.irreps_in}, got {got(ir)}. Pick one of these.")
        return torch.from_numpy(self._matrices[irrep].copy())

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to the same, in the other basis and layout.

        Raises:
            ShapeError, DTypeError: The features do not fit the layer.
        """
        self._flat.check("x", x)
        check_same_kind(x=x)
        return run_rows(self._form, x, x.new_ones(1), x.shape[:-1], self.backend)

    def extra_repr(self) -> str:
        """Irreps, basis, layouts and backend."""
        way = f"{self.basis} -> e3nn" if self.inverse else f"e3nn -> {self.basis}"
        layouts = self.layout if self.layout_out == self.layout else f"{self.layout} -> {self.layout_out}"
        return f"{self.irreps_in} | {way} | {layouts}, backend {self.backend or 'auto'}"


def _irrep(value: Any) -> o3.Irrep:
    try:
        return o3.Irrep(value)
    except Exception:
        raise IrrepsError(
            f"irreps of basis must be irreps such as '1o', got {got(value)}. Write degree and parity."
        ) from None


def _matrix(ir: o3.Irrep, value: Any) -> np.ndarray:
    numbers = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    try:
        matrix = np.array(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.shape != (ir.dim, ir.dim) or not np.isfinite(matrix).all():
        raise ConfigError(
            f"the matrix of {ir} must be [{ir.dim}, {ir.dim}] finite numbers, got {got(value)}. Give a row for each "
            f"component after."
        )
    return matrix


def _inverted(ir: o3.Irrep, matrix: np.ndarray) -> np.ndarray:
    if (
        np.array_equal(matrix @ matrix.T, np.eye(len(matrix)))
        or np.abs(matrix @ matrix.T - np.eye(ir.dim)).max() < 1e-12
    ):
        return matrix.T.copy()
    if not np.linalg.cond(matrix) < _SINGULAR:
        raise ConfigError(f"the matrix of {ir} must have an inverse, got {got(matrix.tolist())}. Use inverse=False.")
    return np.linalg.inv(matrix)
