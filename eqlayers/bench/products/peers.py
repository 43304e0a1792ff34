"""Peers of products by name, and how each is built for a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cases import NO_DOUBLE, Refusal
from ..results import OURS
from .implementation import Implementation, e3nn_layer, gathered, ours, path_signs, weight_columns
from .operands import Columns, Function, Operands, layout_form
from .problems import Problem
from .suite import Case

#: Package of cuEquivariance's kernels, without which its layers use plain torch.
CUEQ_KERNELS = "cuequivariance_ops_torch"
#: Mode -> class of cuEquivariance's layer.
CUEQ_LAYERS = {"uvu": "ChannelWiseTensorProduct", "uvw": "FullyConnectedTensorProduct"}
#: Device type and dtypes that OpenEquivariance supports.
OEQ_DEVICE = "cuda"
OEQ_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


def _e3nn(case: Case, operands: Operands, compiled: bool = False) -> Implementation:
    x, form = operands.values["x"], layout_form(case.problem, "mul_ir")
    fn = gathered(e3nn_layer(case.problem, x.dtype, x.device), operands)
    if not compiled:
        return Implementation("e3nn", "mul_ir", fn, form, "eager")
    if x.device.type == "cuda" and find_spec("triton") is None:
        raise Refusal("torch.compile needs triton on a GPU, which is not installed")
    torch.compiler.reset()  # graphs of earlier cases count towards the limit of recompilations
    fn = torch.compile(fn, dynamic=False)
    return Implementation("e3nn-compiled", "mul_ir", fn, form, "inductor", {"double_bwd": NO_DOUBLE})


def _unordered(case: Case, operands: Operands) -> Implementation:
    if operands.edge_index is None or operands.values["x"].device.type == "cpu":
        raise Refusal("only gradients of convolutions on GPUs can be summed in any order")
    return ours(case, operands, "ir_mul", deterministic=False)


# -- cuEquivariance: layout ir_mul, fused gather and sum, its own order of weights and outputs -------------------------


def build_cuequivariance(case: Case, operands: Operands) -> Implementation:
    """Build the peer's layer for a case; the note is its method."""
    problem, x = case.problem, operands.values["x"]
    channelwise = problem.mode == "uvu"
    if channelwise and any(mul != 1 for mul, _ in problem.irreps_in2):
        raise Refusal("its channelwise product has an output for every pair of channels")
    if x.device.type == "cuda" and find_spec(CUEQ_KERNELS) is None:
        raise Refusal(f"{CUEQ_KERNELS}, its kernels, are not installed")
    cue, cuet = import_module("cuequivariance"), import_module("cuequivariance_torch")
    inputs = [cue.Irreps(cue.O3, str(irreps)) for irreps in (problem.irreps_in1, problem.irreps_in2)]
    out = cue.Irreps(cue.O3, problem.out)
    layer = getattr(cuet, CUEQ_LAYERS[problem.mode])(
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


# -- OpenEquivariance: both layouts, atomic or deterministic sums over edges -------------------------------------------


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
        irrep_dtype=OEQ_DTYPES[x.dtype],
        weight_dtype=OEQ_DTYPES[x.dtype],
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
    if x.device.type != OEQ_DEVICE:
        raise Refusal("it runs on GPUs only")
    if x.dtype not in OEQ_DTYPES:
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


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A peer: description, required packages, and function that builds it for a case."""

    about: str
    packages: tuple[str, ...]
    build: Callable[[Case, Operands], Implementation]


_OEQ = ("openequivariance",)
PEERS: dict[str, Peer] = {
    "e3nn": Peer("e3nn, eager", (), _e3nn),
    "e3nn-compiled": Peer(
        "torch.compile of e3nn; compiling takes minutes for large problems", (), partial(_e3nn, compiled=True)
    ),
    "cuequivariance": Peer("cuEquivariance", ("cuequivariance", "cuequivariance_torch"), build_cuequivariance),
    "openequivariance": Peer("OpenEquivariance; sums by atomic additions", _OEQ, build_openequivariance),
    "openequivariance-sorted": Peer(
        "the same; sums along sorted edges", _OEQ, partial(build_openequivariance, deterministic=True)
    ),
    "openequivariance-ir_mul": Peer(
        "the same as the first, channels innermost", _OEQ, partial(build_openequivariance, layout="ir_mul")
    ),
    f"{OURS}-unordered": Peer("this package; gradients of x are added in memory, in any order", (), _unordered),
}


def build_peer(name: str, case: Case, operands: Operands) -> Implementation:
    """Build a peer for a case; raise a Refusal if a package is missing."""
    peer = PEERS[name]
    missing = [package for package in peer.packages if find_spec(package) is None]
    if missing:
        raise Refusal(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")
    return replace(peer.build(case, operands), name=name)
