"""Rotations as quaternions, Wigner D matrices, and rotated features."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.apply import run_by_row
from ...core.backends import check_backend
from ...core.backends.rows import taken
from ...core.checks import check_choice, check_flag, check_floating, fixed
from ...core.dtypes import broadcast_lead, check_same_dtype, of_one_dtype
from ...core.errors import ShapeError
from ...core.forms.description import Form
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS, FlatLayout
from ..base.module import run_formula
from .lower import (
    SEAM,
    blocks_dim,
    check_degree,
    frame_formula,
    matrix_indices,
    quaternion_formula,
    rotation_program,
    wigner_formula,
)


def check_last(
    name: str, value: Tensor, shape: tuple[int, ...], what: str, fix: str = "Move these axes to the end."
) -> Tensor:
    """A floating-point tensor whose last axes are ``shape``; ShapeError or DTypeError for others."""
    text = ", ".join(["...", *map(str, shape)])
    check_same_dtype(**{name: check_floating(name, value, f"[{text}]")})
    if value.ndim < len(shape) or value.shape[-len(shape) :] != shape:
        raise ShapeError(f"{name} must be [{text}], {what}, got {list(value.shape)}. {fix}")
    return value


def run_blocks(base: Formula, quaternions: Tensor, backend: str | None) -> Tensor:
    """Evaluate a `wigner_formula` at quaternions: ``[..., 4]`` to flat blocks, as `wigner_blocks` returns them."""
    quaternions = check_last("quaternions", quaternions, (4,), "(w, x, y, z)")
    (blocks,) = run_formula(base, (quaternions.reshape(-1, 4),), None, backend)
    return blocks.reshape(*quaternions.shape[:-1], blocks.shape[-1])


def run_frame(base: Formula, vectors: Tensor, backend: str | None) -> Tensor:
    """Evaluate a `frame_formula` at vectors: ``[..., 3]`` to flat blocks, as ``nn.EdgeFrame`` returns them."""
    rows = check_last("vectors", vectors, (3,), "of any length").reshape(-1, 3)
    detached = rows.detach()
    first = detached.narrow(1, 1, 1) >= SEAM * torch.linalg.vector_norm(detached, dim=1, keepdim=True)
    (blocks,) = run_formula(base, (rows, first.to(rows.dtype)), None, backend)
    return blocks.reshape(*vectors.shape[:-1], blocks.shape[-1])


def run_quaternion(base: Formula, matrices: Tensor, backend: str | None) -> Tensor:
    """Evaluate the `quaternion_formula` at rotation matrices: ``[..., 3, 3]`` to quaternions ``[..., 4]``."""
    matrices = check_last("matrices", matrices, (3, 3), "rotations")
    rows = matrices.reshape(-1, 9)
    diagonal = rows.detach()[:, ::4]
    trace = diagonal.sum(1, keepdim=True)
    largest = torch.cat([trace, 2 * diagonal - trace], 1).argmax(1, keepdim=True)
    chart = largest == torch.arange(4, device=largest.device)
    (quaternions,) = run_formula(base, (rows, chart.to(rows.dtype)), None, backend)
    return quaternions.reshape(*matrices.shape[:-2], 4)


# compilers do not trace these calls, and name their constants by the names of these functions
@torch.compiler.assume_constant_result
def _blocks_formula(lmax: int) -> Formula:
    return wigner_formula(check_degree(lmax))


@torch.compiler.assume_constant_result
def _frame_formula(lmax: int) -> Formula:
    return frame_formula(check_degree(lmax))


@torch.compiler.assume_constant_result
def _quaternion_formula() -> Formula:
    return quaternion_formula()


def wigner_blocks(quaternions: Tensor, lmax: int, *, backend: str | None = None) -> Tensor:
    r"""Wigner D matrices of rotations, of degrees 0 to ``lmax``, as polynomials of unit quaternions.

    Smooth everywhere, with derivatives of every order: no angles are formed. Quaternions q and -q, and quaternions of
    any length, are one rotation. The zero quaternion has matrices 0 for l > 0.

    Args:
        quaternions: ``[..., 4]`` as (w, x, y, z).
        lmax: Largest degree, at most 12.
        backend: Name of a backend, or None for the best of the device.

    Returns:
        ``[..., sum((2 l + 1)^2)]``: flat blocks ``[2 l + 1, 2 l + 1]``, row-major, the smallest degree first.

    Raises:
        ShapeError, DTypeError, ConfigError: Arguments of another shape, dtype or range.

    Source:
        See :mod:`eqlayers.layers.rotation.lower`; numbers of ``e3nn.o3.wigner_D``.

    Example:
        >>> half_turn = torch.tensor([0.0, 0.0, 1.0, 0.0])  # about y
        >>> wigner_blocks(half_turn, 1)[1:].view(3, 3).diagonal()
        tensor([-1.,  1., -1.])
    """
    return run_blocks(_blocks_formula(fixed(lmax)), quaternions, backend)


def edge_frame(vectors: Tensor, lmax: int, *, backend: str | None = None) -> Tensor:
    """:class:`eqlayers.nn.EdgeFrame` as a function, ``[..., 3]`` to flat blocks ``[..., sum((2 l + 1)^2)]``.

    Arguments and errors are as of the layer and of `wigner_blocks`, which says how blocks lie.

    Example:
        >>> edge = torch.tensor([0.0, 3.0, 4.0])
        >>> (edge_frame(edge, 1)[1:].view(3, 3) @ edge).round()
        tensor([0., 5., 0.])
    """
    return run_frame(_frame_formula(fixed(lmax)), vectors, backend)


def angles_to_quaternion(alpha: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
    r"""Quaternions of :math:`Y(\alpha) X(\beta) Y(\gamma)`, e3nn's Euler angles: gamma is applied first.

    Args:
        alpha, beta, gamma: ``[...]`` in radians; they broadcast.

    Returns:
        ``[..., 4]`` as (w, x, y, z).

    Raises:
        DTypeError, DeviceError: The angles do not fit each other.

    Example:
        >>> angles_to_quaternion(*torch.tensor([0.0, 3.14159265, 0.0])).abs().round()
        tensor([0., 1., 0., 0.])
    """
    angles = [check_floating(n, v, "[...]") for n, v in (("alpha", alpha), ("beta", beta), ("gamma", gamma))]
    alpha, beta, gamma = of_one_dtype(alpha=angles[0], beta=angles[1], gamma=angles[2])
    total, difference, half = (alpha + gamma) / 2, (alpha - gamma) / 2, beta / 2
    cos, sin = half.cos(), half.sin()
    parts = (cos * total.cos(), sin * difference.cos(), cos * total.sin(), -sin * difference.sin())
    return torch.stack(parts, -1)


def matrix_to_quaternion(matrices: Tensor, *, backend: str | None = None) -> Tensor:
    r"""Unit quaternions of rotation matrices, up to their sign.

    Every row of :math:`4\, q q^T` is linear in the matrix; the row with the largest diagonal entry is used. The
    sign may jump where the row changes, so functions of these quaternions must be even, as `wigner_blocks` is.

    Args:
        matrices: ``[..., 3, 3]`` rotations.
        backend: Name of a backend, or None for the best of the device.

    Returns:
        ``[..., 4]`` as (w, x, y, z), of length 1.

    Raises:
        ShapeError, DTypeError: The argument has another shape or dtype.

    Source:
        Shepperd 1978, doi:10.2514/3.55767b.

    Example:
        >>> matrix_to_quaternion(torch.diag(torch.tensor([-1.0, 1.0, -1.0])))
        tensor([0., 0., 1., 0.])
    """
    return run_quaternion(_quaternion_formula(), matrices, backend)


#: Kind of a rotation -> its last axes.
ROTATIONS: dict[str, tuple[int, ...]] = {"matrix": (3, 3), "quaternion": (4,), "angles": (3,)}
#: Features may also be rotated by flat blocks.
KINDS = (*ROTATIONS, "blocks")


def largest_degree(irreps: Irreps) -> int:
    """The largest degree of irreps; ConfigError above `LARGEST_DEGREE`."""
    return check_degree(max((ir.l for _, ir in irreps), default=0))


def rotation_formulas(lmax: int) -> tuple[Formula, Formula]:
    """The formulas from quaternions to Wigner D blocks of degrees 0 to ``lmax``, and from matrices to quaternions."""
    return wigner_formula(lmax), quaternion_formula()


class RotationPlan:
    """The plan of a layer that rotates features by Wigner D matrices, or by their transposes."""

    def __init__(self, irreps: Irreps, layout: str, kind: str, inverse: bool = False) -> None:
        self.flat, self.kind = FlatLayout(irreps, layout), kind
        self.lmax = largest_degree(irreps)
        self.formulas, self.width = rotation_formulas(self.lmax), blocks_dim(self.lmax)
        self.parities = kind == "matrix" and any(ir.p == -1 for _, ir in irreps)
        self.form = Form(rotation_program(irreps, self.lmax, layout, inverse, self.parities))


_plan = lru_cache(maxsize=256)(RotationPlan)


def check_rotation(kind: str, rotation: Tensor) -> Tensor:
    """Check a rotation given as ``kind`` ('matrix', 'quaternion', ...): ShapeError or DTypeError."""
    fix = f"Name the kind that you pass: {', '.join(ROTATIONS)}."
    return check_last("rotation", rotation, ROTATIONS[kind], f"of the kind {kind!r}", fix)


def run_wigner(
    formulas: tuple[Formula, Formula], kind: str, rotation: Tensor, parities: bool, backend: str | None
) -> Tensor:
    """Wigner D blocks of a checked rotation, flattened; with parity, blocks of even irreps, then of odd ones."""
    sign = None
    if kind == "matrix":
        sign = _sign(rotation)
        rotation = run_quaternion(formulas[1], rotation * sign[..., None], backend)
    elif kind == "angles":
        rotation = angles_to_quaternion(*rotation.unbind(-1))
    blocks = run_blocks(formulas[0], rotation, backend)
    return torch.cat([blocks, blocks if sign is None else blocks * sign], -1) if parities else blocks


def _sign(matrices: Tensor) -> Tensor:
    """The sign of the determinant of each matrix, ``[..., 1]``."""
    first, second, third = matrices.detach().unbind(-2)
    volume = (first * torch.linalg.cross(second, third)).sum(-1, keepdim=True)
    return torch.where(volume < 0, -1.0, 1.0).to(matrices.dtype)


def full_matrix(blocks: Tensor, indices: Tensor, dim: int) -> Tensor:
    """The matrix ``[..., dim, dim]`` from blocks of both parities, by the indices of `matrix_indices`."""
    blocks = torch.cat([blocks, blocks.new_zeros(*blocks.shape[:-1], 1)], -1)
    return taken(blocks, indices.to(blocks.device), blocks.ndim - 1).unflatten(-1, (dim, dim))


def run_rotate(plan: RotationPlan, x: Tensor, rotation: Tensor, backend: str | None) -> Tensor:
    """Rotate features by the plan's kind of rotation, and check both: ``[..., dim]`` to the same."""
    x, rotation = check_operands(plan.flat, x, rotation)
    if plan.kind != "blocks":
        check_rotation(plan.kind, rotation)
        blocks = run_wigner(plan.formulas, plan.kind, rotation, plan.parities, backend)
        return run_form(plan.form, x, blocks, backend)
    width = plan.width
    if rotation.ndim < 1 or rotation.shape[-1] < width:
        raise ShapeError(
            f"rotation must be [..., {width}], blocks of degrees 0 to {plan.lmax}, got {list(rotation.shape)}. "
            f"Make them with lmax={plan.lmax} or more."
        )
    return run_form(plan.form, x, rotation.narrow(-1, 0, width), backend)


