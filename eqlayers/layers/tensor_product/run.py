"""Runs tensor products and convolutions on flat features, all paths by one kernel call where possible."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eqlayers_kernels.forms.product import Reading

from ...core.apply import as_rows, broadcast_at_once, run_by_row, run_program
from ...core.backends import BACKENDS
from ...core.backends.forms import chosen
from ...core.backends.whole import contract
from ...core.checks import check_flag, check_tensor, check_type
from ...core.dtypes import broadcast_lead, device_error, of_one_dtype
from ...core.errors import ShapeError
from ...core.forms.description import tabled
from ...core.graph import Graph, as_graph, refuse_edges
from ...core.operator import at_once, call_form, sorted_edges, sorted_intervals
from ...core.torch_internals import is_plain
from ..base.module import check_dense
from .lower import ProductPlan
from .mixed import splits
from .tabled_weights import TabledWeights

#: Backends that run all paths of a layer by sparse products, also the paths that are matrix products.
BY_INFOS = ("sparse", "reference")


def run_product(plan: ProductPlan, x: Tensor, y: Tensor, w: Tensor, shared: bool, backend: str | None) -> Tensor:
    """``[..., in1.dim] x [..., in2.dim]`` to ``[..., out.dim]``; see ``functional.tensor_product``."""
    plain = plan.paths and is_plain((x, y, w))
    mixed = plan.mixed if shared else None
    if mixed is not None and not (isinstance(x, Tensor) and splits(x.device, backend)):
        mixed = None
    if plain and mixed is None and (plan.dense is None or not shared):
        form = plan.form.calls[False, shared]
        results = at_once(form, (x, y, w), None, backend)
        if results is not None:
            return results[0]
        z = broadcast_at_once(form, (x, y, w), backend)
        if z is not None:
            return z
    plan.layouts[0].check("x", x)
    plan.layouts[1].check("y", y)
    leads = {"x": x.shape[:-1], "y": y.shape[:-1]}
    lead = broadcast_lead(**leads, **({} if shared else {"weight": w.shape[:-1]}))
    if not plan.reads:  # e3nn then takes any dtypes, and keeps the dtype of x
        return x.new_zeros(*lead, plan.layouts[2].dim)
    x, y, w = of_one_dtype(x=x, y=y, weight=w)
    if mixed is not None:
        return mixed(x, y, w, lead, backend)
    if not (shared and plan.dense is not None and plan.rest is not None and backend not in BY_INFOS):
        return run_by_row(plan.form, x, y, lead, backend, w)
    if backend is not None:
        check_dense(backend, x.dtype, x.device)
    x, y = as_rows(x, lead), as_rows(y, lead)
    flat = contract(plan.dense.key, x, y, w)
    if plan.rest.paths:
        flat = flat + run_program(plan.rest.form.calls[False, True], (x, y, w), None, backend)
    return flat if len(lead) == 1 else flat.reshape(*lead, flat.shape[-1])


def run_convolution(
    plan: ProductPlan,
    x: Tensor,
    y: Tensor,
    w: Tensor | TabledWeights,
    edge_index: Tensor | Graph,
    num_nodes: int | None,
    shared: bool,
    backend: str | None,
    deterministic: bool,
) -> Tensor:
    """Gather by sender, product with y and checked w per edge, sum by receiver; see ``tensor_product_conv``."""
    if plan.paths and not isinstance(w, TabledWeights) and is_plain((x, y, w)) and x.ndim:
        if num_nodes is not None or not isinstance(edge_index, Graph):
            edge_index = as_graph(edge_index, x.shape[0], num_nodes)
        if edge_index.mirrored and not shared:
            w = edge_index.of_edges(w)
        results = at_once(plan.form.calls[True, shared], (x, y, w), edge_index, backend, deterministic)
        if results is not None:
            return results[0]
    plan.layouts[0].check("x", x)
    graph = as_graph(edge_index, x.shape[0], num_nodes)
    plan.layouts[1].check("edge_attr", y)
    table = None
    if isinstance(w, TabledWeights):
        w.check(graph, plan.weight_numel)
        interval, orders = w.interval, w.orders
        x, y, w, coefficients = of_one_dtype(x=x, edge_attr=y, weight=w.table, coefficients=w.coefficients)
        table = TabledWeights(w, interval, coefficients, orders)
    else:
        x, y, w = of_one_dtype(x=x, edge_attr=y, weight=w if shared else graph.of_edges(w))
    edges = graph.num_edges
    num_rows = (x, graph.num_src), (y, edges), (w, edges)
    for tensor, rows in num_rows[: 2 if shared or table is not None else 3]:
        if tensor.ndim != 2 or tensor.shape[0] != rows:
            name, what = ("x", "senders") if tensor is x else ("edge_attr" if tensor is y else "weight", "edges")
            raise ShapeError(
                f"{name} must be [{rows}, ...], a row for each of the {what}, got {list(tensor.shape)}. Check "
                f"edge_index, and flatten batch axes into one graph."
            )
    if graph.edge_index.device != x.device:
        raise device_error("edge_index", graph.edge_index, "x", x)
    if not plan.reads:
        return x.new_zeros(graph.num_dst, plan.layouts[2].dim)
    if table is not None:
        name = chosen(x.device.type, x.dtype, backend, plan.form.key)
        if plan.paths and BACKENDS[name].whole is None:
            return _read_from_table(plan, x, y, table, graph, name, deterministic)
        w = graph.of_edges(table.weights())
    return run_program(plan.form.calls[True, shared], (x, y, w), graph, backend, deterministic)


def _read_from_table(
    plan: ProductPlan, x: Tensor, y: Tensor, w: TabledWeights, graph: Graph, backend: str, deterministic: bool
) -> Tensor:
    """A convolution whose kernel interpolates the weights of edges from the rows of a table."""
    reading = Reading(w.coefficients.shape[1], w.orders)
    intervals = reading.intervals(w.table.shape[0])
    num_nodes = graph.num_src, graph.num_dst

    def sort(interval: Tensor) -> Tensor:
        interval = graph.of_edges(interval)
        return sorted_intervals(graph.tables(sorted_edges), graph.edge_index, interval, *num_nodes, intervals)

    operands = x, y, w.table, graph.of_edges(w.coefficients)
    tables = graph.interval_tables(w.interval, intervals, sort)
    if is_plain(operands):
        results = at_once(plan.form.tabled(*reading), operands, graph, backend, deterministic, tables)
        if results is not None:
            return results[0]
    return call_form(operands, tables, graph.sizes, tabled(plan.form.key, *reading), backend, deterministic)[0]


def tensor_product(plan: ProductPlan, x: Tensor, y: Tensor, weight: Tensor, *, backend: str | None = None) -> Tensor:
    """:class:`eqlayers.TensorProduct` as a function, ``[..., in1.dim]`` and ``[..., in2.dim]`` to ``[..., out.dim]``.

    Args:
        plan: Irreps, instructions and layout; the ``plan`` of a layer, or `ProductPlan`.
        x, y, backend: See the layer, also for errors.
        weight: ``[weight_numel]`` shared by all samples, or ``[..., weight_numel]`` per sample.

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
    """:class:`eqlayers.TensorProductConv` as a function, ``[num_src, in1.dim]`` to ``[num_dst, out.dim]``.

    Args:
        plan: As of :func:`tensor_product`.
        x, edge_attr, backend, deterministic: See the layer, also for errors.
        weight: ``[weight_numel]`` shared, or ``[E, weight_numel]``.
        edge_index: ``[2, E]`` (src, dst) among the nodes of x, or a :class:`eqlayers.Graph`.

    Example:
        >>> import torch, eqlayers
        >>> plan = eqlayers.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)]).plan
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> tensor_product_conv(plan, torch.ones(2, 2), torch.ones(2, 3), torch.ones(2), edge_index).shape
        torch.Size([2, 6])
    """
    _check_plan(plan).layouts[0].check("x", x)
    _check_weight(plan, weight, "plan, x, edge_attr, weight, edge_index")
    fixed = check_flag("deterministic", deterministic)
    return run_convolution(plan, x, edge_attr, weight, edge_index, None, weight.ndim == 1, backend, fixed)


def _check_plan(plan: ProductPlan) -> ProductPlan:
    return check_type("plan", plan, ProductPlan, "a ProductPlan", "Take the attribute plan of a layer.")


def _check_weight(plan: ProductPlan, weight: Tensor, order: str) -> None:
    fits = isinstance(weight, Tensor) and weight.ndim and weight.shape[-1] == plan.weight_numel
    if fits and (plan.weight_numel == 0 or weight.is_floating_point()):
        return
    refuse_edges("weight", weight, order)
    shape = f"[{plan.weight_numel}] or [..., {plan.weight_numel}]"
    check_tensor("weight", weight, shape)
    raise ShapeError(f"weight must be {shape}, got {list(weight.shape)}. Take the number from plan.weight_numel.")
