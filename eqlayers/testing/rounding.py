"""The largest honest rounding error of a sparse product, element by element."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.checks import check_dtype, check_flag, check_floating, check_type
from ..core.dtypes import ACCUMULATE
from ..core.errors import DTypeError
from ..sparse import SparseProductInfo, channels_of, sparse_product
from ..sparse.call import check_channels


def rounding_bound(
    product: str,
    x: Tensor,
    y: Tensor,
    info: SparseProductInfo,
    dtype: torch.dtype,
    out_accumulated: bool = False,
) -> Tensor:
    r"""Bound of :math:`|z_{\mathrm{computed}} - z|`: terms summed, times unit roundoff, times :math:`\sum|s x y|`.

    Sums are formed in float32 or better, so half precision adds one rounding of the result only. Coefficients are
    rounded to the accumulator's dtype too; that is counted.

    Args:
        product: Name or channel spec.
        x, y: Operands as the product saw them (round them to ``dtype`` first, so that only the product is judged).
        info: The forward info.
        dtype: Dtype in which the product was computed.
        out_accumulated: As in the product.

    Returns:
        Float64, shape of the result.

    Raises:
        ConfigError, ShapeError, DTypeError: An unknown product, or operands that do not fit it.

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1.

    Example:
        >>> info = SparseProductInfo(seg_out=torch.tensor([0, 2]), out_size=1)
        >>> rounding_bound("mul", torch.ones(2, 1), torch.ones(2, 1), info, torch.float64).item() < 1e-14
        True
    """
    channels = channels_of(product)
    x, y = check_floating("x", x, "[..., M1, *channels]"), check_floating("y", y, "[..., M2, *channels]")
    x, y = x.detach().double().cpu(), y.detach().double().cpu()
    check_channels(channels, x, y)
    fix = "Build it with eqlayers.sparse.sparse_product_infos."
    check_type("info", info, SparseProductInfo, "a SparseProductInfo", fix, DTypeError)
    if check_dtype("dtype", dtype) not in ACCUMULATE:
        raise DTypeError(f"dtype must be one of {', '.join(map(str, ACCUMULATE))}, got {dtype}. Pick one of these.")
    size1, size2 = x.shape[x.ndim - 1 - len(channels.first)], y.shape[y.ndim - 1 - len(channels.second)]
    info = info.cpu()
    rows = info.terms(size1, size2).row
    summed = int(torch.bincount(rows).max()) if rows.numel() else 0
    lengths = dict(zip(channels.first, x.shape[x.ndim - len(channels.first) :], strict=True))
    lengths.update(zip(channels.second, y.shape[y.ndim - len(channels.second) :], strict=True))
    for letter in set(lengths) - set(channels.out):
        summed *= lengths[letter]
    if check_flag("out_accumulated", out_accumulated):
        lead = torch.broadcast_shapes(
            x.shape[: x.ndim - 1 - len(channels.first)], y.shape[: y.ndim - 1 - len(channels.second)]
        )
        summed *= max(1, torch.Size(lead).numel())
    magnitudes = info._replace(scale=None if info.scale is None else info.scale.abs())
    size = sparse_product(product, x.abs(), y.abs(), magnitudes, None, None, out_accumulated, backend="reference")
    accumulate, store = torch.finfo(ACCUMULATE[dtype]), torch.finfo(dtype)
    tiny = store.smallest_normal if dtype != torch.float64 else 0.0  # half: results below are rounded absolutely
    return (
        size * ((summed + 3) * accumulate.eps + (store.eps if dtype in (torch.float16, torch.bfloat16) else 0)) + tiny
    )
