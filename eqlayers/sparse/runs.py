"""Runs of terms: neighbouring terms that advance by 0 or 1 in each operand are one slice operation.

A weight that multiplies a whole irrep, and its gradients, are runs; so way ``torch`` does them without gathering
anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.torch_internals import as_constant, traced_for_others
from .info import SparseProductInfo, TermList


class ProductSizes(NamedTuple):
    """The sizes that the cost model reads."""

    batch1: int
    batch2: int
    batch: int
    rows1: int
    rows2: int
    rows_out: int
    extent1: int  # channels of operand 1
    extent2: int
    extent_out: int
    extent_all: int  # product over all letters
    terms: int
    runs: int


class Run(NamedTuple):
    """Consecutive terms that are one slice operation."""

    start: tuple[int, int, int]  # first row of operand 1, operand 2, result
    step: tuple[int, int, int]  # 0 or 1 each
    length: int
    scale: float | None  # common coefficient; None: all 1, or the slice below
    place: slice | None  # where the coefficients stand, if they differ


def scale_of(info: SparseProductInfo, terms: TermList, like: Tensor) -> Tensor:
    """Coefficients in the dtype of ``like``, cast once from the float64 master."""
    assert terms.scale is not None
    scale = terms.scale
    key = ("scale", like.dtype, like.device, scale.shape[0])
    return as_constant(info.cached(key, lambda: scale.to(like.device, like.dtype)))


def find_runs(info: SparseProductInfo, terms: TermList) -> list[Run]:
    """The terms cut into runs, from the first to the last."""
    return info.cached(("runs", terms.row.shape[0]), lambda: _find_runs(terms))


def _find_runs(terms: TermList) -> list[Run]:
    columns = [t.tolist() for t in (terms.index1, terms.index2, terms.row)]
    scale = None if terms.scale is None else terms.scale.double().tolist()
    count, start, out = len(columns[0]), 0, []
    while start < count:
        end = start + 1
        step = tuple(c[end] - c[start] if end < count else 0 for c in columns)
        if any(step) and all(s in (0, 1) for s in step):  # a term that repeats is a run of its own
            while end < count and all(c[end] - c[end - 1] == s for c, s in zip(columns, step, strict=True)):
                end += 1
        else:
            step = (0, 0, 0)
        common, place = None, None
        if scale is not None:
            common = scale[start] if len(set(scale[start:end])) == 1 else None
            place = slice(start, end) if common is None else None
        first = (columns[0][start], columns[1][start], columns[2][start])
        out.append(Run(first, (step[0], step[1], step[2]), end - start, common, place))
        start = end
    return out


def run_by_runs(
    x: Tensor, y: Tensor, info: SparseProductInfo, sizes: ProductSizes, subs: tuple[str, str, str]
) -> Tensor:
    """The product, one slice operation per run; ``subs`` are einsum letters with I, J, O for the sparse rows."""
    terms = info.terms(sizes.rows1, sizes.rows2, x.device)
    dims = [s.index(c) for s, c in zip(subs, "IJO", strict=True)]
    shape = {c: n for t, s in ((x, subs[0]), (y, subs[1])) for c, n in zip(s, t.shape, strict=True)}
    shape["O"] = sizes.rows_out
    runs = find_runs(info, terms)
    # Where every row of the result belongs to one run, each is written once: no zeros, no sums.
    once = info.cached(("once", *sizes[3:6]), lambda: _each_row_once(runs, sizes.rows_out))
    z = (x.new_empty if once else x.new_zeros)([shape[c] for c in subs[2]])
    for run in runs:
        a, b, c = (
            t.narrow(d, start, run.length if step else 1)
            for t, d, start, step in zip((x, y, z), dims, run.start, run.step, strict=True)
        )
        if run.place is not None:
            a = a * scale_of(info, terms, x)[run.place].reshape([-1 if s == "I" else 1 for s in subs[0]])
        _contract_into(c, a, b, subs, run, once)
    return z


def _each_row_once(runs: list[Run], rows: int) -> bool:
    written = [row for run in runs for row in range(run.start[2], run.start[2] + (run.length if run.step[2] else 1))]
    return sorted(written) == list(range(rows))


def _contract_into(z: Tensor, x: Tensor, y: Tensor, subs: tuple[str, str, str], run: Run, once: bool) -> None:
    """One slice, a matrix product where it is one, else multiply and sum. The run is letter L where it advances."""
    steps = (run.step[0] or run.place is not None, *run.step[1:])  # differing coefficients stand in operand 1
    own = [s.replace(c, "L" if step else "") for s, c, step in zip(subs, "IJO", steps, strict=True)]
    if not (steps[0] or steps[1]):  # the same product for all rows of the run
        own[2] = own[2].replace("L", "")
    x, y = (t if step else t.squeeze(s.index(c)) for t, s, c, step in zip((x, y), subs, "IJ", steps, strict=False))
    summed = (set(own[0]) | set(own[1])) - set(own[2])
    free = any((set(p) - set(q)) & set(own[2]) for p, q in ((own[0], own[1]), (own[1], own[0])))
    if len(own[2]) < z.ndim:
        z = z.squeeze(subs[2].index("O")) if run.step[2] == 0 else z.movedim(subs[2].index("O"), 0)
    if summed & set(own[0]) & set(own[1]) and free:
        _put(z, torch.einsum(f"{own[0]},{own[1]}->{own[2]}", x, y), run.scale, once)
        return
    # Axes in the order of operand 1: a product in another order walks through memory with large strides.
    order = own[0] + "".join(c for c in own[1] if c not in own[0])
    a, b = _aligned(x, own[0], order), _aligned(y, own[1], order)
    kept = [own[2].index(c) for c in order if c not in summed]
    extra = z.ndim - len(kept)
    target = z.permute([*range(extra), *(extra + k for k in kept)])
    direct = once and run.scale is None and extra == 0
    direct = direct and not traced_for_others()  # autograd differentiates an exported graph, and refuses out=
    if summed:
        over = [order.index(c) for c in sorted(summed)]
        if direct:
            torch.sum(a * b, over, out=target)
        else:
            _put(target, (a * b).sum(over), run.scale, once)
    elif direct:
        torch.mul(a, b, out=target)
    else:
        _put(target, a * b, run.scale, once)


def _put(z: Tensor, piece: Tensor, scale: float | None, once: bool) -> None:
    """Store or add ``piece``, broadcast over the rows of the run where they are all the same."""
    if not once:
        z.add_(piece, alpha=1.0 if scale is None else scale)
    elif scale is None:
        z.copy_(piece)
    else:
        z.copy_(piece * scale)


def _aligned(t: Tensor, own: str, order: str) -> Tensor:
    """``t`` with its axes in the order given and length 1 where it has no such axis."""
    present = [c for c in order if c in own]
    t = t.permute([own.index(c) for c in present])
    index: list[Any] = [slice(None) if c in own else None for c in order]
    return t[tuple(index)]
