"""The sparse products and the sparse scale as functions: what layers are made of."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .autograd import SparseScale
from .autograd.product import sparse_form
from .info.structs import SparseProductInfo, SparseScaleInfo
from .ops.channels import Channels
from .ops.table import PRODUCTS, channels_of

__all__ = [
    "sparse_inner",
    "sparse_mat_t_vec",
    "sparse_mul",
    "sparse_outer",
    "sparse_product",
    "sparse_scale",
    "sparse_scavec",
    "sparse_vecmat",
    "sparse_vecsca",
]


def sparse_product(
    product: str,
    input1: Tensor,
    input2: Tensor,
    info_fwd: SparseProductInfo,
    info_bwd1: SparseProductInfo | None = None,
    info_bwd2: SparseProductInfo | None = None,
    out_accumulated: bool = False,
    *,
    backend: str | None = None,
) -> Tensor:
    r"""Any sparse product, by the name of its row or by its channel einsum.

    .. math:: z_{nM} = \sum_{t \in \mathrm{seg}[M]} s_t\; x_{n, i_1[t]} \circ y_{n, i_2[t]}

    Args:
        product: A row of ``eqlayers.ops.PRODUCTS``, one added by ``register_product``, or a spec as ``"u,v->uv"``.
        input1: ``[..., M1, *channels]``; without leading axes it is shared by all rows.
        input2: ``[..., M2, *channels]``; leading axes broadcast with those of input1.
        info_fwd: The terms, sorted by output row.
        info_bwd1, info_bwd2: The same terms for the gradients of input1 and input2; needed only where gradients are.
        out_accumulated: Sum the result over all leading axes.
        backend: Name of a backend, or None for the first that accepts (see ``eqlayers.explain``).

    Returns:
        ``[..., out_size, *channels]``, or ``[out_size, *channels]`` if accumulated or if both inputs are shared.

    Raises:
        ShapeError, DTypeError, DeviceError, IndexRangeError: The operands do not fit each other or the info.
        GradientError: On backward, when a gradient is needed whose info is None.
        BackendError: The named backend refuses the call.

    Example:
        >>> import torch, eqlayers
        >>> infos = eqlayers.info.sparse_product_infos([0, 1], [1, 0], [0, 0], in1_size=2, in2_size=2, out_size=1)
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
        >>> sparse_product("mul", x, y, *infos)
        tensor([[10.]])
    """
    return sparse_form(product, input1, input2, (info_fwd, info_bwd1, info_bwd2), out_accumulated, backend)


def _axes(letters: str, rows: str) -> str:
    return f"[..., {', '.join([rows, *letters])}]"


def _named(product: str) -> Callable[..., Tensor]:
    channels: Channels = channels_of(product)
    row = PRODUCTS[product]

    def function(
        input1: Tensor,
        input2: Tensor,
        info_fwd: SparseProductInfo,
        info_bwd1: SparseProductInfo | None = None,
        info_bwd2: SparseProductInfo | None = None,
        out_accumulated: bool = False,
        *,
        backend: str | None = None,
    ) -> Tensor:
        return sparse_form(product, input1, input2, (info_fwd, info_bwd1, info_bwd2), out_accumulated, backend)

    shapes = [_axes(*pair) for pair in zip(channels, ("M1", "M2", "M"), strict=True)]
    function.__name__ = function.__qualname__ = f"sparse_{product}"
    function.__doc__ = (
        f"Sparse product ``{row.name}``, ``{row.channels}`` over the channels.\n\n"
        f"input1 ``{shapes[0]}``, input2 ``{shapes[1]}`` to ``{shapes[2]}``; gradients: "
        f"gx = ``{row.grad1}``, gy = ``{row.grad2}``.\nArguments, errors and an example: :func:`sparse_product`.\n"
    )
    return function


sparse_mul = _named("mul")
sparse_outer = _named("outer")
sparse_inner = _named("inner")
sparse_vecmat = _named("vecmat")
sparse_vecsca = _named("vecsca")
sparse_scavec = _named("scavec")
sparse_mat_t_vec = _named("mat_t_vec")


def sparse_scale(
    input: Tensor,
    info_fwd: SparseScaleInfo,
    info_bwd: SparseScaleInfo | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    r"""Multiply by a constant sparse matrix: :math:`y_{nmc} = \sum_t s_t\, x_{n, \mathrm{index}[t], c}`.

    Args:
        input: ``[..., M, C]``.
        info_fwd: The matrix, row by row.
        info_bwd: Its transpose; needed only where the gradient is.
        backend: Name of a backend, or None for the first that accepts.

    Returns:
        ``[..., out_size, C]``.

    Raises:
        ShapeError, DTypeError, DeviceError, IndexRangeError: The input does not fit the info.
        GradientError: On backward, when info_bwd is None.

    Example:
        >>> import torch, eqlayers
        >>> infos = eqlayers.info.sparse_scale_infos([0, 1], [1, 0], [2.0, 3.0], in_size=2, out_size=2)
        >>> sparse_scale(torch.tensor([[1.0], [10.0]]), *infos)
        tensor([[30.],
                [ 2.]])
    """
    return SparseScale.apply(input, info_fwd, info_bwd, backend)
