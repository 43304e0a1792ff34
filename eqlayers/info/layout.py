"""Features as flat tensors of some irreps, and as blocks ``[..., M, C]`` with the channels last.

``mul_ir`` is e3nn's flat layout (component fastest), ``ir_mul`` has the channels fastest. Irreps of one multiplicity C
form one block; its M rows are their components in order. Kernels see blocks only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from e3nn import o3
from torch import Tensor

from ..algebra import as_irreps
from ..checks import check_choice, check_tensor
from ..errors import ShapeError

LAYOUTS = ("mul_ir", "ir_mul")


class Slot(NamedTuple):
    """Where one irreps group stands: its columns in the flat tensor and its rows in the block of its multiplicity."""

    columns: slice
    mul: int
    dim: int
    row: int


class FlatLayout:
    """Splits flat features into blocks and joins blocks to flat features.

    Args:
        irreps: Irreps of the flat tensor.
        layout: 'mul_ir' or 'ir_mul'.
    """

    def __init__(self, irreps: o3.Irreps, layout: str) -> None:
        self.irreps = irreps
        self.dim = irreps.dim  # kept: counting irreps at every call is slow, and no compiler can trace it
        self.layout = check_choice("layout", layout, LAYOUTS)
        self.rows: dict[int, int] = {}
        self.slots: list[Slot] = []
        for columns, (mul, ir) in zip(irreps.slices(), irreps, strict=True):
            self.slots.append(Slot(columns, mul, ir.dim, self.rows.get(mul, 0)))
            self.rows[mul] = self.rows.get(mul, 0) + ir.dim
        self._channels_last = layout == "ir_mul" or all(s.mul <= 1 or s.dim == 1 for s in self.slots)

    def check(self, name: str, x: Tensor) -> None:
        """Raise unless ``x`` is ``[..., irreps.dim]``."""
        dim = self.dim
        if isinstance(x, Tensor) and x.ndim >= 1 and x.shape[-1] == dim and x.layout is torch.strided:
            return  # at once: this stands in the way of every call
        check_tensor(name, x, f"[..., {dim}]")
        if dim in x.shape[:-1]:
            fix = f"The features go last: move that axis with `{name}.movedim(..., -1)`."
        elif x.ndim >= 2 and x.shape[-1] * x.shape[-2] == dim:
            fix = f"The last two axes look like components and channels: pass `{name}.flatten(-2)`, layout 'ir_mul'."
        else:
            fix = "Build the layer for this width, or project the features with eqlayers.Linear first."
        raise ShapeError(f"{name} must be [..., {dim}] for irreps {self.irreps}, got {list(x.shape)}. {fix}")

    def cut(self, x: Tensor, number: int) -> Tensor:
        """The columns of one group, ``[..., mul * dim]``."""
        slot = self.slots[number]
        return x.narrow(-1, slot.columns.start, slot.mul * slot.dim)

    def block(self, x: Tensor, mul: int) -> Tensor:
        """The irreps of multiplicity ``mul`` as ``[..., M, mul]``."""
        slots = [s for s in self.slots if s.mul == mul]
        start, stop = slots[0].columns.start, slots[-1].columns.stop
        together = stop - start == mul * self.rows[mul]
        if together and (self._channels_last or all(s.dim == 1 for s in slots)):
            return x.narrow(-1, start, stop - start).unflatten(-1, (self.rows[mul], mul))
        pieces = []
        for slot in slots:
            piece = x.narrow(-1, slot.columns.start, slot.mul * slot.dim)
            if self.layout == "ir_mul":
                pieces.append(piece.unflatten(-1, (slot.dim, mul)))
            else:
                pieces.append(piece.unflatten(-1, (mul, slot.dim)).transpose(-1, -2))
        return torch.cat(pieces, -2) if len(pieces) > 1 else pieces[0]

    def join(self, blocks: Mapping[int, Tensor], lead: tuple[int, ...], like: Tensor) -> Tensor:
        """Flat ``[*lead, irreps.dim]`` from blocks by multiplicity; groups without a block are zero."""
        if len(self.rows) == 1 and len(blocks) == 1 and self._channels_last:
            return next(iter(blocks.values())).flatten(-2)
        pieces = []
        for slot in self.slots:
            if slot.mul not in blocks:
                pieces.append(like.new_zeros(*lead, slot.mul * slot.dim))
                continue
            piece = blocks[slot.mul].narrow(-2, slot.row, slot.dim)
            pieces.append((piece if self.layout == "ir_mul" else piece.transpose(-1, -2)).flatten(-2))
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat(pieces, -1) if pieces else like.new_zeros(*lead, 0)


def _reordered(x: Tensor, irreps: o3.Irreps, inverse: bool) -> Tensor:
    irreps = as_irreps(irreps)
    FlatLayout(irreps, "mul_ir").check("x", x)
    pieces = []
    for piece, (mul, ir) in zip(x.split([part.dim for part in irreps], -1), irreps, strict=True):
        sizes = (ir.dim, mul) if inverse else (mul, ir.dim)
        pieces.append(piece.unflatten(-1, sizes).transpose(-1, -2).flatten(-2))
    return torch.cat(pieces, -1) if pieces else x.clone()


def to_ir_mul(x: Tensor, irreps: o3.Irreps) -> Tensor:
    """Flat features from e3nn's ``mul_ir`` layout to ``ir_mul``, ``[..., irreps.dim]``.

    Raises:
        ShapeError: The last axis is not ``irreps.dim`` long.

    Example:
        >>> to_ir_mul(torch.arange(6.0), o3.Irreps("2x1o")).tolist()
        [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    """
    return _reordered(x, irreps, inverse=False)


def to_mul_ir(x: Tensor, irreps: o3.Irreps) -> Tensor:
    """Flat features from ``ir_mul`` to e3nn's ``mul_ir`` layout, ``[..., irreps.dim]``.

    Raises:
        ShapeError: The last axis is not ``irreps.dim`` long.

    Example:
        >>> to_mul_ir(torch.tensor([0.0, 3.0, 1.0, 4.0, 2.0, 5.0]), o3.Irreps("2x1o")).tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    return _reordered(x, irreps, inverse=True)
