"""Layers of rotations: Wigner D matrices, rotated features, and frames of edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.checks import check_choice, check_flag, check_tensor, got
from ...core.errors import ConfigError, DTypeError
from ...core.forms.description import Form
from ...core.forms.request import Request
from ...core.torch_internals import is_plain
from ...irreps.algebra import as_irreps, representation_matrix
from ...irreps.layout import LAYOUTS, FlatLayout
from ...sparse import ProgramInfos, infos_of
from ..base.module import FormulaModule
from ..tensor_product.lower import basis_program
from .functions import (
    KINDS,
    ROTATIONS,
    RotationPlan,
    angles_to_quaternion,
    check_last,
    check_operands,
    check_rotation,
    full_matrix,
    largest_degree,
    rotation_formulas,
    run_form,
    run_frame,
    run_rotate,
    run_wigner,
)
from .lower import blocks_dim, check_degree, frame_formula, matrix_indices, polar_rotation_program


class WignerD(FormulaModule):
    r"""The matrix that rotates features: :math:`D(R)` with :math:`x \to D(R)\, x`, e3nn's ``Irreps.D_from_*``.

    Polynomials of a unit quaternion, so that derivatives of every order are finite and right for every rotation, where
    derivatives by Euler angles of a matrix are not at :math:`\beta = 0` and :math:`\pi`. A matrix is taken to be
    orthogonal: derivatives along rotations are right, derivatives along other changes mean nothing.

    Args:
        irreps: Irreps of the features, of degrees up to 12.
        rotation: What ``forward`` gets: 'matrix' ``[..., 3, 3]``, 'quaternion' ``[..., 4]`` as (w, x, y, z), or
            'angles' ``[..., 3]`` in radians, e3nn's :math:`\alpha, \beta, \gamma` of the rotation
            :math:`Y(\alpha) X(\beta) Y(\gamma)`.
        layout: 'mul_ir' (e3nn's) or 'ir_mul', of the features.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        IrrepsError, ConfigError: Invalid irreps or options.

    Source:
        See :mod:`eqlayers.layers.rotation.lower`.

    Example:
        >>> turn = WignerD("1o + 1e", "matrix")
        >>> turn(-torch.eye(3)).diagonal()
        tensor([-1., -1., -1.,  1.,  1.,  1.])
    """

    indices: Tensor

    def __init__(
        self, irreps: Any, rotation: str = "matrix", *, layout: str = "mul_ir", backend: str | None = None
    ) -> None:
        super().__init__(check_choice("layout", layout, LAYOUTS), backend)
        self.irreps = as_irreps(irreps)
        self.rotation = check_choice("rotation", rotation, ROTATIONS)
        self.dim = self.irreps.dim
        self._formulas = rotation_formulas(largest_degree(self.irreps))
        indices = torch.from_numpy(matrix_indices(self.irreps, layout).copy())
        self.register_buffer("indices", indices, persistent=False)

    def forward(self, rotation: Tensor) -> Tensor:
        """Rotations of the layer's kind to ``[..., irreps.dim, irreps.dim]``; ShapeError or DTypeError for others."""
        return self._full(self._blocks(self.rotation, check_rotation(self.rotation, rotation)))

    def D_from_matrix(self, R: Tensor) -> Tensor:
        """``[..., 3, 3]`` to ``[..., irreps.dim, irreps.dim]``; a determinant of -1 adds the parity."""
        return self._full(self._blocks("matrix", check_last("R", R, (3, 3), "rotations")))

    def D_from_quaternion(self, q: Tensor, k: Tensor | None = None) -> Tensor:
        """``[..., 4]`` to ``[..., irreps.dim, irreps.dim]``; ShapeError, DTypeError or DeviceError for other operands.

        Args:
            q: (w, x, y, z), of any length.
            k: ``[...]``, how many inversions there are besides; None for none.
        """
        return self._full(_inverted(self._blocks("quaternion", q), k))

    def D_from_angles(self, alpha: Tensor, beta: Tensor, gamma: Tensor, k: Tensor | None = None) -> Tensor:
        """Angles ``[...]`` in radians, which broadcast, to ``[..., irreps.dim, irreps.dim]``; DTypeError, DeviceError.

        Args:
            alpha: About y, applied last. beta: About x. gamma: About y, applied first.
            k: ``[...]``, how many inversions there are besides; None for none.
        """
        quaternions = angles_to_quaternion(alpha, beta, gamma)
        return self._full(_inverted(self._blocks("quaternion", quaternions), k))

    def _blocks(self, kind: str, rotation: Tensor) -> Tensor:
        return run_wigner(self._formulas, kind, rotation, True, self.backend)

    def _full(self, blocks: Tensor) -> Tensor:
        return full_matrix(blocks, self.indices, self.dim)

    def extra_repr(self) -> str:
        """Irreps, kind of rotation, layout and backend."""
        return f"{self.irreps} | by {self.rotation}, {self._kind()}"


def _inverted(blocks: Tensor, k: Tensor | None) -> Tensor:
    """Blocks of even and odd irreps after ``k`` inversions."""
    if k is None:
        return blocks
    if check_tensor("k", k, "[...]").is_complex() or (
        k.is_cpu and is_plain((k,)) and bool((k.detach() % 1 != 0).any())
    ):
        raise DTypeError(f"k must be whole numbers of inversions, got {got(k)}. Use 0 and 1.")
    even, odd = blocks.chunk(2, -1)
    sign = torch.where(torch.remainder(k.detach(), 2) == 1, -1.0, 1.0).to(blocks)[..., None]
    even, odd = torch.broadcast_tensors(even, odd * sign)
    return torch.cat([even, odd], -1)


class RotateFeatures(FormulaModule):
    r"""Rotates features: :math:`y = D(R)\, x`, or :math:`D(R)^T x` for the inverse.

    Args:
        irreps: Irreps of input and output, of degrees up to 12.
        rotation: Its kind, see :class:`WignerD`: 'matrix', 'quaternion', 'angles', or 'blocks' for
            flat blocks, such as :class:`EdgeFrame` or :func:`eqlayers.functional.wigner_blocks` give them.
        method: 'dense': products with the matrices of each degree, one call for all. 'sparse', for angles alone:
            rotations about y, and between them constant sparse matrices,
            :math:`Y(\alpha)\, J\, Y(\beta)\, J^T\, Y(\gamma)`. No matrix per row is in memory, and the calls are five.
        inverse: Whether to rotate back.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Raises:
        IrrepsError, ConfigError: Invalid irreps or options, or options that exclude each other.

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
        self.rotation = check_choice("rotation", rotation, KINDS)
        self.method = check_choice("method", method, ("dense", "sparse"))
        self.inverse = check_flag("inverse", inverse)
        if method == "sparse" and rotation != "angles":
            raise ConfigError(
                f"rotation must be 'angles' with method='sparse', got {rotation!r}. Use method='dense' for others."
            )
        self.num_paths = len(self.irreps_in)
        self._flat, self._lmax = FlatLayout(self.irreps_in, layout), largest_degree(self.irreps_in)
        if method == "dense":
            self._plan = RotationPlan(self.irreps_in, layout, self.rotation, self.inverse)
            self._formulas = self._plan.formulas
            self._forms: tuple[Form, ...] = (self._plan.form,)
            return
        to_x = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # takes the axis y to x
        exchange = [representation_matrix([(1, (ir.l, 1))], to_x).numpy().copy() for _, ir in self.irreps_in]
        for matrix in exchange:
            matrix[np.abs(matrix) < 1e-14] = 0.0  # rounding; true entries are far larger
        exchanges = (exchange, [matrix.T for matrix in exchange])  # to the axis x, and back
        forms = [Form(basis_program(self.irreps_in, matrices, layout, layout)) for matrices in exchanges]
        self._forms = (Form(polar_rotation_program(self.irreps_in, self._lmax, layout)), *forms)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Rotate the features.

        Args:
            x: ``[..., irreps.dim]``.
            rotation: Of the shape in `WignerD`, or flat blocks; leading axes broadcast with the axes of x.

        Returns:
            ``[..., irreps.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: The operands do not fit the layer or each other.
        """
        if self.method == "dense":
            return run_rotate(self._plan, x, rotation, self.backend)
        return self._sparse(*check_operands(self._flat, x, rotation))

    def _sparse(self, x: Tensor, angles: Tensor) -> Tensor:
        check_rotation("angles", angles)
        orders = torch.arange(1, self._lmax + 1, dtype=angles.dtype, device=angles.device)
        rotated = (-angles.flip(-1) if self.inverse else angles)[..., None] * orders
        waves = torch.stack([rotated.cos(), rotated.sin()], -1).flatten(-2)  # by order, cosine and sine
        waves = torch.cat([torch.ones_like(angles)[..., None], waves], -1)
        alpha, beta, gamma = waves.unbind(-2)
        one = x.new_ones(1)
        for number, factor in ((0, gamma), (2, one), (0, beta), (1, one), (0, alpha)):
            x = run_form(self._forms[number], x, factor, self.backend)
        return x

    def formulas(self) -> tuple[Formula, ...]:
        """The formulas of the matrices; none for blocks, or with the sparse method."""
        return () if self.rotation == "blocks" or self.method == "sparse" else self._formulas

    @property
    def infos(self) -> tuple[ProgramInfos, ...]:
        """The programs as infos of sparse products: one, or for 'sparse' rotations about y and exchanges of axes."""
        return tuple(infos_of(form.program) for form in self._forms)

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, Request] | None:
        """All groups as one call; of the sparse method, a rotation about y."""
        return ("all groups", self._forms[0].request(dtype, device)) if self._flat.dim else None

    def extra_repr(self) -> str:
        """Irreps, kind of rotation, method, layout and backend."""
        inverted = ", inverse" if self.inverse else ""
        return f"{self.irreps_in} | by {self.rotation}, {self.method}{inverted} | {self._kind()}"


