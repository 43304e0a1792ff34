"""Maps in the frames of edges: components are sorted by order m, multiplied by matrices, and sorted back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from ...core.apply import as_rows, run_by_row, run_program
from ...core.backends import check_backend
from ...core.checks import check_choice, check_integer, check_tensor, fixed
from ...core.dtypes import broadcast_lead, of_one_dtype, widest_under_autocast
from ...core.errors import ShapeError
from ...core.forms.description import Form
from ...core.graph import Graph
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS, FlatLayout
from .lower import PARITIES, pack_program, packed_widths, so2_map, unpack_program


class SO2Plan:
    """Matrices for each order m, and programs that sort features by m before them and undo it; see ``nn.SO2Linear``.

    The programs also rotate features to edge frames of degree ``lmax`` and back; None: features are in the frame.

    Attributes:
        shapes: ``[matrices, in, out]`` of the weights of each block of one order.
        orders: The order of each block; orders m = 0 come first.
        num_scales: Number of input factors of a row; the last ``num_minus`` multiply both m and -m.
        plain, scaled: Programs before the matrices, without and with factors. back: The program after them.
    """

    def __init__(
        self, irreps_in: Irreps, irreps_out: Irreps, mmax: int | None, parity: str, layout: str, lmax: int | None
    ) -> None:
        self.flat, self.map = FlatLayout(irreps_in, layout), so2_map(irreps_in, irreps_out, mmax, parity)
        self.num_scales, self.num_minus = packed_widths(self.map.blocks_in)
        self.shapes = self.map.shapes  # read at every call; compilers cannot trace the property
        self.orders = [block.m for block in self.map.blocks_in]
        self.num_unsigned = self.orders.count(0)
        self.weight_numel = sum(math.prod(shape) for shape in self.shapes)
        self.plain = Form(pack_program(self.map, layout, lmax, scaled=False))
        self.scaled = Form(pack_program(self.map, layout, lmax, scaled=True))
        self.back = Form(unpack_program(self.map, layout, lmax))


_plan = lru_cache(maxsize=64)(SO2Plan)


def check_weight(plan: SO2Plan, weight: Tensor) -> Tensor:
    """The weights of a call, checked; ShapeError or DTypeError."""
    if check_tensor("weight", weight, f"[{plan.weight_numel}]").shape != (plan.weight_numel,):
        raise ShapeError(
            f"weight must be [{plan.weight_numel}], got {list(weight.shape)}. One set of weights serves all rows; "
            f"give factors of each as scales."
        )
    return weight


def check_scales(plan: SO2Plan, scales: Tensor) -> None:
    """Raise ShapeError or DTypeError unless ``scales`` has a factor for each input column."""
    if check_tensor("scales", scales, f"[..., {plan.num_scales}]").shape[-1:] != (plan.num_scales,):
        raise ShapeError(
            f"scales must be [..., {plan.num_scales}], one for each order m and input channel that has it, got "
            f"{list(scales.shape)}. Take the number from num_scales."
        )


def run_linear(plan: SO2Plan, x: Tensor, weight: Tensor, scales: Tensor | None, backend: str | None) -> Tensor:
    """Map features that are in the frame; see ``nn.SO2Linear.forward``. The weight's shape has been checked."""
    FlatLayout.check(plan.flat, "x", x)  # compilers do not guard methods of constants such as the plan
    lead = tuple(x.shape[:-1])
    if scales is not None:
        check_scales(plan, scales)
        x, scales, weight = of_one_dtype(x=x, scales=scales, weight=weight)
        lead = broadcast_lead(x=lead, scales=scales.shape[:-1])
        scales = as_rows(scales, lead)
    else:
        x, weight = of_one_dtype(x=x, weight=weight)
    x = as_rows(x, lead)
    ones = x.new_ones(1, 1).expand(x.shape[0], 1)
    packed = _packed(plan, x, ones, scales, weight, None, backend)
    rows = packed.shape[:1]
    z = run_by_row(plan.back, packed, ones.to(packed.dtype), rows, backend)
    return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])


