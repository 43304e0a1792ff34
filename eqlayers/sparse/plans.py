"""Way ``torch``: vectorised torch on any device and dtype.

One product can be computed in four ways, and a small cost model picks the cheapest for the sizes at hand (``PLANS``):

- ``fold1``/``fold2``: contract one operand with the dense coefficients first, then a batched matrix product with the
  other: right where that operand has few channels, as spherical harmonics do.
- ``pair``: multiply the operands row against row, then one matrix product with the coefficients: right where the
  channels are summed away.
- ``runs``: neighbouring terms that advance by 0 or 1 in each operand are one slice, so a weight that multiplies a
  whole irrep is one operation: right for weights.
- ``gather``: index both operands term by term, in blocks of bounded size: the general case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.torch_internals import as_constant, outside_of_autocast
from .call import ProductCall, ScaleCall
from .info import SparseProductInfo
from .runs import ProductSizes, find_runs, run_by_runs, scale_of

# Cost of one torch operation, in elements moved; multiply-adds of a small matrix product per element moved; and the
# largest temporary of ``gather``, in elements. Measured on two cores; they steer speed only.
_LAUNCH, _FLOPS_PER_MOVE, _BLOCK = 1e4, 8.0, 1 << 20
#: Rows that a plan is chosen for where a graph that is being traced takes any number.
ROWS = 1024
_MAX_DENSE = 1 << 22  # entries of a dense coefficient table


def product(call: ProductCall) -> Tensor:
    """Run one product; half precision is summed in float32."""
    dtype = call.accumulate
    x, y = call.x.to(dtype), call.y.to(dtype)
    letters = call.channels.canonical()
    subs1 = ("N" if call.batched[0] else "") + "I" + letters.first
    subs2 = ("N" if call.batched[1] else "") + "J" + letters.second
    summed_batch = not call.batched[2]
    expand = call.batched[2] and not (call.batched[0] or call.batched[1])
    subs_out = ("" if summed_batch or expand else "N") + "O" + letters.out
    sizes = _sizes(call)
    if sizes.terms == 0 or 0 in (sizes.batch, sizes.extent_all, sizes.rows_out):
        return call.x.new_zeros(call.out_shape)
    plan = min(PLANS, key=lambda name: PLANS[name].cost(sizes))
    with outside_of_autocast(x.device.type):
        z = PLANS[plan].run(x, y, call.info, sizes, (subs1, subs2, subs_out))
    if expand:
        z = z.unsqueeze(0).expand(call.batch, *z.shape)
    return z.to(call.x.dtype)


def _sizes(call: ProductCall) -> ProductSizes:
    extents, batch = call.extents, call.batch if type(call.batch) is int else ROWS
    terms = call.info.terms(*call.sparse_rows, call.x.device)
    return ProductSizes(
        batch1=batch if call.batched[0] else 1,
        batch2=batch if call.batched[1] else 1,
        batch=batch,
        rows1=call.sparse_rows[0],
        rows2=call.sparse_rows[1],
        rows_out=call.out_rows,
        extent1=math.prod(extents[c] for c in call.channels.first),
        extent2=math.prod(extents[c] for c in call.channels.second),
        extent_out=math.prod(extents[c] for c in call.channels.out),
        extent_all=math.prod(extents.values()),
        terms=terms.row.shape[0],
        runs=len(find_runs(call.info, terms)),
    )


# --- dense coefficients ------------------------------------------------------------------------------------------


def _dense(info: SparseProductInfo, sizes: ProductSizes, like: Tensor) -> Tensor:
    """Coefficients as a table ``[O, I, J]``."""

    def make() -> Tensor:
        terms = info.terms(sizes.rows1, sizes.rows2, like.device)
        table = torch.zeros(sizes.rows_out, sizes.rows1, sizes.rows2, dtype=torch.float64, device=terms.row.device)
        ones = torch.ones(terms.row.shape, dtype=torch.float64, device=terms.row.device)
        values = ones if terms.scale is None else terms.scale.double()
        table.index_put_((terms.row, terms.index1, terms.index2), values, accumulate=True)
        return table.to(like.device, like.dtype)

    return as_constant(info.cached(("dense", like.dtype, like.device, *sizes[3:6]), make))


def _fold(
    x: Tensor, y: Tensor, info: SparseProductInfo, sizes: ProductSizes, subs: tuple[str, str, str], side: int
) -> Tensor:
    table = _dense(info, sizes, x)
    folded, other = (x, y) if side == 1 else (y, x)
    subs_folded, subs_other = subs[side - 1], subs[2 - side]
    kept = "J" if side == 1 else "I"
    batch = "N" if "N" in subs_folded else ""
    channels = subs_folded.lstrip("NIJ")
    inner = f"{batch}O{kept}{channels}"
    a = torch.einsum(f"{subs_folded},OIJ->{inner}", folded, table)
    return torch.einsum(f"{inner},{subs_other}->{subs[2]}", a, other)


def _fold1(x: Tensor, y: Tensor, info: SparseProductInfo, sizes: ProductSizes, subs: tuple[str, str, str]) -> Tensor:
    return _fold(x, y, info, sizes, subs, 1)


def _fold2(x: Tensor, y: Tensor, info: SparseProductInfo, sizes: ProductSizes, subs: tuple[str, str, str]) -> Tensor:
    return _fold(x, y, info, sizes, subs, 2)


def _fold_cost(batch: int, rows: int, extent: int, sizes: ProductSizes) -> float:
    dense = sizes.rows_out * sizes.rows1 * sizes.rows2
    if dense > _MAX_DENSE:
        return math.inf
    moved = batch * sizes.rows_out * rows * extent
    flops = batch * dense * extent + sizes.batch * sizes.rows_out * rows * sizes.extent_all
    return 4 * _LAUNCH + 2 * moved + flops / _FLOPS_PER_MOVE


def _pair(x: Tensor, y: Tensor, info: SparseProductInfo, sizes: ProductSizes, subs: tuple[str, str, str]) -> Tensor:
    batch, channels = ("N" if "N" in subs[2] else ""), subs[2].lstrip("NO")
    pairs = torch.einsum(f"{subs[0]},{subs[1]}->{batch}IJ{channels}", x, y)
    return torch.einsum(f"{batch}IJ{channels},OIJ->{subs[2]}", pairs, _dense(info, sizes, x))


def _pair_cost(sizes: ProductSizes) -> float:
    pairs = sizes.rows1 * sizes.rows2
    if sizes.rows_out * pairs > _MAX_DENSE:
        return math.inf
    flops = sizes.batch * pairs * (sizes.extent_all + sizes.rows_out * sizes.extent_out)
    return 4 * _LAUNCH + 2 * sizes.batch * pairs * sizes.extent_out + flops / _FLOPS_PER_MOVE


def _runs_cost(sizes: ProductSizes) -> float:
    return 3 * _LAUNCH * sizes.runs + 3.0 * sizes.batch * sizes.terms * sizes.extent_all


# --- term by term -------------------------------------------------------------------------------------------------


def _gather(x: Tensor, y: Tensor, info: SparseProductInfo, sizes: ProductSizes, subs: tuple[str, str, str]) -> Tensor:
    terms = info.terms(sizes.rows1, sizes.rows2, x.device)
    dims = [s.index(c) for s, c in zip(subs, "IJO", strict=True)]
    own = [s.replace(c, "T") for s, c in zip(subs, "IJO", strict=True)]
    shape = {c: n for t, s in ((x, subs[0]), (y, subs[1])) for c, n in zip(s, t.shape, strict=True)}
    z = x.new_zeros([sizes.rows_out if c == "O" else shape[c] for c in subs[2]])
    step = max(1, _BLOCK // max(1, sizes.batch * sizes.extent_all))
    for start in range(0, sizes.terms, step):
        part = slice(start, start + step)
        a = x.index_select(dims[0], as_constant(terms.index1)[part])
        b = y.index_select(dims[1], as_constant(terms.index2)[part])
        if terms.scale is not None:
            a = a * scale_of(info, terms, x)[part].reshape([-1 if c == "T" else 1 for c in own[0]])
        piece = torch.einsum(f"{own[0]},{own[1]}->{own[2]}", a, b)
        _add_rows(z, dims[2], as_constant(terms.row)[part], piece)
    return z


def _add_rows(z: Tensor, dim: int, rows: Tensor, piece: Tensor) -> None:
    """``z[rows] += piece`` along ``dim``, in a fixed order on every device (index_add_ uses atomics on GPUs)."""
    if z.device.type == "cpu":
        z.index_add_(dim, rows, piece)
        return
    hot = torch.nn.functional.one_hot(rows, z.shape[dim]).to(z.dtype)  # [T, O]
    z.add_(torch.tensordot(piece.movedim(dim, -1), hot, dims=1).movedim(-1, dim))


def _gather_cost(sizes: ProductSizes) -> float:
    moved = sizes.batch * sizes.terms * sizes.extent_all
    return 6 * _LAUNCH * (1 + moved // _BLOCK) + 6.0 * moved


class _Plan(NamedTuple):
    run: Callable[[Tensor, Tensor, SparseProductInfo, ProductSizes, tuple[str, str, str]], Tensor]
    cost: Callable[[ProductSizes], float]


PLANS: dict[str, _Plan] = {
    "fold2": _Plan(_fold2, lambda s: _fold_cost(s.batch2, s.rows1, s.extent2, s)),
    "fold1": _Plan(_fold1, lambda s: _fold_cost(s.batch1, s.rows2, s.extent1, s)),
    "pair": _Plan(_pair, _pair_cost),
    "runs": _Plan(run_by_runs, _runs_cost),
    "gather": _Plan(_gather, _gather_cost),
}


# --- scale --------------------------------------------------------------------------------------------------------


def scale(call: ScaleCall) -> Tensor:
    """``y = S x``: one pass over the rows that terms name; a permutation is one index_select."""
    x = call.x.to(call.accumulate)
    info = call.info.as_product()
    terms = info.terms(x.shape[1], x.shape[1], x.device)
    taken = x.index_select(1, as_constant(terms.index1))
    if terms.scale is not None:
        taken = taken * scale_of(info, terms, x)[:, None]
    if info.cached(("plain", terms.row.shape[0], call.out_rows), lambda: _is_identity(terms.row, call.out_rows)):
        return taken.to(call.x.dtype)
    y = x.new_zeros(x.shape[0], call.out_rows, x.shape[2])
    _add_rows(y, 1, as_constant(terms.row), taken)
    return y.to(call.x.dtype)


def _is_identity(index: Tensor, size: int) -> bool:
    return index.shape[0] == size and bool((index == torch.arange(size, device=index.device)).all())
