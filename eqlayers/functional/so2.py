"""Maps of features in the frames of edges: sorted by order m, mixed by matrices, and put back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..backends import BACKENDS
from ..backends.rows import Ends, gathered, summed
from ..forms.program import Form
from ..graph import Graph
from .product import apply_form, chosen


def run_rows(form: Form, x: Tensor, y: Tensor, w: Tensor | None, graph: Graph | None, backend: str | None) -> Tensor:
    """A form row by row, or along a graph: x of senders, a row of y and w for each edge, summed at the receivers."""
    w = x.new_empty(0) if w is None else w
    name = chosen(x.device.type, x.dtype, backend, form.key)
    if graph is None or (BACKENDS[name].whole is None and form.program.paths):
        return apply_form((x, y, w), graph, form, name)
    ends = Ends(*graph.ends, graph.num_src, graph.num_dst)
    return summed("dst", apply_form((gathered("src", x, ends), y, w), None, form, name), ends)


def mix_orders(packed: Tensor, weight: Tensor, shapes: Sequence[tuple[int, int, int]], num_unsigned: int) -> Tensor:
    """Packed rows ``[N, in]`` times the matrices of every m: packed rows ``[N, out]``.

    Args:
        packed: Blocks of columns for m >= 0, then those of m < 0.
        weight: ``[weight_numel]``, block by block.
        shapes: ``[matrices, in, out]`` of the weights of each block.
        num_unsigned: Number of blocks of m = 0, which come first.
    """
    if not shapes:
        return packed.new_zeros(packed.shape[0], 0)
    signed = shapes[num_unsigned:]
    columns = packed.split([shape[1] for shape in (*shapes, *signed)], -1)
    flat = weight.split([a * b * c for a, b, c in shapes])
    matrices = [part.view(shape).unbind(0) for part, shape in zip(flat, shapes, strict=True)]
    plus, minus = [], []
    for number, (first, own) in enumerate(zip(columns, matrices, strict=False)):
        if number < num_unsigned:
            plus.append(first @ own[0])
            continue
        other = columns[len(shapes) + number - num_unsigned]
        positive, negative = first @ own[0], other @ own[0]
        if len(own) == 2:  # (x_m + i x_-m) (W1 + i W2)
            positive, negative = positive - other @ own[1], negative + first @ own[1]
        plus.append(positive)
        minus.append(negative)
    return torch.cat([*plus, *minus], -1)
