"""Backend ``torch``: vectorised torch on any device and dtype.

A product runs in one of two ways. With a dense table of the coefficients it is a contraction of three tensors, in the
order of fewest operations: spherical harmonics are multiplied by the coefficients first, and operands with summed
channels by each other first. If most entries of the table are zero, as for weights that multiply whole irreps,
both operands are indexed term by term.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.contraction import ROWS, Contraction
from ..core.dtypes import ACCUMULATE
from ..core.torch_internals import as_constant, outside_of_autocast
from .call import ProductCall, ScaleCall
from .info import SparseProductInfo, TermList

#: Operations of a contraction that take as long as one gathered element of a term, and the largest number of entries of
#: a table of coefficients; see docs/decisions/0026.
OPERATIONS, MOST_ENTRIES = 32.0, 1 << 22
_BLOCK = 1 << 20  # elements of the largest temporary of a product term by term


def product(call: ProductCall) -> Tensor:
    """Run one product; half precision is summed in float32."""
    dtype, letters = ACCUMULATE[call.x.dtype], call.channels.canonical()
    rows, extents = (*call.sparse_rows, call.out_rows), {k: int(n) for k, n in call.extents.items()}
    names = dict(zip("".join(call.channels), "".join(letters), strict=True))
    sizes = dict(zip("IJK", rows, strict=True)) | {names[letter]: extent for letter, extent in extents.items()}
    terms = call.info.terms(*call.sparse_rows, call.x.device)
    if terms.row.shape[0] == 0 or 0 in sizes.values():
        return call.x.new_zeros(call.out_shape)
    expand = call.batched[2] and not (call.batched[0] or call.batched[1])
    batched = *call.batched[:2], call.batched[2] and not expand
    specs = [("n" if flag else "") + row + own for flag, row, own in zip(batched, "IJK", letters, strict=True)]
    key = "contraction", *specs, *sizes.values()
    dense = call.info.cached(key, lambda: _contraction(specs, sizes, terms.row.shape[0]))
    x, y = call.x.to(dtype), call.y.to(dtype)
    with outside_of_autocast(x.device.type):
        if dense is not None:
            z = dense(_table(call.info, terms, rows, x), x, y)
        else:
            z = _by_terms(x, y, call.info, terms, specs, rows[2])
    if expand:
        z = z.unsqueeze(0).expand(call.batch, *z.shape)
    return z.to(call.x.dtype)


def _contraction(specs: list[str], sizes: dict[str, int], terms: int) -> Contraction | None:
    """The einsum of a dense table ``[I, J, K]`` of coefficients with both operands; None if single terms are faster."""
    entries = sizes["I"] * sizes["J"] * sizes["K"]
    if entries > MOST_ENTRIES:
        return None
    dense, elements = Contraction(["IJK", *specs[:2]], specs[2], sizes), terms
    for letter in {*"".join(specs)} - {*"IJK"}:
        elements *= ROWS if letter == "n" else sizes[letter]
    return dense if dense.operations <= OPERATIONS * elements else None


def _table(info: SparseProductInfo, terms: TermList, rows: tuple[int, int, int], like: Tensor) -> Tensor:
    """Coefficients as a table ``[I, J, K]``."""

    def make() -> Tensor:
        table = torch.zeros(rows, dtype=torch.float64, device=terms.row.device)
        ones = torch.ones(terms.row.shape, dtype=torch.float64, device=terms.row.device)
        values = ones if terms.scale is None else terms.scale.double()
        table.index_put_((terms.index1, terms.index2, terms.row), values, accumulate=True)
        return table.to(like.device, like.dtype)

    return as_constant(info.cached(("table", like.dtype, like.device, *rows), make))


def _by_terms(
    x: Tensor, y: Tensor, info: SparseProductInfo, terms: TermList, specs: list[str], out_rows: int
) -> Tensor:
    own = [spec.replace(row, "T") for spec, row in zip(specs, "IJK", strict=True)]
    dims = [spec.index("T") for spec in own]
    shape = {letter: size for t, spec in ((x, own[0]), (y, own[1])) for letter, size in zip(spec, t.shape, strict=True)}
    count, elements = terms.row.shape[0], 1
    for letter in {*shape} - {"T"}:
        elements *= shape[letter] if type(shape[letter]) is int else ROWS
    step = max(1, _BLOCK // max(1, elements))
    scale = None if terms.scale is None else scale_of(info, terms, x)
    z = None
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        a, b = (
            _rows(t, dim, info, name, index, part)
            for t, dim, name, index in ((x, dims[0], "index1", terms.index1), (y, dims[1], "index2", terms.index2))
        )
        if scale is not None:
            a = a * scale[part].reshape([-1 if letter == "T" else 1 for letter in own[0]])
        values = torch.einsum(f"{own[0]},{own[1]}->{own[2]}", a, b)
        if step >= count and _is_identity(info, "row", terms.row, out_rows):
            return values
        if z is None:
            z = values.new_zeros([*values.shape[: dims[2]], out_rows, *values.shape[dims[2] + 1 :]])
        _add_rows(z, dims[2], as_constant(terms.row)[part], values)
    assert z is not None
    return z


def _rows(t: Tensor, dim: int, info: SparseProductInfo, name: str, index: Tensor, part: slice) -> Tensor:
    """The rows of operand ``t`` that the terms in ``part`` multiply; a view if the terms name all rows in order."""
    if _is_identity(info, name, index, t.shape[dim]):
        return t.narrow(dim, part.start, part.stop - part.start)
    return t.index_select(dim, as_constant(index)[part])


def _is_identity(info: SparseProductInfo, name: str, index: Tensor, size: int) -> bool:
    """Whether an index is 0, 1, ..., size - 1."""
    compare = lambda: bool((index == torch.arange(size, device=index.device)).all())  # noqa: E731
    return index.shape[0] == size and bool(info.cached(("identity", name, size), compare))


def _add_rows(z: Tensor, dim: int, rows: Tensor, values: Tensor) -> None:
    """``z[rows] += values`` along ``dim``, in a fixed order on every device (index_add_ uses atomics on GPUs)."""
    if z.device.type == "cpu":
        z.index_add_(dim, rows, values)
        return
    hot = torch.nn.functional.one_hot(rows, z.shape[dim]).to(z.dtype)  # [T, O]
    z.add_(torch.tensordot(values.movedim(dim, -1), hot, dims=1).movedim(-1, dim))


def scale_of(info: SparseProductInfo, terms: TermList, like: Tensor) -> Tensor:
    """Coefficients in the dtype of ``like``, cast from float64 at the first request."""
    assert terms.scale is not None
    scale = terms.scale
    key = ("scale", like.dtype, like.device, scale.shape[0])
    return as_constant(info.cached(key, lambda: scale.to(like.device, like.dtype)))


def scale(call: ScaleCall) -> Tensor:
    """``y = S x``: gather input rows term by term, multiply by coefficients, add by output row."""
    x = call.x.to(ACCUMULATE[call.x.dtype])
    info = call.info.as_product()
    terms = info.terms(x.shape[1], x.shape[1], x.device)
    taken = x.index_select(1, as_constant(terms.index1))
    if terms.scale is not None:
        taken = taken * scale_of(info, terms, x)[:, None]
    if _is_identity(info, "row", terms.row, call.out_rows):
        return taken.to(call.x.dtype)
    y = x.new_zeros(x.shape[0], call.out_rows, x.shape[2])
    _add_rows(y, 1, as_constant(terms.row), taken)
    return y.to(call.x.dtype)