def check_operands(flat: FlatLayout, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Features and rotations in one dtype and on one device, or ShapeError, DTypeError or DeviceError."""
    FlatLayout.check(flat, "x", x)  # compilers do not guard methods of constants such as the layout
    x, rotation = of_one_dtype(x=x, rotation=check_floating("rotation", rotation, "[...]"))
    return x, rotation


def run_form(form: Form, x: Tensor, y: Tensor, backend: str | None) -> Tensor:
    """Run a product without weights row by row, on x and y ``[..., width]``."""
    return run_by_row(form, x, y, broadcast_lead(x=x.shape[:-1], rotation=y.shape[:-1]), backend)


@torch.compiler.assume_constant_result
def _read(irreps: Any, layout: str, kind: str, inverse: bool) -> RotationPlan:
    """The cached plan of irreps; compilers do not trace this."""
    return _plan(as_irreps(irreps), check_choice("layout", layout, LAYOUTS), kind, inverse)


@torch.compiler.assume_constant_result
def _indices(irreps: Any, layout: str, device: str) -> Tensor:
    return torch.from_numpy(matrix_indices(as_irreps(irreps), layout)).to(device)


def wigner_D(
    irreps: Any, rotation: Tensor, kind: str = "matrix", *, layout: str = "mul_ir", backend: str | None = None
) -> Tensor:
    """:class:`eqlayers.nn.WignerD` as a function, a rotation to ``[..., irreps.dim, irreps.dim]``; errors as there.

    Args:
        irreps, layout, backend: See the layer.
        rotation: ``[..., 3, 3]``, ``[..., 4]`` or ``[..., 3]``.
        kind: Of the rotation: 'matrix', 'quaternion' (w, x, y, z) or 'angles' in radians.

    Example:
        >>> wigner_D("1o + 1e", -torch.eye(3)).diagonal()
        tensor([-1., -1., -1.,  1.,  1.,  1.])
    """
    kind = check_choice("kind", kind, ROTATIONS)
    check_backend(backend)
    plan = _read(irreps, layout, kind, False)
    blocks = run_wigner(plan.formulas, kind, check_rotation(kind, rotation), True, backend)
    return full_matrix(blocks, _indices(irreps, layout, str(blocks.device)), plan.flat.dim)


def rotate(
    x: Tensor,
    irreps: Any,
    rotation: Tensor,
    kind: str = "matrix",
    *,
    inverse: bool = False,
    layout: str = "mul_ir",
    backend: str | None = None,
) -> Tensor:
    """:class:`eqlayers.nn.RotateFeatures` as a function, ``[..., irreps.dim]`` to the same; errors as of the layer.

    Args:
        x, rotation: ``[..., irreps.dim]``, and ``[..., 3, 3]``, ``[..., 4]``, ``[..., 3]`` or blocks; axes broadcast.
        irreps, kind, inverse, layout, backend: See the layer, whose argument ``rotation`` is ``kind``.

    Example:
        >>> half_turn = torch.tensor([0.0, 0.0, 1.0, 0.0])  # about y
        >>> rotate(torch.arange(1.0, 7.0), "2x1o", half_turn, "quaternion")
        tensor([-1.,  2., -3., -4.,  5., -6.])
    """
    kind, inverse = check_choice("kind", kind, KINDS), check_flag("inverse", inverse)
    check_backend(backend)
    return run_rotate(_read(irreps, layout, kind, inverse), x, rotation, backend)
