"""Sparse products and the sparse scale as functions with derivatives of every order, by two autograd Functions.

A product is linear in each operand, so a gradient is the same product with channels, batch flags and infos rotated
together, and the second derivative calls this Function again. The backward of a scale is the scale by the transposed
matrix. A call runs on a backend of `WAYS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.checks import check_flag, got
from ..core.dtypes import check_same_dtype
from ..core.errors import BackendError, ConfigError, ShapeError
from ..core.torch_internals import seen_by_outer_levels
from . import plans, reference, segments
from .call import Call, ProductCall, ScaleCall, check_channels, check_infos, flatten_batch, needed
from .info import SparseProductInfo, SparseScaleInfo
from .table import NAMED, PRODUCTS, Channels, channels_of

#: Infos of the product and of the gradients of input1 and input2; infos of gradients may be None.
CallInfos = tuple[SparseProductInfo, SparseProductInfo | None, SparseProductInfo | None]


class Way(NamedTuple):
    """The functions of a backend: product, scale, and two that decide whether it runs a call."""

    product: Callable[[ProductCall], Tensor]  # run a call
    scale: Callable[[ScaleCall], Tensor]
    #: None if the backend can run the call, else the reason, a phrase that follows the backend's name.
    refuse: Callable[[Call], str | None] = lambda call: None
    only_named: Callable[[Call], bool] = lambda call: False  # whether only a named backend runs it


def _not_in_c(call: Call) -> str:
    return "runs whole tensor products and convolutions; a single sparse product has no generated kernel"


#: By the name that users write as ``backend=``, in order of preference.
WAYS = {
    "triton": Way(segments.product, segments.scale, segments.refuse, segments.only_named),
    "cpu": Way(plans.product, plans.scale, _not_in_c),  # which it never runs
    "torch": Way(plans.product, plans.scale),
    "reference": Way(reference.product, reference.scale, only_named=lambda call: True),
}


def select(call: Call, name: str | None = None) -> str:
    """The name of the backend that runs ``call``: ``name``, or by default the first that supports the call.

    BackendError if the backend of that name does not support it.
    """
    if name is None:
        return next(name for name, way in WAYS.items() if way.refuse(call) is None and not way.only_named(call))
    if not isinstance(name, str) or name not in WAYS:
        raise ConfigError(f"backend must be one of {', '.join(WAYS)} or None, got {got(name)}. Pass one of these.")
    if (reason := WAYS[name].refuse(call)) is not None:
        raise BackendError(
            f"backend {name!r} must accept this call, but it {reason}. Pass backend=None to let one be chosen."
        )
    return name


class _SparseProduct(torch.autograd.Function):
    """``z = sum_t s_t x[i1] . y[i2]`` on operands with at most one batch axis (see :class:`ProductCall`)."""

    @staticmethod
    def forward(
        x: Tensor,
        y: Tensor,
        channels: Channels,
        batched: tuple[bool, bool, bool],
        batch: int,
        infos: CallInfos,
        backend: str | None,
    ) -> Tensor:
        call = ProductCall(channels, x, y, infos[0], batched, batch)
        infos[0].check_operands(*call.sparse_rows)
        if x.is_meta:
            return x.new_empty(call.out_shape)
        return WAYS[select(call, backend)].product(call)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.set_materialize_grads(False)
        ctx.form = inputs[2:]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (gz,) = grads
        if gz is None:
            return (None,) * 7
        x, y = ctx.saved_tensors
        channels, (b1, b2, bz), batch, (fwd, bwd1, bwd2), backend = ctx.form
        gx = gy = None
        if ctx.needs_input_grad[0]:
            infos = (needed(bwd1, 1, x.shape[int(b1)]), bwd2, fwd)
            gx = _SparseProduct.apply(y, gz, channels.rotate_to_first(), (b2, bz, b1), batch, infos, backend)
        if ctx.needs_input_grad[1]:
            infos = (needed(bwd2, 2, y.shape[int(b2)]), fwd, bwd1)
            gy = _SparseProduct.apply(gz, x, channels.rotate_to_second(), (bz, b1, b2), batch, infos, backend)
        return gx, gy, None, None, None, None, None

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The sum of products with one operand replaced by its tangent: the product is linear in each."""
        x, y = ctx.saved_tensors
        dx, dy = tangents[:2]
        parts = [_SparseProduct.apply(*pair, *ctx.form) for pair in ((dx, y), (x, dy)) if None not in pair]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, y: Tensor, *form: Any) -> tuple[Tensor, int]:
        """Run a mapped call as one product whose batch axis contains the mapped axis."""
        channels, batched, batch, infos, backend = form
        size, mapped = info.batch_size, [dim is not None for dim in in_dims[:2]]
        x, y = (t if dim is None else t.movedim(dim, 0) for t, dim in zip((x, y), in_dims, strict=False))
        if not any(batched):
            return _SparseProduct.apply(x, y, channels, (*mapped, True), size, infos, backend), 0
        if not batched[2] and batch != 1:  # results are sums over the batch: one call per sample
            pairs = [[t[i] if own else t for t, own in zip((x, y), mapped, strict=True)] for i in range(size)]
            return torch.stack([_SparseProduct.apply(*pair, *form) for pair in pairs]), 0
        x, y = (_rows(t, *how, size, batch) for t, how in zip((x, y), zip(mapped, batched, strict=False), strict=True))
        flags = (mapped[0] or batched[0], mapped[1] or batched[1], True)
        z = _SparseProduct.apply(x, y, channels, flags, size * batch, infos, backend)
        return z.unflatten(0, (size, batch)) if batched[2] else z, 0


