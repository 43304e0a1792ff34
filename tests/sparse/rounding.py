"""The largest honest rounding error of a sparse product, element by element."""

import torch
from torch import Tensor

from eqlayers.core.dtypes import ACCUMULATE
from eqlayers.sparse import SparseProductInfo, channels_of, sparse_product


def rounding_bound(
    product: str, x: Tensor, y: Tensor, info: SparseProductInfo, dtype: torch.dtype, out_accumulated: bool = False
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

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    channels = channels_of(product)
    x, y = x.detach().double().cpu(), y.detach().double().cpu()
    size1, size2 = x.shape[x.ndim - 1 - len(channels.first)], y.shape[y.ndim - 1 - len(channels.second)]
    info = info.cpu()
    rows = info.terms(size1, size2).row
    summed = int(torch.bincount(rows).max()) if rows.numel() else 0
    lengths = dict(zip(channels.first, x.shape[x.ndim - len(channels.first) :], strict=True))
    lengths.update(zip(channels.second, y.shape[y.ndim - len(channels.second) :], strict=True))
    for letter in set(lengths) - set(channels.out):
        summed *= lengths[letter]
    if out_accumulated:
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
