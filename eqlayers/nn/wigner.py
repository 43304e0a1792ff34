"""Rotations of features: the matrices by which irreps turn, and features turned by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ..algebra import as_irreps, representation_matrix
from ..checks import check_choice, check_flag, check_floating
from ..errors import ConfigError, ShapeError
from ..forms.program import Form, FormCall
from ..functional.product import apply_form, as_rows, chosen
from ..functional.rotations import angles_to_quaternion, run_blocks, run_quaternion
from ..lowering.layout import LAYOUTS, FlatLayout
from ..lowering.program import basis_program
from ..lowering.rotation import rotation_program, turn_program
from ..lowering.wigner import blocks_dim, blocks_start, check_degree, quaternion_formula, wigner_formula
from ..ops.call import broadcast_lead, check_same_kind, widest_under_autocast
from ._common.base import FormulaModule

#: What a rotation is given as -> its last axes.
ROTATIONS: dict[str, tuple[int, ...]] = {"matrix": (3, 3), "quaternion": (4,), "angles": (3,)}


def _matrices(value: Tensor) -> Tensor:
    if check_floating("R", value, "[..., 3, 3]").shape[-2:] != (3, 3):
        raise ShapeError(f"R must be [..., 3, 3], rotations, got {list(value.shape)}. Move these axes to the end.")
    return value


def _sign(matrices: Tensor) -> Tensor:
    """``[..., 1]``: the determinant's sign, which is the parity."""
    first, second, third = matrices.detach().unbind(-2)
    volume = (first * torch.linalg.cross(second, third)).sum(-1, keepdim=True)
    return torch.where(volume < 0, -1.0, 1.0).to(matrices.dtype)


class _Turns(FormulaModule):
    """What both layers do: from rotations to flat blocks."""

    rotation: str
    _lmax: int

    def _make(self, irreps: o3.Irreps) -> None:
        """Formulas up to the largest degree."""
        self._lmax = check_degree(max((ir.l for _, ir in irreps), default=0))
        self._formulas = (wigner_formula(self._lmax), quaternion_formula())

    def _checked(self, rotation: Tensor) -> Tensor:
        """A rotation of the kind of the layer."""
        shape = ROTATIONS[self.rotation]
        text = ", ".join(["...", *map(str, shape)])
        check_floating("rotation", rotation, f"[{text}]")
        if rotation.ndim < len(shape) or rotation.shape[-len(shape) :] != shape:
            raise ShapeError(
                f"rotation must be [{text}] for rotation={self.rotation!r}, got {list(rotation.shape)}. Build the "
                f"layer with the kind that you call it with."
            )
        return rotation

    def _blocks_of(self, rotation: Tensor, parities: bool) -> Tensor:
        """Flat blocks of a rotation; with parities those of even irreps, then those of odd ones."""
        rotation = self._checked(rotation)
        if self.rotation == "matrix":
            return self._of_matrices(rotation, parities)
        if self.rotation == "angles":
            rotation = angles_to_quaternion(*rotation.unbind(-1))
        return self._of_quaternions(rotation, parities)

    def _of_matrices(self, matrices: Tensor, parities: bool) -> Tensor:
        sign = _sign(matrices)
        quaternions = run_quaternion(self._formulas[1], matrices * sign[..., None], self.backend)
        blocks = run_blocks(self._formulas[0], quaternions, self.backend)
        return torch.cat([blocks, blocks * sign], -1) if parities else blocks

    def _of_quaternions(self, quaternions: Tensor, parities: bool) -> Tensor:
        blocks = run_blocks(self._formulas[0], quaternions, self.backend)
        return torch.cat([blocks, blocks], -1) if parities else blocks


