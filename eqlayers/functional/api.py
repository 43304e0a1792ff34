"""Whole tensor products, convolutions and spherical harmonics as functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ..backends import check_backend
from ..checks import check_choice, check_flag, check_tensor, check_type, fixed
from ..errors import ShapeError
from ..graph import Graph, refuse_edges
from ..lowering.plan import ProductPlan
from ..lowering.spherical import NORMALIZATIONS, harmonics_formula, read_degrees
from .harmonics import run_harmonics
from .product import run_convolution, run_product


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
