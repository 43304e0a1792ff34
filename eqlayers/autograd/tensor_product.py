"""Tensor products and convolutions on flat features: one call of a whole form, or sparse products group by group."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..backends import cpu, select_form
from ..errors import DeviceError, ShapeError
from ..info.graph import Graph
from ..info.plan import ProductPlan, find_plan
from ..info.terms import PathGroup
from ..ops.call import broadcast_lead, check_same_kind, widest_under_autocast
from ..ops.form import FormCall
from ..ops.tracing import traced_by_running
from .form import apply_form, sorted_edges
from .product import sparse_form
from .scalars import add_scalar_paths


def run_product(plan: ProductPlan, x: Tensor, y: Tensor, w: Tensor, shared: bool, backend: str | None) -> Tensor:
    """``[..., in1.dim] x [..., in2.dim]`` to ``[..., out.dim]``; see ``functional.tensor_product``."""
    plan.layouts[0].check("x", x)
    plan.layouts[1].check("y", y)
    leads = {"x": x.shape[:-1], "y": y.shape[:-1]}
    lead = broadcast_lead(**leads, **({} if shared else {"weight": w.shape[:-1]}))
    if not plan.reads:  # e3nn then takes any dtypes, and keeps that of x
        return x.new_zeros(*lead, plan.layouts[2].dim)
    x, y, w = widest_under_autocast(x, y, w)
    check_same_kind(x=x, y=y, **({"weight": w} if plan.weight_numel else {}))
    if shared and plan.rest is not None and backend != "reference":  # which is the definition, path by path
        x, y = as_rows(x, lead), as_rows(y, lead)
        others = run_product(plan.rest, x, y, w, shared, backend) if plan.rest.paths else None
        flat = add_scalar_paths(others, plan.scalars, plan.layouts, x, y, w)
    elif plan.paths and (name := runs_whole(x.device.type, x.dtype, backend, plan.form.key)):
        rows = [as_rows(t, lead) for t in ((x, y) if shared else (x, y, w))]
        flat = apply_form([*rows, w] if shared else rows, None, plan.form, name)
    else:
        rows = [_to_rows(t, lead) for t in ((x, y) if shared else (x, y, w))]
        flat = compose(plan.form.key, rows[0], rows[1], w if shared else rows[2], tuple(lead), backend)
    return flat if len(lead) == 1 else flat.reshape(*lead, flat.shape[-1])


def run_convolution(
    plan: ProductPlan,
    x: Tensor,
    y: Tensor,
    w: Tensor,
    graph: Graph,
    shared: bool,
    backend: str | None,
    deterministic: bool,
) -> Tensor:
    """Gather by sender, product with y and w per edge, sum by receiver; see ``functional.tensor_product_conv``.

    The caller has checked the last axes of x and w.
    """
    plan.layouts[1].check("edge_attr", y)
    x, y, w = widest_under_autocast(x, y, w)
    check_same_kind(x=x, edge_attr=y, **({"weight": w} if plan.weight_numel else {}))
    edges = graph.num_edges
    wanted = (graph.num_src, edges) if shared else (graph.num_src, edges, edges)
    for tensor, rows in zip((x, y, w), wanted, strict=False):
        if tensor.ndim != 2 or tensor.shape[0] != rows:
            raise _other_rows(tensor, x, y, rows)
    if graph.edge_index.device != x.device:
        raise DeviceError(
            f"edge_index must be on the device of x, {x.device}, got {graph.edge_index.device}. Move it with "
            f"`.to('{x.device}')`."
        )
    if plan.paths and (name := runs_whole(x.device.type, x.dtype, backend, plan.form.key)):
        return apply_form([x, y, w], graph.tables(sorted_edges), plan.form, name, deterministic)
    src, dst = graph.ends
    messages = run_product(plan, x.index_select(0, src), y, w, shared, backend)
    out = messages.new_zeros(graph.num_dst, messages.shape[-1])
    if deterministic and messages.is_cuda:  # where index_add adds in any order, and this sorts
        return out.index_put((dst,), messages, accumulate=True)
    return out.index_add(0, dst, messages)


def _other_rows(tensor: Tensor, x: Tensor, y: Tensor, rows: int) -> ShapeError:
    name, what = ("x", "senders") if tensor is x else ("edge_attr" if tensor is y else "weight", "edges")
    return ShapeError(
        f"{name} must be [{rows}, ...], a row for each of the {what}, got {list(tensor.shape)}. Check edge_index, and "
        f"flatten batch axes into one graph."
    )


@torch.compiler.assume_constant_result
def runs_whole(device: str, dtype: torch.dtype, backend: str | None, key: str) -> str:
    """Name of the backend that runs a whole form in one call, or none; says once if only a compiler is missing."""
    call = FormCall(dtype, device, key)
    found = select_form(call, backend)
    if found is not None:
        return found.name
    if backend is None and device == "cpu":
        reason = cpu.refuse(call)
        if reason is not None:
            cpu.warn_once(reason)
    return ""


def as_rows(t: Tensor, lead: tuple[int, ...]) -> Tensor:
    """``[..., d]`` to ``[N, d]``, one row for all as a view of stride 0."""
    if t.ndim == 2 and len(lead) == 1 and t.shape[0] == lead[0]:
        return t
    expanded = t.expand(*lead, t.shape[-1])
    return expanded if len(lead) == 1 else expanded.reshape(math.prod(lead), t.shape[-1])


def _to_rows(t: Tensor, lead: tuple[int, ...]) -> Tensor:
    """``[..., d]`` to ``[N, d]``; a tensor without leading axes stays shared."""
    if t.ndim == 1 or (t.ndim == 2 and t.shape[:-1] == lead):
        return t
    return t.expand(*lead, t.shape[-1]).reshape(math.prod(lead), t.shape[-1])


@traced_by_running
def compose(key: str, x: Tensor, y: Tensor, w: Tensor, lead: tuple[int, ...], backend: str | None) -> Tensor:
    """The product of the plan of that key as sparse products, group by group; any device, dtype and backend."""
    plan = find_plan(key)
    blocks: dict[int, Tensor] = {}
    batch = (math.prod(lead),) if lead else ()
    out = plan.layouts[2]
    for group in plan.groups:
        z = _group(plan, group, x, y, w, backend)
        z = z.reshape(-1, out.rows[group.muls[2]], group.muls[2])
        z = z.expand(*batch, *z.shape[1:]) if batch else z[0]
        known = blocks.get(group.muls[2])
        blocks[group.muls[2]] = z if known is None else known + z
    return out.join(blocks, batch, x)


def _group(plan: ProductPlan, group: PathGroup, x: Tensor, y: Tensor, weight: Tensor, backend: str | None) -> Tensor:
    a = _operand(plan, group, 0, x)
    b = _operand(plan, group, 1, y)
    infos = tuple(info.on(x.device) for info in group.infos)
    inter = sparse_form(group.product, a, b, infos, backend=backend)
    if group.weighting is None or group.weight_infos is None:
        return inter
    w = _stacked(weight, group)
    infos = tuple(info.on(x.device) for info in group.weight_infos)
    return sparse_form(group.weighting, inter, w, infos, backend=backend)


def _operand(plan: ProductPlan, group: PathGroup, side: int, flat: Tensor) -> Tensor:
    block = plan.layouts[side].block(flat, group.muls[side])
    if group.pairs:
        mul = group.muls[side]
        block = block.index_select(-1, torch.triu_indices(mul, mul, 1, device=block.device)[side])
    if group.summed[side]:
        return block.sum(-1)
    return block.squeeze(-1) if group.dropped[side] else block


def _stacked(weight: Tensor, group: PathGroup) -> Tensor:
    """``[..., paths, *shape]``: the weights of a group's paths; a view where they follow each other."""
    start, size = group.weight_places[0]
    if all(offset == start + number * size for number, (offset, _) in enumerate(group.weight_places)):
        flat = weight.narrow(-1, start, size * len(group.weight_places))
    else:
        flat = torch.cat([weight.narrow(-1, offset, size) for offset, _ in group.weight_places], -1)
    return flat.unflatten(-1, (len(group.weight_places), *group.weight_shape))
