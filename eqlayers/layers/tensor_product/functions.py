"""Whole tensor products, convolutions and spherical harmonics as functions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...core.checks import check_flag, check_tensor, check_type
from ...core.errors import ShapeError
from ...core.graph import as_graph, refuse_edges
from .plan import ProductPlan
from .run import run_convolution, run_product


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
