"""Rotations as quaternions, and the matrices by which irreps turn, flat and degree by degree."""

from __future__ import annotations

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.checks import check_floating, fixed
from ...core.dtypes import check_same_kind, widest_under_autocast
from ...core.errors import ShapeError
from ..pointwise.run import run_formula
from .blocks import SEAM, check_degree, frame_formula, quaternion_formula, wigner_formula


def _check_last(name: str, value: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    """A tensor with these last axes."""
    text = ", ".join(["...", *map(str, shape)])
    check_same_kind(**{name: check_floating(name, value, f"[{text}]")})
    if value.ndim < len(shape) or value.shape[-len(shape) :] != shape:
        raise ShapeError(f"{name} must be [{text}], {what}, got {list(value.shape)}. Move these axes to the end.")
    return value


def run_blocks(base: Formula, quaternions: Tensor, backend: str | None) -> Tensor:
    """``[..., 4]`` to the flat blocks of a formula; see `wigner_blocks`.

    Raises:
        ShapeError, DTypeError: The quaternions are no such tensor.
    """
    quaternions = _check_last("quaternions", quaternions, (4,), "(w, x, y, z)")
    (blocks,) = run_formula(base, (quaternions.reshape(-1, 4),), None, backend)
    return blocks.reshape(*quaternions.shape[:-1], blocks.shape[-1])


def run_frame(base: Formula, vectors: Tensor, backend: str | None) -> Tensor:
    """``[..., 3]`` to the flat blocks of a formula; see ``nn.EdgeFrame``.

    Raises:
        ShapeError, DTypeError: The vectors are no such tensor.
    """
    rows = _check_last("vectors", vectors, (3,), "of any length").reshape(-1, 3)
    fixed = rows.detach()
    first = fixed.narrow(1, 1, 1) >= SEAM * torch.linalg.vector_norm(fixed, dim=1, keepdim=True)
    (blocks,) = run_formula(base, (rows, first.to(rows.dtype)), None, backend)
    return blocks.reshape(*vectors.shape[:-1], blocks.shape[-1])


def run_quaternion(base: Formula, matrices: Tensor, backend: str | None) -> Tensor:
    """``[..., 3, 3]`` to ``[..., 4]``; see `matrix_to_quaternion`.

    Raises:
        ShapeError, DTypeError: The matrices are no such tensor.
    """
    matrices = _check_last("matrices", matrices, (3, 3), "rotations")
    rows = matrices.reshape(-1, 9)
    diagonal = rows.detach()[:, ::4]
    trace = diagonal.sum(1, keepdim=True)
    largest = torch.cat([trace, 2 * diagonal - trace], 1).argmax(1, keepdim=True)
    chart = largest == torch.arange(4, device=largest.device)
    (quaternions,) = run_formula(base, (rows, chart.to(rows.dtype)), None, backend)
    return quaternions.reshape(*matrices.shape[:-2], 4)


@torch.compiler.assume_constant_result
def _blocks_formula(lmax: int) -> Formula:
    """Made outside of the trace of a compiler."""
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
        ShapeError, DTypeError, ConfigError: The arguments are no such things.

    Source:
        See :mod:`eqlayers.layers.rotation.blocks`; numbers of ``e3nn.o3.wigner_D``.

    Example:
        >>> half_turn = torch.tensor([0.0, 0.0, 1.0, 0.0])  # about y
        >>> wigner_blocks(half_turn, 1)[1:].view(3, 3).diagonal()
        tensor([-1.,  1., -1.])
    """
    return run_blocks(_blocks_formula(fixed(lmax)), quaternions, backend)


def edge_frame(vectors: Tensor, lmax: int, *, backend: str | None = None) -> Tensor:
    """Matrices that take features to the frame of an edge, as of :class:`eqlayers.nn.EdgeFrame`.

    Args:
        vectors: ``[..., 3]``, of any length.
        lmax: Largest degree, at most 12.
        backend: Name of a backend, or None for the best of the device.

    Returns:
        ``[..., sum((2 l + 1)^2)]``, flat blocks as of `wigner_blocks`; of the zero vector 1 for l = 0, else 0.

    Raises:
        ShapeError, DTypeError, ConfigError: The arguments are no such things.

    Source:
        Passaro and Zitnick 2023, arXiv:2302.03655 (features in the frames of edges).

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
    alpha, beta, gamma = widest_under_autocast(*angles)
    check_same_kind(alpha=alpha, beta=beta, gamma=gamma)
    total, difference, half = (alpha + gamma) / 2, (alpha - gamma) / 2, beta / 2
    cos, sin = half.cos(), half.sin()
    parts = (cos * total.cos(), sin * difference.cos(), cos * total.sin(), -sin * difference.sin())
    return torch.stack(parts, -1)


def matrix_to_quaternion(matrices: Tensor, *, backend: str | None = None) -> Tensor:
    r"""Unit quaternions of rotation matrices, up to their sign.

    Every row of :math:`4\, q q^T` is linear in the matrix; that with the largest entry on the diagonal is taken. The
    sign may jump where the row changes, and so what is computed from quaternions is to be even, as `wigner_blocks` is.

    Args:
        matrices: ``[..., 3, 3]`` rotations.
        backend: Name of a backend, or None for the best of the device.

    Returns:
        ``[..., 4]`` as (w, x, y, z), of length 1.

    Raises:
        ShapeError, DTypeError: The argument is no such tensor.

    Source:
        Shepperd 1978, doi:10.2514/3.55767b.

    Example:
        >>> matrix_to_quaternion(torch.diag(torch.tensor([-1.0, 1.0, -1.0])))
        tensor([0., 0., 1., 0.])
    """
    return run_quaternion(_quaternion_formula(), matrices, backend)
