"""Cartesian tensors from irreps and back: stress, polarizability, elasticity."""

from __future__ import annotations

from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from ...core.checks import check_flag, check_floating
from ...core.dtypes import check_same_kind, widest_under_autocast
from ...core.errors import ShapeError
from ...core.torch_internals import outside_of_autocast, under_autocast
from ...irreps.layout import FlatLayout
from ..base.module import KeepsFloat64
from .lower import cartesian_basis, read_formula


class CartesianTensor(KeepsFloat64):
    r"""Tensors :math:`T_{ij\dots}` of vectors' indices as irreps, and back, like ``e3nn.io.CartesianTensor``.

    .. math:: x_c = \sum_{ij\dots} Q_{c\,ij\dots} T_{ij\dots}, \qquad T_{ij\dots} = \sum_c x_c\, Q_{c\,ij\dots}

    Rows of Q are orthonormal. So the way there and back gives the part of a tensor that has the symmetries, and irreps
    have the norm of such a tensor. The basis is e3nn's: couplings from left to right by the Wigner 3j symbols of the
    installed e3nn; where an irrep occurs several times, as both 0e of an elasticity tensor, the orthonormal
    combinations which Gram and Schmidt's method makes in the order of the couplings, the first coefficient positive.

    Args:
        formula: Index letters, and equal tensors with permuted indices: 'ij' has no symmetry, 'ij=ji' is
            symmetric, 'ij=-ji' antisymmetric, 'ijkl=jikl=klij' elasticity, 2x0e+2x2e+1x4e. Up to 6 indices.
        traceless: Whether only tensors without traces are meant, which 'ij=ji' has as 1x2e.

    Attributes:
        irreps_out: Irreps, single copies of each in e3nn's order.
        change_of_basis: ``[irreps_out.dim, 3, ..., 3]`` float64, Q above.

    Raises:
        ConfigError: No formula.

    Source:
        ``e3nn.io.CartesianTensor`` and ``e3nn.o3.ReducedTensorProducts``.

    Example:
        >>> stress = CartesianTensor("ij=ji")
        >>> stress.irreps_out
        1x0e+1x2e
        >>> tensor = torch.tensor([[1.0, 2.0, 0.0], [2.0, 3.0, 0.0], [0.0, 0.0, 5.0]])
        >>> torch.allclose(stress.to_cartesian(stress(tensor)), tensor)
        True
    """

    change_of_basis: Tensor
    _matrix: Tensor

    def __init__(self, formula: str, traceless: bool = False) -> None:
        super().__init__()
        self.traceless = check_flag("traceless", traceless)
        read_formula(formula)
        basis = cartesian_basis(formula, self.traceless)
        self.formula, self.indices = formula, basis.indices
        self.irreps_out: Irreps = basis.irreps
        self._flat = FlatLayout(basis.irreps, "mul_ir")
        self.register_buffer("change_of_basis", torch.from_numpy(basis.matrix.copy()), persistent=False)
        self.kept_in_float64 = ("change_of_basis",)
        self._cube = (3,) * len(self.indices)
        self.register_buffer("_matrix", self.change_of_basis.flatten(1).float(), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._matrix = self.change_of_basis.flatten(1).to(self._matrix.dtype)  # from float64, not from rounded numbers
        return self

    def forward(self, tensor: Tensor) -> Tensor:
        """Tensors to irreps; see :meth:`from_cartesian`."""
        return self.from_cartesian(tensor)

    def from_cartesian(self, data: Tensor) -> Tensor:
        """``[..., 3, ..., 3]`` to ``[..., irreps_out.dim]``; parts without the symmetries are left out.

        Raises:
            ShapeError, DTypeError: The data have another shape or dtype.
        """
        rank = len(self.indices)
        text = ", ".join(["...", *["3"] * rank])
        check_floating("data", data, f"[{text}]")
        if data.ndim < rank or data.shape[data.ndim - rank :] != (3,) * rank:
            raise ShapeError(
                f"data must be [{text}] for {self.formula!r}, got {list(data.shape)}. Move the axes of the tensor to "
                f"the end."
            )
        return self._product(data.flatten(-rank), True)

    def to_irreps(self, data: Tensor) -> Tensor:
        """Convert a tensor, as :meth:`from_cartesian`."""
        return self.from_cartesian(data)

    def to_cartesian(self, data: Tensor) -> Tensor:
        """``[..., irreps_out.dim]`` to ``[..., 3, ..., 3]`` with the symmetries.

        Raises:
            ShapeError, DTypeError: The data have another shape or dtype.
        """
        self._flat.check("data", data)
        return self._product(data, False).view(*data.shape[:-1], *self._cube)

    def from_vectors(self, *vectors: Tensor) -> Tensor:
        r"""Irreps of the outer product of a vector ``[..., 3]`` for each index: ``[..., irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: Another number of vectors, or they do not fit each other.
        """
        if len(vectors) != len(self.indices):
            raise ShapeError(
                f"vectors must be {len(self.indices)}, one for each index of {self.formula!r}, got {len(vectors)}. "
                f"Pass one [..., 3] for each."
            )
        names = [f"vectors[{n}]" for n in range(len(vectors))]
        factors = widest_under_autocast(
            *(check_floating(n, v, "[..., 3]") for n, v in zip(names, vectors, strict=True))
        )
        check_same_kind(**dict(zip(names, factors, strict=True)))
        for name, vector in zip(names, factors, strict=True):
            if vector.ndim < 1 or vector.shape[-1] != 3:
                raise ShapeError(f"{name} must be [..., 3], got {list(vector.shape)}. Move the components to the end.")
        product = factors[0]
        for vector in factors[1:]:
            product = (product[..., :, None] * vector[..., None, :]).flatten(-2)
        return self.from_cartesian(product.unflatten(-1, (3,) * len(vectors)))

    def _product(self, data: Tensor, transposed: bool) -> Tensor:
        """Multiply by the matrix, in the dtype of the data."""
        device = data.device
        matrix: Tensor = self._matrix
        if matrix.dtype != data.dtype or matrix.device != device:
            check_same_kind(data=data)
            matrix = self.change_of_basis.flatten(1).to(device, data.dtype)
        matrix = matrix.T if transposed else matrix
        if not under_autocast(device.type):
            return data @ matrix
        with outside_of_autocast(device.type):  # no work that is worth the digits
            return data @ matrix

    def extra_repr(self) -> str:
        """Formula and irreps."""
        return f"{self.formula} | {self.irreps_out}{', traceless' if self.traceless else ''}"
