"""Backend ``reference``: the definition, term by term in float64. It is slow, and runs only if a user names it."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import ProductCall, ScaleCall


def product(call: ProductCall) -> Tensor:
    """``z[n, o] += s * einsum(x[n, i1], y[n, i2])``, one term at a time, in float64."""
    x, y = (t.double() if b else t.double().unsqueeze(0) for t, b in zip((call.x, call.y), call.batched, strict=False))
    first, second, out = call.channels
    extents = call.extents
    z = x.new_zeros(call.batch, call.out_rows, *(extents[c] for c in out))
    rows = max(x.shape[0], y.shape[0]) if x.shape[0] and y.shape[0] else 0  # one is repeated, and none stays none
    x, y = (t.expand(rows, *t.shape[1:]) for t in (x, y))
    terms = call.info.terms(*call.sparse_rows)
    scale = [1.0] * len(terms.row) if terms.scale is None else terms.scale.double().tolist()
    for s, i1, i2, o in zip(scale, terms.index1.tolist(), terms.index2.tolist(), terms.row.tolist(), strict=True):
        z[:, o] += s * torch.einsum(f"n{first},n{second}->n{out}", x[:, i1], y[:, i2])
    if not call.batched[2]:
        z = z.sum(0)
    return z.to(call.x.dtype)


def scale(call: ScaleCall) -> Tensor:
    """``y[n, m] += s * x[n, i]``, one term at a time, in float64."""
    x = call.x.double()
    y = x.new_zeros(x.shape[0], call.out_rows, x.shape[2])
    terms = call.info.as_product().terms(x.shape[1], x.shape[1])
    values = [1.0] * len(terms.row) if terms.scale is None else terms.scale.double().tolist()
    for s, i, o in zip(values, terms.index1.tolist(), terms.row.tolist(), strict=True):
        y[:, o] += s * x[:, i]
    return y.to(call.x.dtype)