def _rows(t: Tensor, mapped: bool, batched: bool, size: int, batch: int) -> Tensor:
    """An operand of a call under ``torch.vmap`` as ``[size * batch, ...]``; unchanged if it has neither axis."""
    if not (mapped or batched):
        return t
    t = t if mapped else t.unsqueeze(0)
    t = t if batched else t.unsqueeze(1)
    return t.expand(size, batch, *t.shape[2:]).reshape(size * batch, *t.shape[2:])


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
    r"""A sparse product, chosen by name (a key of ``eqlayers.sparse.PRODUCTS``) or by its channel einsum.

    .. math:: z_{nM} = \sum_{t \in \mathrm{seg}[M]} s_t\; x_{n, i_1[t]} \circ y_{n, i_2[t]}

    Args:
        product: A key of ``PRODUCTS``, a name added by ``register_product``, or a spec such as ``"u,v->uv"``.
        input1: ``[..., M1, *channels]``; without leading axes it is shared by all rows.
        input2: ``[..., M2, *channels]``; leading axes broadcast with the axes of input1.
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
        >>> infos = eqlayers.sparse.sparse_product_infos([0, 1], [1, 0], [0, 0], in1_size=2, in2_size=2, out_size=1)
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
        >>> sparse_product("mul", x, y, *infos)
        tensor([[10.]])
    """
    channels = channels_of(product)
    check_same_dtype(input1=input1, input2=input2)
    check_channels(channels, input1, input2)
    infos = info_fwd, info_bwd1, info_bwd2
    check_infos(SparseProductInfo, input1, info_fwd=info_fwd, info_bwd1=info_bwd1, info_bwd2=info_bwd2)
    x, y, shape = flatten_batch(channels, input1, input2)
    b1, b2 = x.ndim > 1 + len(channels.first), y.ndim > 1 + len(channels.second)
    accumulated = check_flag("out_accumulated", out_accumulated)
    bz = (b1 or b2) and not accumulated
    batch = x.shape[0] if b1 else y.shape[0] if b2 else 1
    z: Tensor = _SparseProduct.apply(x, y, channels, (b1, b2, bz), batch, infos, backend)
    return z.reshape(*shape, *z.shape[1:]) if bz and len(shape) != 1 else z


class SparseProduct:
    """Base class of the named sparse products; ``product`` is the name that ``apply`` runs."""

    product: str

    @classmethod
    def apply(
        cls,
        input1: Tensor,
        input2: Tensor,
        info_fwd: SparseProductInfo,
        info_bwd1: SparseProductInfo | None = None,
        info_bwd2: SparseProductInfo | None = None,
        out_accumulated: bool = False,
        backend: str | None = None,
    ) -> Tensor:
        """Run the product; see ``eqlayers.functional.sparse_product`` for the arguments."""
        infos = info_fwd, info_bwd1, info_bwd2
        return sparse_product(cls.product, input1, input2, *infos, out_accumulated, backend=backend)


def _as_class(product: str) -> type[SparseProduct]:
    name = PRODUCTS[product].function
    doc = f"The sparse product ``{product}``, ``{NAMED[product]}`` over channels; call ``{name}.apply(...)``."
    return type(name, (SparseProduct,), {"product": product, "__doc__": doc, "__module__": "eqlayers.sparse"})


def _as_function(product: str) -> Callable[..., Tensor]:
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
        infos = info_fwd, info_bwd1, info_bwd2
        return sparse_product(product, input1, input2, *infos, out_accumulated, backend=backend)

    row = PRODUCTS[product]
    parts = zip(channels_of(product), ("M1", "M2", "M"), strict=True)
    x, y, z = (f"[..., {', '.join([rows, *letters])}]" for letters, rows in parts)
    function.__name__ = function.__qualname__ = f"sparse_{product}"
    function.__doc__ = (
        f"Sparse product ``{row.name}``, ``{row.channels}`` over the channels.\n\n"
        f"input1 ``{x}``, input2 ``{y}`` to ``{z}``; gradients: "
        f"gx = ``{row.grad1}``, gy = ``{row.grad2}``.\nArguments, errors and an example: :func:`sparse_product`.\n"
    )
    return function


SparseMul, SparseOuter, SparseInner, SparseVecMat, SparseVecSca, SparseScaVec, SparseMatTVec = map(_as_class, NAMED)
sparse_mul, sparse_outer, sparse_inner, sparse_vecmat, sparse_vecsca, sparse_scavec, sparse_mat_t_vec = map(
    _as_function, NAMED
)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, info_fwd: SparseScaleInfo, info_bwd: SparseScaleInfo | None, backend: str | None) -> Tensor:
        info_fwd.as_product().check_operands(x.shape[1], x.shape[1])
        call = ScaleCall(x, info_fwd)
        if x.is_meta:
            return x.new_empty(x.shape[0], call.out_rows, x.shape[2])
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
