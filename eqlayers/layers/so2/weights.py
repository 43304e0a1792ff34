"""Weights of a map in the frames of edges from a tensor product with spherical harmonics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.errors import ConfigError, ShapeError
from .lower import Block, SO2Map, harmonics_block

if TYPE_CHECKING:
    from ..linear.module import Linear
    from ..tensor_product.base import ProductLayer


def check_convertible(tp: ProductLayer, linear: Linear | None) -> str:
    """The parity of the map equal to ``tp``: 'o3' if harmonics have parity (-1)^l, else 'so3'; or ConfigError."""
    for number, ins in enumerate(tp.plan.instructions):
        if tp.irreps_in2[ins.i_in2].mul != 1:
            raise ConfigError(
                f"irreps_in2 must be irreps of spherical harmonics, each once, got {tp.irreps_in2}. Convert only "
                f"products with harmonics."
            )
        if ins.connection_mode not in ("uvw", "uvu"):
            raise ConfigError(
                f"paths must have the mode 'uvw' or 'uvu', got {ins.connection_mode!r} in path {number}. Convert only "
                f"such products."
            )
    for layer in (tp, *(() if linear is None else (linear,))):
        if layer.weight_numel and not (layer.shared_weights and layer.internal_weights):
            raise ConfigError(
                "weights must be the layer's own, one set for all samples, got a layer that is given them. Radial "
                "functions of paths are none of a map in the frame: they mix its orders m."
            )
    if tp._sorts:
        raise ConfigError("product must keep the groups of its result, got simplify=True. Build it without.")
    if linear is not None and (linear.bias_numel or linear.f_in is not None or linear.f_out is not None):
        raise ConfigError("linear must have no biases and no f_in or f_out, got one with. Add biases after the sum.")
    if linear is not None and linear.irreps_in != tp.irreps_out:
        raise ShapeError(
            f"linear must have the irreps_in of the product's result, {tp.irreps_out}, got {linear.irreps_in}. Pass "
            f"the layer that follows the product."
        )
    used = {tp.irreps_in2[ins.i_in2].ir for ins in tp.plan.instructions}
    return "o3" if all(ir.p == (-1) ** (ir.l % 2) for ir in used) else "so3"


def so2_weights(so2: SO2Map, tp: ProductLayer, linear: Linear | None, normalization: str) -> Tensor:
    """``[weight_numel]`` float64, with which the map in the frame equals the product followed by ``linear``."""
    matrices = [torch.zeros(shape, dtype=torch.float64, device="cpu") for shape in so2.shapes]
    gains = so2.gains()
    for number, ins in enumerate(tp.plan.instructions):
        if 0 in ins.path_shape or ins.path_weight == 0:
            continue
        weights = torch.ones(tp.irreps_in1[ins.i_in1].mul, 1, dtype=torch.float64, device="cpu")
        if ins.has_weight:
            weights = tp.weight_view_for_instruction(number).detach()
        weights = weights.to("cpu", torch.float64)
        matrix = weights[:, 0, :] if ins.connection_mode == "uvw" else torch.diag(weights[:, 0])
        degrees = (tp.irreps_in1[ins.i_in1].ir.l, tp.irreps_in2[ins.i_in2].ir.l, tp.irreps_out[ins.i_out].ir.l)
        block = harmonics_block(*degrees, normalization) * ins.path_weight
        for target, mixed in _targets(matrix, ins.i_out, linear):
            for index, (a, b) in enumerate(zip(so2.blocks_in, so2.blocks_out, strict=True)):
                rows, columns = _columns(a, ins.i_in1), _columns(b, target)
                if rows is not None and columns is not None:
                    which, value = _entry(so2, block, a.m, sum(degrees) % 2, ins.i_in1)
                    scale = (len(matrices[index]) * a.width) ** 0.5 / gains[target]
                    matrices[index][which, rows, columns] += value * scale * mixed
    return (
        torch.cat([part.flatten() for part in matrices])
        if matrices
        else torch.zeros(0, dtype=torch.float64, device="cpu")
    )


def _targets(matrix: Tensor, group: int, linear: Linear | None) -> list[tuple[int, Tensor]]:
    """Output groups of a path after ``linear``, each with the matrix from input channels to output channels."""
    if linear is None:
        return [(group, matrix)]
    views = linear.weight_views(yield_instruction=True)
    return [
        (path.i_out, matrix @ view.detach().to("cpu", torch.float64) * path.path_weight)
        for _, path, view in views
        if path.i_in == group and 0 not in path.path_shape
    ]


def _columns(block: Block, group: int) -> slice | None:
    return next((slice(p.start, p.start + p.mul) for p in block.groups if p.group == group), None)


def _entry(so2: SO2Map, block: object, m: int, odd: int, group: int) -> tuple[int, float]:
    """Index and value of a path's matrix entry: even sums of degrees map m to m, odd sums map -m to m."""
    table = torch.as_tensor(block, device="cpu")
    first, second = table.shape[0] // 2, table.shape[1] // 2
    if not odd:
        return 0, float(table[first + m, second + m])
    value = float(table[first + m, second - m])
    if so2.parity == "so3":
        return min(m, 1), value
    return 0, value if so2.uses_j(so2.irreps_in, group) else -value
