"""The matrices by which features turn, and features turned by rotations, dense."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.apply import apply_form, as_rows
from ...core.backends import check_backend
from ...core.backends.forms import chosen
from ...core.backends.rows import taken
from ...core.checks import check_choice, check_flag, check_floating
from ...core.dtypes import broadcast_lead, check_same_kind, widest_under_autocast
from ...core.errors import ShapeError
from ...core.forms.program import Form
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS, FlatLayout
from .blocks import blocks_dim, check_degree, quaternion_formula, wigner_formula
from .functions import angles_to_quaternion, run_blocks, run_quaternion
from .lower import matrix_places, rotation_program

#: What a rotation is given as -> its last axes.
ROTATIONS: dict[str, tuple[int, ...]] = {"matrix": (3, 3), "quaternion": (4,), "angles": (3,)}
#: Features may also be turned by flat blocks.
KINDS = (*ROTATIONS, "blocks")


def largest_degree(irreps: Irreps) -> int:
    """The largest degree of irreps, if there are formulas for it.

    Raises:
        ConfigError: It is too large.
    """
    return check_degree(max((ir.l for _, ir in irreps), default=0))


def turning_formulas(lmax: int) -> tuple[Formula, Formula]:
    """Blocks of a quaternion, up to a degree, and a quaternion of a matrix."""
    return wigner_formula(lmax), quaternion_formula()


class Turning:
    """The product that rotates features of some irreps by blocks of matrices.

    Args:
        irreps: Of the features, of degrees up to 12.
        layout: 'mul_ir' or 'ir_mul'.
        kind: What rotations are given as, of `KINDS`.
        inverse: Whether to rotate back.

    Attributes:
        form: Features times blocks.
        formulas: The formulas of the blocks, see `turning_formulas`.
    """

    def __init__(self, irreps: Irreps, layout: str, kind: str, inverse: bool = False) -> None:
        self.flat, self.kind = FlatLayout(irreps, layout), kind
        self.lmax = largest_degree(irreps)
        self.formulas, self.width = turning_formulas(self.lmax), blocks_dim(self.lmax)
        self.parities = kind == "matrix" and any(ir.p == -1 for _, ir in irreps)
        self.form = Form(rotation_program(irreps, self.lmax, layout, inverse, self.parities))


_turning = lru_cache(maxsize=256)(Turning)


def check_rotation(kind: str, rotation: Tensor) -> Tensor:
    """A rotation of that kind.

    Raises:
        ShapeError, DTypeError: No such tensor.
    """
    shape = ROTATIONS[kind]
    text = ", ".join(["...", *map(str, shape)])
    check_floating("rotation", rotation, f"[{text}]")
    if rotation.ndim < len(shape) or rotation.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"rotation must be [{text}], of the kind {kind!r}, got {list(rotation.shape)}. Name the kind "
            f"that you pass: {', '.join(ROTATIONS)}."
        )
    return rotation


def run_turned(
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
    """``[..., 1]``: the determinant's sign, which is the parity."""
    first, second, third = matrices.detach().unbind(-2)
    volume = (first * torch.linalg.cross(second, third)).sum(-1, keepdim=True)
    return torch.where(volume < 0, -1.0, 1.0).to(matrices.dtype)


def full_matrix(blocks: Tensor, places: Tensor, dim: int) -> Tensor:
    """Blocks of both parities to ``[..., dim, dim]``, by the places of its entries, see `matrix_places`."""
    blocks = torch.cat([blocks, blocks.new_zeros(*blocks.shape[:-1], 1)], -1)
    return taken(blocks, places.to(blocks.device), blocks.ndim - 1).unflatten(-1, (dim, dim))


def run_rotate(turning: Turning, x: Tensor, rotation: Tensor, backend: str | None) -> Tensor:
    """Features turned; see `rotate`.

    Raises:
        ShapeError, DTypeError, DeviceError: The operands do not fit.
    """
    x, rotation = check_operands(turning.flat, x, rotation)
    if turning.kind != "blocks":
        check_rotation(turning.kind, rotation)
        blocks = run_turned(turning.formulas, turning.kind, rotation, turning.parities, backend)
        return run_form(turning.form, x, blocks, backend)
    width = turning.width
    if rotation.ndim < 1 or rotation.shape[-1] < width:
        raise ShapeError(
            f"rotation must be [..., {width}], blocks of degrees 0 to {turning.lmax}, got {list(rotation.shape)}. "
            f"Make them with lmax={turning.lmax} or more."
        )
    return run_form(turning.form, x, rotation.narrow(-1, 0, width), backend)


