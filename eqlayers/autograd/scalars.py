"""Paths that mix channels with many scalars, as matrix products of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..info.layout import FlatLayout
from ..info.scalars import ScalarPath


def add_scalar_paths(
    flat: Tensor | None,
    paths: Sequence[ScalarPath],
    layouts: Sequence[FlatLayout],
    x: Tensor,
    y: Tensor,
    w: Tensor,
) -> Tensor:
    """Add the paths' products to the product of the others.

    Args:
        flat: ``[N, out.dim]``, or None where there are no others.
        paths: Of :func:`eqlayers.info.scalars.split_scalars`.
        layouts: Of in1, in2 and out.
        x, y: ``[N, in1.dim]`` and ``[N, in2.dim]``.
        w: ``[weight_numel]``.

    Returns:
        ``[N, out.dim]``.
    """
    first, second, out = layouts
    pieces: dict[int, Tensor] = {}
    for path in paths:
        piece = _product(path, _components(first, path.i_in1, x), second.cut(y, path.i_in2), w)
        known = pieces.get(path.i_out)
        pieces[path.i_out] = piece if known is None else known + piece
    columns = []
    for number, slot in enumerate(out.slots):
        if number in pieces:
            piece = pieces[number] if out.layout == "ir_mul" else pieces[number].mT
            column = piece.reshape(x.shape[0], slot.mul * slot.dim)
            columns.append(column if flat is None else out.cut(flat, number) + column)
        else:
            columns.append(x.new_zeros(x.shape[0], slot.mul * slot.dim) if flat is None else out.cut(flat, number))
    return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


def _components(layout: FlatLayout, number: int, flat: Tensor) -> Tensor:
    """``[N, components, channels]`` of one group."""
    slot, block = layout.slots[number], layout.cut(flat, number)
    if layout.layout == "ir_mul":
        return block.unflatten(-1, (slot.dim, slot.mul))
    return block.unflatten(-1, (slot.mul, slot.dim)).mT


def _product(path: ScalarPath, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """``[N, m, u]`` and ``[N, v]`` to ``[N, m, w]``; of the two orders the one with fewer operations."""
    u, v, w = path.shape
    own = weight.narrow(0, path.offset, u * v * w).view(u, v, w) * path.factor
    if x.shape[1] == 1:
        both = (x.mT * y.unsqueeze(1)).flatten(1)
        return (both @ own.flatten(0, 1)).unsqueeze(1)
    mixed = y @ own.transpose(0, 1).reshape(v, u * w)
    return x @ mixed.unflatten(-1, (u, w))
