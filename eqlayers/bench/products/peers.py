"""Implementations made ready for one case: this package's, e3nn's, and the peers' that are timed beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...core.errors import EqlayersError
from ...core.graph import Graph
from ...irreps.algebra import wigner_3j
from ...testing.defaults import default_dtype
from ..results import OURS
from .operands import Columns, Form, Function, Operands, layout_form
from .problems import Problem
from .suite import Case

NO_DOUBLE = "torch.compile has no double backward (AOTAutograd does not support it)"


class Refusal(Exception):
    """An implementation cannot run a case; the text says why and becomes part of the report."""


def short(error: Exception) -> str:
    """Type and beginning of an error, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def why_refused(name: str, error: Exception) -> str:
    """The reason for a report: whatever a peer raises is its result, and this package's own errors are."""
    if isinstance(error, (Refusal, EqlayersError)):
        return " ".join(str(error).split())[:300]
    if name == OURS:
        raise error
    return short(error)


@dataclass(frozen=True)
class Implementation:
    """A peer, or this package, made ready for one case."""

    name: str  # a key of PEERS, or 'eqlayers'
    layout: str  # of the features that it takes
    fn: Function  # from (x, y, w) in its columns to z
    form: Form  # its columns
    note: str = ""  # the backend or the method that runs
    cannot: dict[str, str] = field(default_factory=dict)  # direction to the reason why it has none


def convolve(layer: Function, x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor, nodes: int) -> Tensor:
    """Gather by src, product, sum at dst, as networks with e3nn's layers do it."""
    src, dst = edge_index
    messages = layer(x.index_select(0, src), y, w)
    return messages.new_zeros(nodes, messages.shape[-1]).index_add(0, dst, messages)


def gathered(layer: Function, operands: Operands) -> Function:
    """A product as it is, or between a gather by src and a sum at dst if there are edges."""
    index, nodes = operands.edge_index, operands.nodes
    return layer if index is None else lambda x, y, w: convolve(layer, x, y, w, index, nodes)


def e3nn_layer(problem: Problem, dtype: torch.dtype, device: torch.device) -> Function:
    """e3nn's layer with constants in a dtype."""
    with default_dtype(dtype):
        layer: Function = o3.TensorProduct(**problem.arguments()).to(device)
    return layer


def ours(case: Case, operands: Operands, layout: str, backend: str | None = None, **options: Any) -> Implementation:
    """This package in one layout: ``TensorProduct``, or ``TensorProductConv`` with a graph that was sorted before."""
    x, index = operands.values["x"], operands.edge_index
    form = layout_form(case.problem, layout)
    kind = nn.TensorProduct if index is None else nn.TensorProductConv
    layer = kind(**case.problem.arguments(), layout=layout, backend=backend, **options).to(x.device)
    note = layer.selected_backend(x.device, x.dtype)
    if index is None:
        return Implementation(OURS, layout, layer, form, note)
    graph = Graph(index, operands.nodes, operands.nodes)
    return Implementation(OURS, layout, lambda x, y, w: layer(x, y, w, graph), form, note)


def path_signs(problem: Problem, theirs: Callable[[int, int, int], np.ndarray]) -> list[float]:
    """The sign of each path by which other Clebsch-Gordan coefficients differ from the installed e3nn's."""
    signs = []
    for degrees in problem.degrees:
        a, b = wigner_3j(*degrees), np.asarray(theirs(*degrees), dtype=np.float64)
        overlap = float((a * b).sum() / np.linalg.norm(b))
        if abs(abs(overlap) - 1) > 1e-6:
            raise Refusal(f"its Clebsch-Gordan coefficients of {degrees} are not e3nn's")
        signs.append(float(np.sign(overlap)))
    return signs


def weight_columns(problem: Problem, signs: Sequence[float], order: Tensor | None = None) -> Columns:
    """The columns of weights for a sign per path, and for another order: ``theirs = e3nn's[..., order]``."""
    sign = torch.from_numpy(np.repeat(signs, problem.path_weights))
    return Columns(order, sign if order is None else sign[order])


def _e3nn(case: Case, operands: Operands, compiled: bool = False) -> Implementation:
    x, form = operands.values["x"], layout_form(case.problem, "mul_ir")
    fn = gathered(e3nn_layer(case.problem, x.dtype, x.device), operands)
    if not compiled:
        return Implementation("e3nn", "mul_ir", fn, form, "eager")
    if x.device.type == "cuda" and find_spec("triton") is None:
        raise Refusal("torch.compile needs triton on a GPU, which is not installed")
    torch.compiler.reset()  # a graph of an earlier case must not count towards the limit of recompilations
    fn = torch.compile(fn, dynamic=False)
    return Implementation("e3nn-compiled", "mul_ir", fn, form, "inductor", {"double_bwd": NO_DOUBLE})


def _unordered(case: Case, operands: Operands) -> Implementation:
    if operands.edge_index is None or operands.values["x"].device.type == "cpu":
        raise Refusal("only gradients of convolutions on GPUs can be summed in any order")
    return ours(case, operands, "ir_mul", deterministic=False)


def _cue(case: Case, operands: Operands) -> Implementation:
    from .cuequivariance import build_cuequivariance

    return build_cuequivariance(case, operands)


def _oeq(case: Case, operands: Operands, **options: Any) -> Implementation:
    from .openequivariance import build_openequivariance

    return build_openequivariance(case, operands, **options)


@dataclass(frozen=True)
class Peer:
    """One row of the table of peers: what it is, the packages that it needs, and how it is made ready for a case."""

    about: str
    packages: tuple[str, ...]
    build: Callable[[Case, Operands], Implementation]


_OEQ = ("openequivariance",)
PEERS: dict[str, Peer] = {
    "e3nn": Peer("e3nn, eager", (), _e3nn),
    "e3nn-compiled": Peer(
        "torch.compile of e3nn; compiling takes minutes for large problems", (), partial(_e3nn, compiled=True)
    ),
    "cuequivariance": Peer("cuEquivariance", ("cuequivariance", "cuequivariance_torch"), _cue),
    "openequivariance": Peer("OpenEquivariance; sums by atomic additions", _OEQ, _oeq),
    "openequivariance-sorted": Peer("the same; sums along sorted edges", _OEQ, partial(_oeq, deterministic=True)),
    "openequivariance-ir_mul": Peer("the same as the first, channels innermost", _OEQ, partial(_oeq, layout="ir_mul")),
    f"{OURS}-unordered": Peer("this package; gradients of x are added in memory, in any order", (), _unordered),
}


def build_peer(name: str, case: Case, operands: Operands) -> Implementation:
    """Make a peer ready for a case."""
    peer = PEERS[name]
    missing = [package for package in peer.packages if find_spec(package) is None]
    if missing:
        raise Refusal(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")
    return replace(peer.build(case, operands), name=name)
