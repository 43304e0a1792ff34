"""Table of peers of products, and functions that build them for a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch

from ..cases import NO_DOUBLE, Refusal
from ..results import OURS
from .cuequivariance import build_cuequivariance
from .implementation import Implementation, e3nn_layer, gathered, ours
from .openequivariance import build_openequivariance
from .operands import Operands, layout_form
from .suite import Case


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
