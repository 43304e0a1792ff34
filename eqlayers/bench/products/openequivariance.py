"""Peer OpenEquivariance: both layouts, atomic or deterministic sums over edges."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch

from ..cases import Refusal
from .implementation import Implementation, path_signs, weight_columns
from .operands import Operands, layout_form
from .problems import Problem
from .suite import Case

#: Device type that it supports.
DEVICE = "cuda"
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


def build_openequivariance(
    case: Case, operands: Operands, deterministic: bool = False, layout: str = "mul_ir"
) -> Implementation:
    """Build the peer's product or convolution; edges are sorted by receiver, then sender.

    A deterministic convolution sums along sorted edges, otherwise by atomic additions.
    """
    problem, x = case.problem, operands.values["x"]
    fused = operands.edge_index is not None
    _check(problem, x, fused, deterministic, layout)
    oeq, lite = import_module("openequivariance"), import_module("openequivariance.core.e3nn_lite")
    config = oeq.TPProblem(
        *(str(irreps) for irreps in (problem.irreps_in1, problem.irreps_in2, problem.irreps_out)),
        problem.instructions,
        shared_weights=problem.shared,
        internal_weights=False,
        irrep_dtype=DTYPES[x.dtype],
        weight_dtype=DTYPES[x.dtype],
        **({} if layout == "mul_ir" else {"layout": layout}),  # releases before 0.6.5 have one layout
    )
    layer = oeq.TensorProductConv(config, deterministic=deterministic) if fused else oeq.TensorProduct(config)
    form = layout_form(problem, layout)
    form |= {"w": weight_columns(problem, path_signs(problem, lite.wigner_3j), _weight_order(layer, problem))}
    note = "sorted" if deterministic else "atomic" if fused else ""
    if operands.edge_index is None:
        return Implementation("openequivariance", layout, layer, form, note)
    src, dst = (index.contiguous() for index in operands.edge_index)
    by_sender = np.lexsort((dst.cpu().numpy(), src.cpu().numpy()))
    arguments = [dst, src, *([torch.from_numpy(by_sender).to(x.device)] if deterministic else [])]
    return Implementation("openequivariance", layout, lambda x, y, w: layer(x, y, w, *arguments), form, note)


def _check(problem: Problem, x: torch.Tensor, fused: bool, deterministic: bool, layout: str) -> None:
    if x.device.type != DEVICE:
        raise Refusal("it runs on GPUs only")
    if x.dtype not in DTYPES:
        raise Refusal("it computes in float32 and float64")
    if deterministic and not fused:
        raise Refusal("its products alone have one way of adding up")
    if deterministic and problem.shared:
        raise Refusal("its sorted convolution has no shared weights")
    if layout != "mul_ir" and problem.mode != "uvu":
        raise Refusal("its products that mix channels have the layout mul_ir")


def _weight_order(layer: Any, problem: Problem) -> torch.Tensor:
    """Order of the peer's weights, determined by reordering indices."""
    numbers = torch.arange(problem.weight_numel, dtype=torch.float64)
    ordered: torch.Tensor = layer.reorder_weights_from_e3nn(
        numbers if problem.shared else numbers.unsqueeze(0), has_batch_dim=not problem.shared
    )
    return ordered.reshape(-1).long()
