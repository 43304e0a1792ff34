"""Flat features of some irreps in two layouts.

``mul_ir`` is e3nn's (component fastest), ``ir_mul`` has the channels fastest.
"""

from __future__ import annotations

import torch
from e3nn import o3
from torch import Tensor

from eqlayers_kernels.forms.program import Slot

from ..core.checks import check_choice, check_tensor
from ..core.errors import ShapeError
from .algebra import as_irreps

LAYOUTS = ("mul_ir", "ir_mul")


def slots_of(irreps: o3.Irreps) -> list[Slot]:
    """The columns of each irreps group in a flat row, as slots."""
    return [Slot(columns.start, mul, ir.dim) for columns, (mul, ir) in zip(irreps.slices(), irreps, strict=True)]


class FlatLayout:
    """The irreps of flat features, in a layout: the columns of each group, and a check of tensors."""

    def __init__(self, irreps: o3.Irreps, layout: str) -> None:
        self.irreps = irreps
        self.dim = irreps.dim  # stored: counting irreps at every call is slow, and compilers cannot trace it
        self.layout = check_choice("layout", layout, LAYOUTS)
        self.slots = slots_of(irreps)
        self.sizes = [slot.mul * slot.dim for slot in self.slots]

    def check(self, name: str, x: Tensor) -> None:
        """Raise unless ``x`` is ``[..., irreps.dim]``."""
        dim = self.dim
        if isinstance(x, Tensor) and x.ndim >= 1 and x.shape[-1] == dim and x.layout is torch.strided:
            return  # the fast case of every call
        check_tensor(name, x, f"[..., {dim}]")
        if dim in x.shape[:-1]:
            fix = f"The features go last: move that axis with `{name}.movedim(..., -1)`."
        elif x.ndim >= 2 and x.shape[-1] * x.shape[-2] == dim:
            fix = f"The last two axes look like components and channels: pass `{name}.flatten(-2)`, layout 'ir_mul'."
        else:
            fix = "Build the layer for this width, or project the features with eqlayers.Linear first."
        raise ShapeError(f"{name} must be [..., {dim}] for irreps {self.irreps}, got {list(x.shape)}. {fix}")


def _reordered(x: Tensor, irreps: o3.Irreps, inverse: bool) -> Tensor:
    irreps = as_irreps(irreps)
    FlatLayout(irreps, "mul_ir").check("x", x)
    blocks = []
    for block, (mul, ir) in zip(x.split([part.dim for part in irreps], -1), irreps, strict=True):
        sizes = (ir.dim, mul) if inverse else (mul, ir.dim)
        blocks.append(block.unflatten(-1, sizes).transpose(-1, -2).flatten(-2))
    return torch.cat(blocks, -1) if blocks else x.clone()


def to_ir_mul(x: Tensor, irreps: o3.Irreps) -> Tensor:
    """Flat features ``[..., irreps.dim]`` from e3nn's ``mul_ir`` layout to ``ir_mul``; ShapeError for another width.

    Example:
        >>> to_ir_mul(torch.arange(6.0), o3.Irreps("2x1o")).tolist()
        [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    """
    return _reordered(x, irreps, inverse=False)


def to_mul_ir(x: Tensor, irreps: o3.Irreps) -> Tensor:
    """Flat features ``[..., irreps.dim]`` from ``ir_mul`` to e3nn's ``mul_ir`` layout; ShapeError for another width.

    Example:
        >>> to_mul_ir(torch.tensor([0.0, 3.0, 1.0, 4.0, 2.0, 5.0]), o3.Irreps("2x1o")).tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    return _reordered(x, irreps, inverse=True)
