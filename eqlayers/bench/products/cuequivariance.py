"""Peer cuEquivariance: layout ir_mul, fused gather and sum, its own order of weights and outputs."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cases import Refusal
from .implementation import Implementation, gathered, path_signs, weight_columns
from .operands import Columns, Function, Operands, layout_form
from .problems import Problem
from .suite import Case

#: Package of its kernels, without which its layers use plain torch.
KERNELS = "cuequivariance_ops_torch"
#: Mode -> class of its layer.
LAYERS = {"uvu": "ChannelWiseTensorProduct", "uvw": "FullyConnectedTensorProduct"}


def build_cuequivariance(case: Case, operands: Operands) -> Implementation:
    """Build the peer's layer for a case; the note is its method."""
    problem, x = case.problem, operands.values["x"]
    channelwise = problem.mode == "uvu"
    if channelwise and any(mul != 1 for mul, _ in problem.irreps_in2):
        raise Refusal("its channelwise product has an output for every pair of channels")
    if x.device.type == "cuda" and find_spec(KERNELS) is None:
        raise Refusal(f"{KERNELS}, its kernels, are not installed")
    cue, cuet = import_module("cuequivariance"), import_module("cuequivariance_torch")
    inputs = [cue.Irreps(cue.O3, str(irreps)) for irreps in (problem.irreps_in1, problem.irreps_in2)]
    out = cue.Irreps(cue.O3, problem.out)
    layer = getattr(cuet, LAYERS[problem.mode])(
        *inputs,
        [mul_ir.ir for mul_ir in out] if channelwise else out,
        layout=cue.ir_mul,
        shared_weights=problem.shared,
        internal_weights=False,
        device=x.device,
        dtype=x.dtype,
        method=None if x.device.type == "cuda" else "naive",
    )
    signs = path_signs(problem, lambda *ls: cue.clebsch_gordan(*(cue.SO3(l) for l in ls))[0])
    form = layout_form(problem, "ir_mul") | {"w": weight_columns(problem, signs)}
    if channelwise:
        form |= _sorted_columns(problem, signs)
    fn = _fused(layer, operands) if channelwise and operands.edge_index is not None else gathered(layer, operands)
    rows_of_weights = (lambda x, y, w: fn(x, y, w.unsqueeze(0))) if problem.shared else fn
    return Implementation("cuequivariance", "ir_mul", rows_of_weights, form, layer.f.method)


def _fused(layer: Any, operands: Operands) -> Function:
    """Call the polynomial of its layer directly, as the layer copies the number of receivers to the GPU each time."""
    assert operands.edge_index is not None
    src, dst = (index.contiguous() for index in operands.edge_index)
    rows = {0: operands.values["y"].new_empty(operands.nodes, 1)}

    def fn(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        z: Tensor = layer.f([w, x, y], input_indices={1: src}, output_shapes=rows, output_indices={0: dst})[0]
        return z

    return fn


def _sorted_columns(problem: Problem, signs: list[float]) -> dict[str, Columns]:
    """Column orders of z and w, whose irreps are sorted in its channelwise layer."""
    ends, counts = np.cumsum(problem.path_weights), problem.path_weights
    paths = [
        (mul, problem.irreps_out[k].ir, k) for mul, (_, _, k, *_) in zip(counts, problem.instructions, strict=True)
    ]
    # degree, then parity (-1)^l before the other
    order = sorted(range(len(paths)), key=lambda p: (paths[p][1].l, -paths[p][1].p * (-1) ** paths[p][1].l))
    weights = np.concatenate([np.arange(ends[p] - paths[p][0], ends[p]) for p in order])
    slices = problem.irreps_out.slices()
    columns = [np.arange(slices[paths[p][2]].start, slices[paths[p][2]].stop) for p in order]
    out = np.concatenate([c.reshape(paths[p][0], -1).T.ravel() for c, p in zip(columns, order, strict=True)])
    return {"z": Columns(torch.from_numpy(out)), "w": weight_columns(problem, signs, torch.from_numpy(weights))}
