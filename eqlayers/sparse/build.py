"""Builds the index structures (infos) of a sparse operation and of its gradients from a list of terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.checks import check_integer, got
from ..core.errors import DTypeError, ShapeError
from .info import Infos, SparseProductInfo, SparseScaleInfo, check_in_range, check_lengths, check_one_dimensional

Index = Tensor | np.ndarray | Sequence[int]
#: Integer dtypes that torch can store, but not compare.
_WIDER = (torch.uint16, torch.uint32)
Scale = Tensor | np.ndarray | Sequence[float] | None


def _index(name: str, values: Any, size: int, size_name: str) -> Tensor:
    check_integer(size_name, size, 0, what="a count of rows", error=ShapeError)
    index = _tensor(name, values, "integers", "Pass int64 indices.")
    if index.numel() == 0 or not (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool):
        index = index.long()
    check_one_dimensional(name, index, integer=True)
    check_in_range(name, index, size, size_name)
    return index


def _tensor(name: str, values: Any, what: str, fix: str) -> Tensor:
    try:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
        if not (tensor.is_meta or tensor.is_quantized):
            return tensor.to("cpu", torch.int64) if tensor.dtype in _WIDER else tensor.to("cpu")
    except Exception:  # numpy and torch raise many types for objects without numbers
        pass
    raise DTypeError(f"{name} must hold {what}, got {got(values)}. {fix}") from None


def _terms(scale: Scale, **indices: Tensor) -> Tensor | None:
    """Coefficients in float64, one per term, or None; the infos check that they require no gradient."""
    tensor = None if scale is None else _tensor("scale", scale, "real constants", "Pass numbers, or None for 1.")
    check_lengths(indices if tensor is None else {**indices, "scale": tensor})
    return tensor if tensor is None or tensor.is_complex() else tensor.to(torch.float64)


def _no_identity(index: Tensor, size: int) -> Tensor | None:
    """The index, or None if it is the identity on an axis of ``size`` elements."""
    return None if index.shape[0] == size and torch.equal(index, torch.arange(size, device=index.device)) else index


def _segments(out: Tensor, size: int) -> tuple[Tensor, Tensor | None]:
    """The stable order of terms by output row, and row boundaries ``[size + 1]``; None for one term per row."""
    order = torch.argsort(out, stable=True)
    counts = torch.bincount(out, minlength=size)
    if out.shape[0] == size and bool((counts == 1).all()):
        return order, None
    boundaries = torch.zeros(size + 1, dtype=torch.int64, device=out.device)
    torch.cumsum(counts, 0, out=boundaries[1:])
    return order, boundaries


def _view(
    index1: Tensor, index2: Tensor, out: Tensor, scale: Tensor | None, sizes: tuple[int, int, int]
) -> SparseProductInfo:
    order, seg_out = _segments(out, sizes[2])
    return SparseProductInfo(
        scale=None if scale is None else scale[order],
        index1=_no_identity(index1[order], sizes[0]),
        index2=_no_identity(index2[order], sizes[1]),
        seg_out=seg_out,
        out_size=sizes[2],
    )


def sparse_product_infos(
    index1: Index,
    index2: Index,
    index_out: Index,
    scale: Scale = None,
    *,
    in1_size: int,
    in2_size: int,
    out_size: int,
) -> Infos:
    r"""The infos of a sparse product and of the gradients of input1 and input2, from one list of terms.

    The terms are :math:`z[\mathrm{index\_out}_t] \mathrel{+}= s_t\; x[\mathrm{index1}_t] \circ y[\mathrm{index2}_t]`,
    in any order. Rows that no term names are zero (and have zero gradient).

    Args:
        index1, index2, index_out: ``[T]`` integers, rows of input1, of input2 and of the output, for each term.
        scale: ``[T]`` coefficients, kept in float64; None means 1.
        in1_size, in2_size, out_size: Sparse rows of input1, input2 and the output.

    Returns:
        ``(info_fwd, info_bwd1, info_bwd2)``, on the CPU. Each is the forward info of one of the three products of
        the family that are closed under differentiation: (x, y) -> z, (y, gz) -> gx, (gz, x) -> gy.

    Raises:
        ShapeError, DTypeError, IndexRangeError: Lists of different length, no integers, or a row outside its size.

    Example:
        >>> fwd, bwd1, bwd2 = sparse_product_infos([0, 1], [1, 0], [2, 2], [1.0, -1.0],
        ...                                        in1_size=2, in2_size=2, out_size=3)
        >>> fwd.seg_out.tolist(), bwd1.seg_out is None
        ([0, 0, 0, 2], True)
    """
    i1 = _index("index1", index1, in1_size, "in1_size")
    i2 = _index("index2", index2, in2_size, "in2_size")
    o = _index("index_out", index_out, out_size, "out_size")
    s = _terms(scale, index1=i1, index2=i2, index_out=o)
    return (
        _view(i1, i2, o, s, (in1_size, in2_size, out_size)),
        _view(i2, o, i1, s, (in2_size, out_size, in1_size)),
        _view(o, i1, i2, s, (out_size, in1_size, in2_size)),
    )


def sparse_scale_infos(
    index: Index, index_out: Index, scale: Scale = None, *, in_size: int, out_size: int
) -> tuple[SparseScaleInfo, SparseScaleInfo]:
    r"""A constant sparse matrix and its transpose: term t adds :math:`s_t` at ``(index_out[t], index[t])``.

    Args:
        index, index_out: ``[T]`` integers, rows of the input and of the output, in any order; repeats add up.
        scale: ``[T]`` coefficients, kept in float64; None means 1.
        in_size, out_size: Rows of the input and of the output.

    Returns:
        ``(info_fwd, info_bwd)``, on the CPU.

    Raises:
        ShapeError, DTypeError, IndexRangeError: Lists of different length, no integers, or a row outside its size.

    Example:
        >>> fwd, bwd = sparse_scale_infos([0, 1], [1, 0], [2.0, 3.0], in_size=2, out_size=2)
        >>> fwd.scale.tolist(), fwd.index.tolist(), bwd.scale.tolist()
        ([3.0, 2.0], [1, 0], [2.0, 3.0])
    """
    i = _index("index", index, in_size, "in_size")
    o = _index("index_out", index_out, out_size, "out_size")
    s = _terms(scale, index=i, index_out=o)
    views = []
    for source, target, sizes in ((i, o, (in_size, out_size)), (o, i, (out_size, in_size))):
        order, seg_out = _segments(target, sizes[1])
        sorted_scale = None if s is None else s[order]
        views.append(SparseScaleInfo(sorted_scale, _no_identity(source[order], sizes[0]), seg_out, sizes[1]))
    return views[0], views[1]
