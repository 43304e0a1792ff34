"""The sparse scale ``y = S x``, whose backward is itself with the transposed matrix."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..core.dtypes import check_same_dtype
from ..core.errors import ShapeError
from .call import ScaleCall, check_infos, needed
from .info import SparseScaleInfo
from .run import WAYS, select


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, info_fwd: SparseScaleInfo, info_bwd: SparseScaleInfo | None, backend: str | None) -> Tensor:
        info_fwd.as_product().check_operands(x.shape[1], x.shape[1])
        call = ScaleCall(x, info_fwd)
        return WAYS[select(call, backend)].scale(call)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rest = (inputs[0].shape[1], *inputs[1:])  # linear: no tensor is needed

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        rows, info_fwd, info_bwd, backend = ctx.rest
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        info_bwd = needed(info_bwd, "", rows)
        return _Scale.apply(grads[0], info_bwd, info_fwd, backend), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        _, info_fwd, info_bwd, backend = ctx.rest
        return _Scale.apply(tangents[0], info_fwd, info_bwd, backend)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, *rest: Any) -> tuple[Tensor, int]:
        """Run a mapped call as one scale, with the mapped axis as part of the batch axis."""
        x = x.movedim(in_dims[0], 0)
        y = _Scale.apply(x.flatten(0, 1), *rest)
        return y.unflatten(0, x.shape[:2]), 0


class SparseScale:
    """The sparse scale; call ``SparseScale.apply(input, info_fwd, info_bwd)``."""

    @classmethod
    def apply(
        cls,
        input: Tensor,
        info_fwd: SparseScaleInfo,
        info_bwd: SparseScaleInfo | None = None,
        backend: str | None = None,
    ) -> Tensor:
        """``[..., M, C]`` to ``[..., out_size, C]``; see ``eqlayers.functional.sparse_scale``."""
        check_same_dtype(input=input)
        if input.ndim < 2:
            raise ShapeError(
                f"input must be [..., M, C], got shape {list(input.shape)}. Add a channel axis with `.unsqueeze(-1)`."
            )
        check_infos(SparseScaleInfo, input, info_fwd=info_fwd, info_bwd=info_bwd)
        lead = input.shape[:-2]
        flat = input if len(lead) == 1 else input.reshape(math.prod(lead), *input.shape[-2:])
        y = _Scale.apply(flat, info_fwd, info_bwd, backend)
        return y if len(lead) == 1 else y.reshape(*lead, *y.shape[-2:])


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
        >>> infos = eqlayers.sparse.sparse_scale_infos([0, 1], [1, 0], [2.0, 3.0], in_size=2, out_size=2)
        >>> sparse_scale(torch.tensor([[1.0], [10.0]]), *infos)
        tensor([[30.],
                [ 2.]])
    """
    return SparseScale.apply(input, info_fwd, info_bwd, backend)