def run_convolution(
    plan: SO2Plan,
    x: Tensor,
    frames: Tensor,
    graph: Graph,
    scales: Tensor | None,
    envelope: Tensor | None,
    weight: Tensor,
    width: int,
    backend: str | None,
) -> Tensor:
    """The convolution on a graph; see ``nn.SO2Convolution.forward``. The caller has checked features and weight."""
    operands = {"x": x, "frames": frames, "weight": weight}
    shapes: dict[str, tuple[int, ...]] = {"x": (graph.num_src, plan.flat.dim), "frames": (graph.num_edges, width)}
    if scales is not None:
        check_scales(plan, scales)
        operands["scales"], shapes["scales"] = scales, (graph.num_edges, plan.num_scales)
    if envelope is not None:
        operands["envelope"], shapes["envelope"] = envelope, (graph.num_edges,)
    for name, shape in shapes.items():
        if check_tensor(name, operands[name], "with a row for each node or edge").shape != shape:
            raise ShapeError(f"{name} must be {list(shape)}, got {list(operands[name].shape)}. {_FIXES[name]}")
    operands = dict(zip(operands, of_one_dtype(**operands), strict=True))
    to_edges, to_nodes = graph.halves()
    d = operands["frames"]
    mixed = _packed(plan, operands["x"], d, operands.get("scales"), operands["weight"], to_edges, backend)
    if envelope is not None:
        d = d * operands["envelope"].unsqueeze(-1)
    mixed, d = widest_under_autocast(mixed, d)
    return run_program(plan.back.calls[True, True], (mixed, d, mixed.new_empty(0)), to_nodes, backend)


_FIXES = {
    "x": "Flatten batch axes into one graph.",
    "frames": "Make them by the layer's frame, or pass vectors [E, 3]; the layer and the frames must have one lmax.",
    "scales": "Give a row for each edge.",
    "envelope": "Give a number for each edge.",
}


def _packed(
    plan: SO2Plan, x: Tensor, y: Tensor, scales: Tensor | None, weight: Tensor, graph: Graph | None, backend: str | None
) -> Tensor:
    """The packed rows: features sorted by order m, scaled, and multiplied by the matrices."""
    if scales is not None:
        scales = torch.cat([scales, scales[:, plan.num_scales - plan.num_minus :]], -1)
    form, w = (plan.plain, x.new_empty(0)) if scales is None else (plan.scaled, scales)
    packed = run_program(form.calls[graph is not None, scales is None], (x, y, w), graph, backend)
    return mix_orders(packed, weight, plan.shapes, plan.num_unsigned)


def mix_orders(packed: Tensor, weight: Tensor, shapes: Sequence[tuple[int, int, int]], num_unsigned: int) -> Tensor:
    """Packed rows ``[N, in]`` times the matrices of every m: packed rows ``[N, out]``.

    Columns are blocks for m >= 0, of which the first ``num_unsigned`` have m = 0, then for m < 0. Weights come block by
    block, ``[matrices, in, out]`` each.
    """
    if not shapes:
        return packed.new_zeros(packed.shape[0], 0)
    signed = shapes[num_unsigned:]
    columns = packed.split([shape[1] for shape in (*shapes, *signed)], -1)
    flat = weight.split([a * b * c for a, b, c in shapes])
    matrices = [part.view(shape).unbind(0) for part, shape in zip(flat, shapes, strict=True)]
    plus, minus = [], []
    for number, (first, pair) in enumerate(zip(columns[: len(matrices)], matrices, strict=True)):
        if number < num_unsigned:
            plus.append(first @ pair[0])
            continue
        other = columns[len(shapes) + number - num_unsigned]
        positive, negative = first @ pair[0], other @ pair[0]
        if len(pair) == 2:  # (x_m + i x_-m) (W1 + i W2)
            positive, negative = positive - other @ pair[1], negative + first @ pair[1]
        plus.append(positive)
        minus.append(negative)
    return torch.cat([*plus, *minus], -1)


@torch.compiler.assume_constant_result
def _read(irreps_in: Any, irreps_out: Any, mmax: int | None, parity: str, layout: str) -> SO2Plan:
    """The cached plan of a map; compilers do not trace this."""
    irreps = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
    order = None if mmax is None else check_integer("mmax", mmax, 0)
    return _plan(
        *irreps, order, check_choice("parity", parity, PARITIES), check_choice("layout", layout, LAYOUTS), None
    )


def so2_linear(
    x: Tensor,
    irreps_in: Any,
    irreps_out: Any,
    weight: Tensor,
    mmax: int | None = None,
    *,
    scales: Tensor | None = None,
    parity: str = "o3",
    layout: str = "mul_ir",
    backend: str | None = None,
) -> Tensor:
    """:class:`eqlayers.nn.SO2Linear` as a function, ``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``.

    Args:
        x, weight, scales: See ``SO2Linear.forward``, also for errors.
        irreps_in, irreps_out, mmax, parity, layout, backend: See the layer.

    Example:
        >>> so2_linear(torch.ones(2, 2), "2x0e", "0e", torch.tensor([1.0, 2.0]))[:, 0]  # (1 + 2) over the root of 2
        tensor([2.1213, 2.1213])
    """
    check_backend(backend)
    plan = _read(irreps_in, irreps_out, fixed(mmax), parity, layout)
    return run_linear(plan, x, check_weight(plan, weight), scales, backend)