class WignerD(_Turns):
    r"""The matrix by which features turn: :math:`D(R)` with :math:`x \to D(R)\, x`, e3nn's ``Irreps.D_from_*``.

    Polynomials of a unit quaternion, so that derivatives of every order are finite and right for every rotation, where
    those of Euler angles of a matrix are not at :math:`\beta = 0` and :math:`\pi`. A matrix is taken to be orthogonal:
    derivatives along rotations are right, those along other changes of it mean nothing.

    Args:
        irreps: Irreps of the features, of degrees up to 12.
        rotation: What ``forward`` gets: 'matrix' ``[..., 3, 3]``, 'quaternion' ``[..., 4]`` as (w, x, y, z), or
            'angles' ``[..., 3]`` in radians, e3nn's :math:`\alpha, \beta, \gamma` of the rotation
            :math:`Y(\alpha) X(\beta) Y(\gamma)`.
        layout: 'mul_ir' (e3nn's) or 'ir_mul', of the features.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        IrrepsError, ConfigError: Irreps or options that there are not.

    Source:
        See :mod:`eqlayers.lowering.wigner`.

    Example:
        >>> turn = WignerD("1o + 1e", "matrix")
        >>> turn(-torch.eye(3)).diagonal()
        tensor([-1., -1., -1.,  1.,  1.,  1.])
    """

    places: Tensor

    def __init__(
        self, irreps: Any, rotation: str = "matrix", *, layout: str = "mul_ir", backend: str | None = None
    ) -> None:
        super().__init__(check_choice("layout", layout, LAYOUTS), backend)
        self.irreps = as_irreps(irreps)
        self.rotation = check_choice("rotation", rotation, ROTATIONS)
        self.dim = self.irreps.dim
        self._make(self.irreps)
        self.register_buffer("places", torch.from_numpy(self._places()), persistent=False)

    def _places(self) -> np.ndarray:
        """``[dim, dim]``: where each entry stands in the blocks of even irreps, those of odd ones, and a 0."""
        width = blocks_dim(self._lmax)
        out = np.full((self.dim, self.dim), 2 * width, dtype=np.int64)
        for slot, (mul, ir) in zip(FlatLayout(self.irreps, self.layout).slots, self.irreps, strict=True):
            block = blocks_start(ir.l) + (width if ir.p == -1 else 0) + np.arange(ir.dim**2).reshape(ir.dim, ir.dim)
            for u in range(mul):
                if self.layout == "mul_ir":
                    columns = slot.start + u * ir.dim + np.arange(ir.dim)
                else:
                    columns = slot.start + u + mul * np.arange(ir.dim)
                out[np.ix_(columns, columns)] = block
        return out.reshape(-1)

    def forward(self, rotation: Tensor) -> Tensor:
        """Rotations of the kind of the layer to matrices ``[..., irreps.dim, irreps.dim]``.

        Raises:
            ShapeError, DTypeError: The rotation is no such tensor.
        """
        return self._full(self._blocks_of(rotation, True))

    def D_from_matrix(self, R: Tensor) -> Tensor:
        """``[..., 3, 3]`` to ``[..., irreps.dim, irreps.dim]``; a determinant of -1 adds the parity.

        Raises:
            ShapeError, DTypeError: The matrix is no such tensor.
        """
        return self._full(self._of_matrices(_matrices(R), True))

    def D_from_quaternion(self, q: Tensor, k: Tensor | None = None) -> Tensor:
        """``[..., 4]`` to ``[..., irreps.dim, irreps.dim]``.

        Args:
            q: (w, x, y, z), of any length.
            k: ``[...]``, how many inversions there are besides; None for none.

        Raises:
            ShapeError, DTypeError, DeviceError: The operands do not fit.
        """
        return self._full(_inverted(self._of_quaternions(q, True), k))

    def D_from_angles(self, alpha: Tensor, beta: Tensor, gamma: Tensor, k: Tensor | None = None) -> Tensor:
        """Three angles ``[...]`` in radians, which broadcast, to ``[..., irreps.dim, irreps.dim]``.

        Args:
            alpha: About y, applied last. beta: About x. gamma: About y, applied first.
            k: ``[...]``, how many inversions there are besides; None for none.

        Raises:
            DTypeError, DeviceError: The operands do not fit each other.
        """
        quaternions = angles_to_quaternion(alpha, beta, gamma)
        return self._full(_inverted(self._of_quaternions(quaternions, True), k))

    def _full(self, blocks: Tensor) -> Tensor:
        blocks = torch.cat([blocks, blocks.new_zeros(*blocks.shape[:-1], 1)], -1)
        return blocks.index_select(-1, self.places.to(blocks.device)).unflatten(-1, (self.dim, self.dim))

    def extra_repr(self) -> str:
        """Irreps, kind of rotation, layout and backend."""
        return f"{self.irreps} | by {self.rotation}, {self._kind()}"


def _inverted(blocks: Tensor, k: Tensor | None) -> Tensor:
    """Blocks of even and odd irreps after so many inversions."""
    if k is None:
        return blocks
    even, odd = blocks.chunk(2, -1)
    sign = torch.where(torch.remainder(k.detach(), 2) == 1, -1.0, 1.0).to(blocks)[..., None]
    even, odd = torch.broadcast_tensors(even, odd * sign)
    return torch.cat([even, odd], -1)


