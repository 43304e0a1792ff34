r"""Changes of basis: constant matrices on the components of irreps, and Cartesian tensors as irreps.

The basis of Cartesian tensors with symmetric indices is orthogonal, in float64, and equal to e3nn's. Couplings of n
vectors from left to right, :math:`((1 \otimes 1) \to l_2) \otimes 1 \to l_3 \dots`, are an orthogonal basis of all
tensors of rank n. Symmetries of indices, and the condition that traces vanish, are projectors that commute with
rotations, so that they act on couplings to one irrep as one small matrix. Gram and Schmidt's method on the rows of this
matrix gives the basis of the remaining space, each tensor with its first coefficient positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from e3nn.o3 import Irrep, Irreps
from torch import Tensor

from ...core.apply import run_by_row
from ...core.checks import check_choice, check_flag, check_floating, got
from ...core.dtypes import check_same_dtype, widest_under_autocast
from ...core.errors import ConfigError, IrrepsError, ShapeError
from ...core.forms.description import Form
from ...core.torch_internals import outside_of_autocast, under_autocast
from ...irreps.algebra import as_irrep, as_irreps, representation_matrix, wigner_3j
from ...irreps.layout import LAYOUTS, FlatLayout
from ..base.module import FormModule, KeepsFloat64
from ..tensor_product.lower import basis_program

#: Name of a basis -> the rotation whose Wigner D matrices lead to it.
_ROTATIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "e3nn": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "polar_z": ((0, 1, 0), (0, 0, 1), (1, 0, 0)),  # (x, y, z) to (y, z, x)
}
#: Smaller entries of Wigner D matrices of these rotations are rounding errors; true entries are far larger.
_ROUNDING = 1e-14
#: Condition number from which on a matrix counts as singular.
_SINGULAR = 1e12


class ChangeOfBasis(FormModule):
    r"""A constant matrix per irrep on the components of every copy: :math:`y_{u m} = \sum_n Q^{(l p)}_{m n} x_{u n}`.

    e3nn's harmonics have the polar axis y, and components (x, y, z) of degree 1. Most others, spherical harmonics in
    physics among them, have the polar axis z, order components by :math:`m = -l, \dots, l`, and thus have components
    (y, z, x) of degree 1. The matrix between both is the Wigner D matrix of that exchange of axes, and sparse.

    Args:
        irreps: Irreps of input and output.
        basis: 'polar_z' as above; 'e3nn', no change; a matrix [3, 3], orthogonal to 64 rounding units of its
            dtype, whose Wigner D matrices are taken; or a mapping from irreps to matrices ``[2 l + 1, 2 l + 1]``; other
            irreps stay as they are.
        inverse: Whether to transform from that basis to e3nn's.
        layout: 'mul_ir' (e3nn's) or 'ir_mul', of the input.
        layout_out: Layout of the output; the input's if None.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        IrrepsError, ConfigError: Invalid irreps, basis or layout, or a matrix without inverse.

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

    def _read(self, basis: Any) -> dict[Irrep, np.ndarray]:
        """Check the argument ``basis``, and return the matrix of every irrep."""
        distinct = dict.fromkeys(ir for _, ir in self.irreps_in)
        if isinstance(basis, Mapping):
            by_irrep = {as_irrep(key, "an irrep of basis"): value for key, value in basis.items()}
            return {ir: _matrix(ir, by_irrep[ir]) if ir in by_irrep else np.eye(ir.dim) for ir in distinct}
        matrix3: Any = basis
        if isinstance(basis, str):
            if check_choice("basis", basis, _ROTATIONS) == "e3nn":
                return {ir: np.eye(ir.dim) for ir in distinct}
            matrix3 = np.array(_ROTATIONS[basis], dtype=np.float64)
        out = {}
        for ir in distinct:
            matrix = representation_matrix(Irreps([(1, ir)]), matrix3).numpy().copy()
            matrix[np.abs(matrix) < _ROUNDING] = 0.0
            out[ir] = matrix
        return out

    def matrix(self, ir: Any) -> Tensor:
        """The matrix ``[2 l + 1, 2 l + 1]`` of an irrep of the layer, float64; IrrepsError for another irrep."""
        irrep = as_irrep(ir)
        if irrep not in self._matrices:
            raise IrrepsError(f"ir must be one of {self.irreps_in}, got {got(ir)}. Pick one of these.")
        return torch.from_numpy(self._matrices[irrep].copy())

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to the same, in the other basis and layout; ShapeError or DTypeError for others."""
        self._flat.check("x", x)
        check_same_dtype(x=x)
        return run_by_row(self._form, x, x.new_ones(1), x.shape[:-1], self.backend)

    def extra_repr(self) -> str:
        """Irreps, basis, layouts and backend."""
        direction = f"{self.basis} -> e3nn" if self.inverse else f"e3nn -> {self.basis}"
        layouts = self.layout if self.layout_out == self.layout else f"{self.layout} -> {self.layout_out}"
        return f"{self.irreps_in} | {direction} | {layouts}, backend {self.backend or 'auto'}"


def _matrix(ir: Irrep, value: Any) -> np.ndarray:
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


def _inverted(ir: Irrep, matrix: np.ndarray) -> np.ndarray:
    if np.abs(matrix @ matrix.T - np.eye(ir.dim)).max() < 1e-12:
        return matrix.T.copy()
    if not np.linalg.cond(matrix) < _SINGULAR:
        raise ConfigError(f"the matrix of {ir} must have an inverse, got {got(matrix.tolist())}. Use inverse=False.")
    return np.linalg.inv(matrix)


class CartesianTensor(KeepsFloat64):
    r"""Tensors :math:`T_{ij\dots}` of vectors' indices as irreps, and back, like ``e3nn.io.CartesianTensor``.

    .. math:: x_c = \sum_{ij\dots} Q_{c\,ij\dots} T_{ij\dots}, \qquad T_{ij\dots} = \sum_c x_c\, Q_{c\,ij\dots}

    Rows of Q are orthonormal. So a tensor converted to irreps and back is projected on the symmetries, and irreps
    have the norm of such a tensor. The basis is e3nn's: couplings from left to right by the Wigner 3j symbols of the
    installed e3nn; where an irrep occurs several times, as both 0e of an elasticity tensor, the orthonormal
    combinations of Gram and Schmidt's method in the order of the couplings, the first coefficient positive.

    Args:
        formula: Index letters, and equal tensors with permuted indices: 'ij' has no symmetry, 'ij=ji' is
            symmetric, 'ij=-ji' antisymmetric, 'ijkl=jikl=klij' elasticity, 2x0e+2x2e+1x4e. Up to 6 indices.
        traceless: Whether tensors have no traces, so that 'ij=ji' is 1x2e.

    Attributes:
        irreps_out: Irreps, single copies of each in e3nn's order.
        change_of_basis: ``[irreps_out.dim, 3, ..., 3]`` float64, Q above.

    Raises:
        ConfigError: An invalid formula.

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
        self._matrix = self.change_of_basis.flatten(1).to(self._matrix.dtype)  # from float64, not from rounded values
        return self

    def forward(self, tensor: Tensor) -> Tensor:
        """Tensors to irreps; see :meth:`from_cartesian`."""
        return self.from_cartesian(tensor)

    def from_cartesian(self, data: Tensor) -> Tensor:
        """``[..., 3, ..., 3]`` to ``[..., irreps_out.dim]``; the part of a tensor without the symmetries is dropped.

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
        """``[..., irreps_out.dim]`` to ``[..., 3, ..., 3]`` with the symmetries; ShapeError or DTypeError otherwise."""
        self._flat.check("data", data)
        return self._product(data, False).view(*data.shape[:-1], *self._cube)

    def from_vectors(self, *vectors: Tensor) -> Tensor:
        """The outer product of a vector ``[..., 3]`` for each index as irreps ``[..., irreps_out.dim]``.

        ShapeError, DTypeError or DeviceError for another number of vectors, or others.
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
        check_same_dtype(**dict(zip(names, factors, strict=True)))
        for name, vector in zip(names, factors, strict=True):
            if vector.ndim < 1 or vector.shape[-1] != 3:
                raise ShapeError(f"{name} must be [..., 3], got {list(vector.shape)}. Move the components to the end.")
        product = factors[0]
        for vector in factors[1:]:
            product = (product[..., :, None] * vector[..., None, :]).flatten(-2)
        return self.from_cartesian(product.unflatten(-1, (3,) * len(vectors)))

    def _product(self, data: Tensor, transposed: bool) -> Tensor:
        """The data times the matrix Q, or its transpose, in the dtype of the data."""
        device = data.device
        matrix: Tensor = self._matrix
        if matrix.dtype != data.dtype or matrix.device != device:
            check_same_dtype(data=data)
            matrix = self.change_of_basis.flatten(1).to(device, data.dtype)
        matrix = matrix.T if transposed else matrix
        if not under_autocast(device.type):
            return data @ matrix
        with outside_of_autocast(device.type):  # too little work to trade precision for speed
            return data @ matrix

    def extra_repr(self) -> str:
        """Formula and irreps."""
        return f"{self.formula} | {self.irreps_out}{', traceless' if self.traceless else ''}"


#: Higher ranks need matrices of 3^n rows, which take seconds.
LARGEST_RANK = 6
#: Smaller entries of projectors are rounding errors; true entries are far larger.
_PROJECTED = 1e-9


class CartesianBasis(NamedTuple):
    """An orthonormal basis of Cartesian tensors, one tensor for each component of irreps."""

    indices: str  # letters
    irreps: Irreps  # sorted as e3nn sorts them, equal ones joined
    matrix: np.ndarray  # ``[irreps.dim, 3, ..., 3]`` float64 with rows of norm 1, read-only


def read_formula(formula: Any) -> tuple[str, frozenset[tuple[int, tuple[int, ...]]]]:
    """Letters of the indices, and the group of signed permutations of them; ConfigError for an invalid formula."""
    terms = formula.replace(" ", "").split("=") if isinstance(formula, str) else []
    letters = terms[0] if terms else ""
    plain = [term.removeprefix("-") for term in terms]
    if not letters.isalpha() or len(set(letters)) < len(letters) or any(sorted(t) != sorted(letters) for t in plain):
        raise ConfigError(
            f"formula must be index letters and permutations of them, such as 'ij=ji' or 'ij=-ji', got {got(formula)}. "
            f"Write each letter once on each side of '='."
        )
    if len(letters) > LARGEST_RANK:
        raise ConfigError(f"formula must have at most {LARGEST_RANK} indices, got {got(formula)}. Reduce it in steps.")
    group = {
        (-1 if term.startswith("-") else 1, tuple(map(letters.index, p))) for term, p in zip(terms, plain, strict=True)
    }
    while True:
        more = {(s * t, tuple(p[i] for i in q)) for s, p in group for t, q in group}
        if more <= group:
            return letters, frozenset(group)
        group |= more


@lru_cache(maxsize=64)
def cartesian_basis(formula: str, traceless: bool = False) -> CartesianBasis:
    """The basis of tensors with the symmetries of a formula, traceless on request; see ``nn.CartesianTensor``."""
    letters, group = read_formula(formula)
    rank = len(letters)
    allowed = _projector(rank, group)
    if traceless:
        allowed = _without_traces(rank, allowed)
    irreps, rows = [], []
    for ir, tensors in sorted(_couplings(rank).items()):
        first = tensors[:, 0]  # one component suffices, as the projector commutes with rotations
        for row in _orthonormal(first @ allowed @ first.T):
            irreps.append((1, ir))
            rows.append(np.einsum("u,uit->it", row, tensors))
    matrix = np.concatenate(rows) if rows else np.zeros((0, 3**rank))
    matrix = np.where(np.abs(matrix) < 1e-14, 0.0, matrix).reshape(-1, *[3] * rank)
    matrix.flags.writeable = False
    return CartesianBasis(letters, Irreps(irreps).simplify(), matrix)


def _projector(rank: int, group: frozenset[tuple[int, tuple[int, ...]]]) -> np.ndarray:
    """``[3^n, 3^n]``: the projector on tensors with the symmetries of a group of signed permutations, its mean."""
    numbers = np.arange(3**rank).reshape([3] * rank)
    out = np.zeros((3**rank, 3**rank))
    for sign, order in group:
        out[np.arange(3**rank), numbers.transpose(order).reshape(-1)] += sign / len(group)
    return out


def _without_traces(rank: int, allowed: np.ndarray) -> np.ndarray:
    """The projector onto the traceless tensors in the space of the projector ``allowed``."""
    rows = []
    for pair in combinations(range(rank), 2):
        traces = np.einsum("xy,ab->axyb", np.eye(3), np.eye(3 ** (rank - 2))).reshape(-1, *[3] * rank)
        others = [k for k in range(rank) if k not in pair]
        rows.append(np.moveaxis(traces, range(1, rank + 1), [1 + k for k in (*pair, *others)]).reshape(-1, 3**rank))
    if not rows:
        return allowed
    images = np.concatenate(rows) @ allowed  # traces as functions of allowed tensors
    _, sizes, directions = np.linalg.svd(images, full_matrices=False)
    traced = directions[sizes > _PROJECTED]
    return allowed - traced.T @ traced


@lru_cache(maxsize=LARGEST_RANK)
def _couplings(rank: int) -> dict[Irrep, np.ndarray]:
    """Couplings of n vectors to each irrep, ``[paths, 2 l + 1, 3^n]``, with orthonormal rows."""
    paths: list[tuple[Irrep, np.ndarray]] = [(Irrep("1o"), np.eye(3))]
    for _ in range(rank - 1):
        longer = []
        for left, tensors in paths:
            for ir in left * Irrep("1o"):
                coupled = np.einsum("ijl,jt->itl", wigner_3j(ir.l, left.l, 1), tensors) * np.sqrt(ir.dim)
                longer.append((ir, coupled.reshape(ir.dim, -1)))
        paths = sorted(longer, key=lambda path: path[0])
    by_irrep: dict[Irrep, list[np.ndarray]] = {}
    for ir, tensors in paths:
        by_irrep.setdefault(ir, []).append(tensors)
    return {ir: np.stack(parts) for ir, parts in by_irrep.items()}


def _orthonormal(rows: np.ndarray) -> list[np.ndarray]:
    """An orthonormal basis of the span of rows, by Gram-Schmidt from the first row."""
    basis: list[np.ndarray] = []
    for row in rows:
        for _ in range(2):  # twice, against rounding
            for other in basis:
                row = row - (row @ other) * other
        size = np.linalg.norm(row)
        if size > 2 * _PROJECTED:
            row = row / size
            row = np.where(np.abs(row) < _PROJECTED, 0.0, row)
            basis.append(row * np.sign(row[np.flatnonzero(row)[0]]))
    return basis
