"""Sparse products and scales, whole tensor products and spherical harmonics as functions: what layers are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ..autograd import SparseScale
from ..autograd.product import sparse_form
from ..backends import check_backend
from ..checks import check_choice, check_flag, check_tensor, check_type, fixed
from ..errors import ShapeError
from ..graph import Graph, refuse_edges
from ..info.structs import SparseProductInfo, SparseScaleInfo
from ..lowering.plan import ProductPlan
from ..lowering.spherical import NORMALIZATIONS, harmonics_formula, read_degrees
from ..ops.channels import Channels
from ..ops.table import PRODUCTS, channels_of
from .harmonics import run_harmonics
from .product import run_convolution, run_product


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


def tensor_product(plan: ProductPlan, x: Tensor, y: Tensor, weight: Tensor, *, backend: str | None = None) -> Tensor:
    """A tensor product of irreps, as the layer :class:`eqlayers.TensorProduct` runs it.

    Args:
        plan: Irreps, instructions and layout; the ``plan`` of a layer, or :class:`eqlayers.lowering.ProductPlan`.
        x: ``[..., in1.dim]``.
        y: ``[..., in2.dim]``; leading axes broadcast with the axes of x.
        weight: ``[weight_numel]`` shared by all samples, or ``[..., weight_numel]`` per sample.
        backend: Name of a backend, or None for the first that accepts.

    Returns:
        ``[..., out.dim]``.

    Raises:
        ShapeError, DTypeError, DeviceError: The operands do not fit the plan or each other.
        BackendError: The named backend refuses.

    Example:
        >>> import torch, eqlayers
        >>> plan = eqlayers.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)]).plan
        >>> tensor_product(plan, torch.ones(5, 2), torch.ones(5, 3), torch.ones(2)).shape
        torch.Size([5, 6])
    """
    _check_weight(_check_plan(plan), weight, "plan, x, y, weight")
    return run_product(plan, x, y, weight, weight.ndim == 1, backend)


def tensor_product_conv(
    plan: ProductPlan,
    x: Tensor,
    edge_attr: Tensor,
    weight: Tensor,
    edge_index: Any,
    *,
    backend: str | None = None,
    deterministic: bool = True,
) -> Tensor:
    """Gather, tensor product and sum over neighbours, as :class:`eqlayers.TensorProductConv` runs it.

    Args:
        plan: As of :func:`tensor_product`.
        x: ``[num_src, in1.dim]``.
        edge_attr: ``[E, in2.dim]``.
        weight: ``[weight_numel]`` shared, or ``[E, weight_numel]``.
        edge_index: ``[2, E]`` (src, dst) among the nodes of x, or a :class:`eqlayers.Graph`.
        backend: Name of a backend, or None for the first that accepts.
        deterministic: False lets gradients be summed in any order; see :class:`eqlayers.TensorProductConv`.

    Returns:
        ``[num_dst, out.dim]``.

    Raises:
        ShapeError, DTypeError, DeviceError: The operands do not fit the plan or each other.
        IndexRangeError: An edge has an end outside its nodes (found on CPU only).
        BackendError: The named backend refuses.

    Example:
        >>> import torch, eqlayers
        >>> plan = eqlayers.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)]).plan
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> tensor_product_conv(plan, torch.ones(2, 2), torch.ones(2, 3), torch.ones(2), edge_index).shape
        torch.Size([2, 6])
    """
    _check_plan(plan).layouts[0].check("x", x)
    _check_weight(plan, weight, "plan, x, edge_attr, weight, edge_index")
    graph = as_graph(edge_index, x.shape[0])
    fixed = check_flag("deterministic", deterministic)
    return run_convolution(plan, x, edge_attr, weight, graph, weight.ndim == 1, backend, fixed)


def spherical_harmonics(
    l: Any, x: Tensor, normalize: bool, normalization: str = "integral", *, backend: str | None = None
) -> Tensor:
    r"""Real spherical harmonics :math:`Y_l(x)`, as ``e3nn.o3.spherical_harmonics``.

    Args:
        l: Irreps, one degree or a list of degrees, in any order, each up to 20.
        x: ``[..., 3]``.
        normalize: Whether of the direction of x; else polynomials of x, homogeneous of degree l.
        normalization: 'integral', 'component' or 'norm'; see :class:`eqlayers.nn.SphericalHarmonics`, also for the
            zero vector.
        backend: Name of a backend, or None for the best of the device.

    Returns:
        ``[..., sum(2 l + 1)]``.

    Raises:
        IrrepsError, ConfigError: Degrees, options or a backend that there are not.
        ShapeError, DTypeError: x is no such tensor.

    Example:
        >>> import torch
        >>> spherical_harmonics([0, 1], torch.tensor([0.0, 2.0, 0.0]), True, "component")
        tensor([1.0000, 0.0000, 1.7321, 0.0000])
    """
    check_backend(backend)
    kind = check_choice("normalization", normalization, NORMALIZATIONS)
    base = _harmonics(fixed(l), check_flag("normalize", normalize), kind)
    return run_harmonics(base, x, backend)


def as_graph(edge_index: Any, num_src: int, num_dst: int | None = None) -> Graph:
    """``edge_index`` as a graph: itself if it is one.

    Raises:
        ShapeError, DTypeError: Neither a graph of so many nodes nor ``[2, E]`` integers.

    Example:
        >>> import torch
        >>> as_graph(torch.tensor([[0, 1], [1, 0]]), num_src=2)
        Graph(2 edges, 2 senders, 2 receivers)
    """
    if not isinstance(edge_index, Graph):
        return Graph(edge_index, num_src, num_dst, copy=False)
    # no `in`: torch's tracer takes a size that is known and one that is traced for different ones there
    if edge_index.num_src != num_src or (num_dst is not None and edge_index.num_dst != num_dst):
        wanted = f"{num_src} senders" + ("" if num_dst is None else f" and {num_dst} receivers")
        raise ShapeError(
            f"the graph must have {wanted}, got {edge_index!r}. Build it with "
            f"Graph(edge_index, num_src={num_src}, num_dst=...)."
        )
    return edge_index


def _check_plan(plan: ProductPlan) -> ProductPlan:
    return check_type("plan", plan, ProductPlan, "a ProductPlan", "Take the attribute plan of a layer.")


def _check_weight(plan: ProductPlan, weight: Tensor, order: str) -> None:
    fits = isinstance(weight, Tensor) and weight.ndim and weight.shape[-1] == plan.weight_numel
    if fits and (plan.weight_numel == 0 or weight.is_floating_point()):
        return
    refuse_edges("weight", weight, order)
    want = f"[{plan.weight_numel}] or [..., {plan.weight_numel}]"
    check_tensor("weight", weight, want)
    raise ShapeError(f"weight must be {want}, got {list(weight.shape)}. Take the number from plan.weight_numel.")


@torch.compiler.assume_constant_result
def _harmonics(l: Any, normalize: bool, normalization: str) -> Formula:
    """Made outside of the trace of a compiler, which may come first."""
    return harmonics_formula(read_degrees(l)[0], normalize, normalization)