def check_operands(flat: FlatLayout, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Features of the layout and something of their kind, in one dtype.

    Raises:
        ShapeError, DTypeError, DeviceError: They are not.
    """
    FlatLayout.check(flat, "x", x)  # compilers guard no methods of constants, which it is in functions
    x, rotation = widest_under_autocast(x, check_floating("rotation", rotation, "[...]"))
    check_same_kind(x=x, rotation=rotation)
    return x, rotation


def run_form(form: Form, x: Tensor, y: Tensor, backend: str | None) -> Tensor:
    """A product without weights, ``[..., width]`` of all three, row by row."""
    lead = broadcast_lead(x=x.shape[:-1], rotation=y.shape[:-1])
    name = chosen(x.device.type, x.dtype, backend, form.key)
    z = apply_form((as_rows(x, lead), as_rows(y, lead), x.new_empty(0)), None, form, name)
    return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])


# -- functions --------------------------------------------------------------------------------------------------------


@torch.compiler.assume_constant_result
def _read(irreps: Any, layout: str, kind: str, inverse: bool) -> Turning:
    """Made outside of the trace of a compiler."""
    return _turning(as_irreps(irreps), check_choice("layout", layout, LAYOUTS), kind, inverse)


@torch.compiler.assume_constant_result
def _places(irreps: Any, layout: str, device: str) -> Tensor:
    return torch.from_numpy(matrix_places(as_irreps(irreps), layout)).to(device)


def wigner_D(
    irreps: Any, rotation: Tensor, kind: str = "matrix", *, layout: str = "mul_ir", backend: str | None = None
) -> Tensor:
    r"""The matrix that rotates features, as in :class:`eqlayers.nn.WignerD`.

    Args:
        irreps: Irreps of the features, of degrees up to 12.
        rotation: ``[..., 3, 3]``, ``[..., 4]`` or ``[..., 3]``.
        kind: What the rotation is given as: 'matrix', 'quaternion' (w, x, y, z) or 'angles' in radians.
        layout: 'mul_ir' (e3nn's) or 'ir_mul', of the features.
        backend: Name of a backend, or None for the first that accepts.

    Returns:
        ``[..., irreps.dim, irreps.dim]``.

    Raises:
        IrrepsError, ConfigError: Irreps or options that there are not.
        ShapeError, DTypeError: The rotation is no such tensor.

    Source:
        See :mod:`eqlayers.layers.rotation.blocks`; numbers of e3nn's ``Irreps.D_from_matrix`` and similar methods.

    Example:
        >>> wigner_D("1o + 1e", -torch.eye(3)).diagonal()
        tensor([-1., -1., -1.,  1.,  1.,  1.])
    """
    kind = check_choice("kind", kind, ROTATIONS)
    check_backend(backend)
    turning = _read(irreps, layout, kind, False)
    blocks = run_turned(turning.formulas, kind, check_rotation(kind, rotation), True, backend)
    return full_matrix(blocks, _places(irreps, layout, str(blocks.device)), turning.flat.dim)


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
    r"""Rotate features: :math:`y = D(R)\, x`, as in :class:`eqlayers.nn.RotateFeatures`.

    Args:
        x: ``[..., irreps.dim]``.
        irreps: Irreps of the features, of degrees up to 12.
        rotation: ``[..., 3, 3]``, ``[..., 4]``, ``[..., 3]`` or blocks; leading axes broadcast with the axes of x.
        kind: What the rotation is given as: 'matrix', 'quaternion' (w, x, y, z), 'angles' in radians, or 'blocks' as of
            :func:`wigner_blocks` and :func:`edge_frame`.
        inverse: Whether to rotate back.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Returns:
        ``[..., irreps.dim]``.

    Raises:
        IrrepsError, ConfigError: Irreps or options that there are not.
        ShapeError, DTypeError, DeviceError: The operands do not fit each other.

    Source:
        See :mod:`eqlayers.layers.rotation.blocks`.

    Example:
        >>> half_turn = torch.tensor([0.0, 0.0, 1.0, 0.0])  # about y
        >>> rotate(torch.arange(1.0, 7.0), "2x1o", half_turn, "quaternion")
        tensor([-1.,  2., -3., -4.,  5., -6.])
    """
    kind, inverse = check_choice("kind", kind, KINDS), check_flag("inverse", inverse)
    check_backend(backend)
    return run_rotate(_read(irreps, layout, kind, inverse), x, rotation, backend)
