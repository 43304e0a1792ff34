"""The peers that are timed beside this package: one row a peer, and how each is made ready for a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch

from .cuequivariance_peer import build_cuequivariance
from .implementation import OURS, Implementation, Refusal, e3nn_layer, gathered, ours
from .openequivariance_peer import build_openequivariance
from .operands import Function, Operands, layout_form
from .suite import Case


def _e3nn_function(case: Case, operands: Operands) -> Function:
    x = operands.values["x"]
    return gathered(e3nn_layer(case.problem, x.dtype, x.device), operands)


def _e3nn(case: Case, operands: Operands) -> Implementation:
    form = layout_form(case.problem, "mul_ir")
    return Implementation("e3nn", "mul_ir", _e3nn_function(case, operands), form, "eager")


NO_DOUBLE = "torch.compile has no double backward (AOTAutograd does not support it)"


def _e3nn_compiled(case: Case, operands: Operands) -> Implementation:
    if operands.values["x"].device.type == "cuda" and find_spec("triton") is None:
        raise Refusal("torch.compile needs triton on a GPU, which is not installed")
    torch.compiler.reset()  # a graph of an earlier case must not count towards the limit of recompilations
    fn: Function = torch.compile(_e3nn_function(case, operands), dynamic=False)
    form = layout_form(case.problem, "mul_ir")
    return Implementation("e3nn-compiled", "mul_ir", fn, form, "inductor", {"double_bwd": NO_DOUBLE})


def _unordered(case: Case, operands: Operands) -> Implementation:
    if operands.edge_index is None or operands.values["x"].device.type == "cpu":
        raise Refusal("only gradients of convolutions on GPUs can be summed in any order")
    return ours(case, operands, "ir_mul", deterministic=False)


@dataclass(frozen=True)
class Peer:
    """One row of the table of peers.

    Attributes:
        about: What it is.
        packages: Packages that it needs besides this one's.
        build: Makes it ready for a case, or raises :class:`Refusal`.
    """

    about: str
    packages: tuple[str, ...]
    build: Callable[[Case, Operands], Implementation]


_OEQ = ("openequivariance",)
PEERS: dict[str, Peer] = {
    "e3nn": Peer("e3nn, eager", (), _e3nn),
    "e3nn-compiled": Peer("torch.compile of e3nn; compiling takes minutes for large problems", (), _e3nn_compiled),
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
    """Make a peer ready for a case.

    Raises:
        Refusal: It is not installed, or cannot run the case.
    """
    peer = PEERS[name]
    missing = [package for package in peer.packages if find_spec(package) is None]
    if missing:
        raise Refusal(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")
    return replace(peer.build(case, operands), name=name)