class RotateFeatures(_Turns):
    r"""Features turned by a rotation: :math:`y = D(R)\, x`, or :math:`D(R)^T x` for the way back.

    Args:
        irreps: Irreps of input and output, of degrees up to 12.
        rotation: What the rotation is given as, see :class:`WignerD`: 'matrix', 'quaternion', 'angles', or 'blocks' for
            flat blocks, such as :class:`EdgeFrame` or :func:`eqlayers.functional.wigner_blocks` give them.
        method: 'dense': products with the matrices of each degree, one call for all. 'sparse', for angles alone:
            rotations about y, and between them constant sparse matrices,
            :math:`Y(\alpha)\, J\, Y(\beta)\, J^T\, Y(\gamma)`. No matrix per row is in memory, and the calls are five.
        inverse: Whether to rotate back.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        IrrepsError, ConfigError: Irreps or options that there are not, or that do not fit each other.

    Source:
        Pinchon and Hoggan 2007, doi:10.1088/1751-8113/40/7/011 (J matrices).

    Example:
        >>> turn = RotateFeatures("2x1o", "quaternion")
        >>> half_turn = torch.tensor([0.0, 0.0, 1.0, 0.0])  # about y
        >>> turn(torch.arange(1.0, 7.0), half_turn)
        tensor([-1.,  2., -3., -4.,  5., -6.])
    """

    def __init__(
        self,
        irreps: Any,
        rotation: str = "matrix",
        method: str = "dense",
        *,
        inverse: bool = False,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in = self.irreps_out = as_irreps(irreps)
        self.rotation = check_choice("rotation", rotation, (*ROTATIONS, "blocks"))
        self.method = check_choice("method", method, ("dense", "sparse"))
        self.inverse = check_flag("inverse", inverse)
        if method == "sparse" and rotation != "angles":
            raise ConfigError(
                f"rotation must be 'angles' with method='sparse', got {rotation!r}. Use method='dense' for others."
            )
        self.num_paths = len(self.irreps_in)
        self._flat = FlatLayout(self.irreps_in, layout)
        self._make(self.irreps_in)
        self._parities = rotation == "matrix" and any(ir.p == -1 for _, ir in self.irreps_in)
        if method == "dense":
            program = rotation_program(self.irreps_in, self._lmax, layout, self.inverse, self._parities)
            self._forms: tuple[Form, ...] = (Form(program),)
            return
        to_x = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # takes the axis y to x
        exchange = [representation_matrix([(1, (ir.l, 1))], to_x).numpy().copy() for _, ir in self.irreps_in]
        for matrix in exchange:
            matrix[np.abs(matrix) < 1e-14] = 0.0  # rounding; true entries are far larger
        there, back = (
            Form(basis_program(self.irreps_in, matrices, layout, layout))
            for matrices in (exchange, [matrix.T for matrix in exchange])
        )
        self._forms = (Form(turn_program(self.irreps_in, self._lmax, layout)), there, back)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Turn the features.

        Args:
            x: ``[..., irreps.dim]``.
            rotation: As the kind says; leading axes broadcast with those of x.

        Returns:
            ``[..., irreps.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: The operands do not fit the layer or each other.
        """
        self._flat.check("x", x)
        x, rotation = widest_under_autocast(x, check_floating("rotation", rotation, "[...]"))
        check_same_kind(x=x, rotation=rotation)
        if self.method == "sparse":
            return self._sparse(x, self._checked(rotation))
        if self.rotation != "blocks":
            return self._run(0, x, self._blocks_of(rotation, self._parities))
        width = blocks_dim(self._lmax)
        if rotation.ndim < 1 or rotation.shape[-1] < width:
            raise ShapeError(
                f"rotation must be [..., {width}], blocks of degrees 0 to {self._lmax}, got {list(rotation.shape)}. "
                f"Make them with lmax={self._lmax} or more."
            )
        return self._run(0, x, rotation.narrow(-1, 0, width))

    def _sparse(self, x: Tensor, angles: Tensor) -> Tensor:
        orders = torch.arange(1, self._lmax + 1, dtype=angles.dtype, device=angles.device)
        turned = (-angles.flip(-1) if self.inverse else angles)[..., None] * orders
        waves = torch.stack([turned.cos(), turned.sin()], -1).flatten(-2)  # by order, cosine and sine
        waves = torch.cat([torch.ones_like(angles)[..., None], waves], -1)
        alpha, beta, gamma = waves.unbind(-2)
        one = x.new_ones(1)
        for number, factor in ((0, gamma), (2, one), (0, beta), (1, one), (0, alpha)):
            x = self._run(number, x, factor)
        return x

    def _run(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        """One of the programs."""
        form = self._forms[number]
        lead = broadcast_lead(x=x.shape[:-1], rotation=y.shape[:-1])
        name = chosen(x.device.type, x.dtype, self.backend, form.key)
        z = apply_form((as_rows(x, lead), as_rows(y, lead), x.new_empty(0)), None, form, name)
        return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])

    def formulas(self) -> tuple[Formula, ...]:
        """Those of the matrices, unless they come as blocks or are not made."""
        return () if self.rotation == "blocks" or self.method == "sparse" else self._formulas

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, FormCall] | None:
        """All groups as one call; of the sparse method, a rotation about y."""
        return ("all groups", FormCall(dtype, device.type, self._forms[0].key)) if self._flat.dim else None

    def extra_repr(self) -> str:
        """Irreps, kind of rotation, method, layout and backend."""
        way = ", inverse" if self.inverse else ""
        return f"{self.irreps_in} | by {self.rotation}, {self.method}{way} | {self._kind()}"