class EdgeFrame(FormulaModule):
    r"""Matrices :math:`D^l(e)` that rotate features into the frame of an edge, in which its direction is +y.

    .. math:: D^1(e)\, e / |e| = (0, 1, 0), \qquad x' = D^l(e)\, x

    The inverse is the transpose, as the matrices are orthogonal. Row m = 0 of :math:`D^l` is the spherical harmonic
    :math:`Y_l(e)` of norm 1.

    The frame is fixed only up to a rotation about y, and no choice of it is continuous for all directions. What users
    compute must not depend on that choice, as :math:`D^T M D\, x` does not where M commutes with rotations about y; it
    is then smooth and equivariant. Here there are two charts, each the shortest rotation to one pole: one for
    directions above a seam at :math:`e_y = -0.37`, the other below. Both poles, and all directions of simple lattices,
    are not near the seam, and derivatives of every order are right for all of them. On the seam they belong to one
    chart, which is right for results that do not depend on the choice.

    The zero vector has no frame: l = 0 has 1, and other blocks and all derivatives are 0, as
    :class:`SphericalHarmonics` has it; see there for what counts as zero. A vector's length changes nothing.

    Args:
        lmax: Largest degree, at most 12.
        backend: Name of a backend, or None for the best of the device.

    Attributes:
        lmax: Largest degree.
        dim: Length of the flat blocks, the sum of :math:`(2 l + 1)^2`.

    Raises:
        ConfigError, BackendError: A degree out of range, or an unknown backend.

    Source:
        Passaro and Zitnick 2023, arXiv:2302.03655 (features in the frames of edges).

    Example:
        >>> import torch
        >>> frame = EdgeFrame(1)
        >>> edge = torch.tensor([0.0, 3.0, 4.0])
        >>> blocks = frame(edge)
        >>> blocks.shape, (blocks[1:].view(3, 3) @ edge).round()
        (torch.Size([10]), tensor([0., 5., 0.]))
    """

    def __init__(self, lmax: int, *, backend: str | None = None) -> None:
        super().__init__(backend=backend)
        self.lmax = check_degree(lmax)
        self.dim = blocks_dim(self.lmax)
        self._formulas = (frame_formula(self.lmax),)

    def forward(self, vectors: Tensor) -> Tensor:
        """``[..., 3]`` to flat blocks ``[..., dim]``: ``[2 l + 1, 2 l + 1]`` row-major, the smallest degree first.

        Raises:
            ShapeError, DTypeError: The vectors have another shape or dtype.
        """
        return run_frame(self._formulas[0], vectors, self.backend)

    def extra_repr(self) -> str:
        """Degree, width and backend."""
        return f"lmax {self.lmax}, {self.dim} numbers per edge, backend {self.backend or 'auto'}"
