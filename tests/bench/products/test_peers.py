"""Other packages as peers: what peers of GPUs refuse."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from e3nn import o3

from eqlayers.bench.cases import Refusal
from eqlayers.bench.products.check import check
from eqlayers.bench.products.operands import DIRECTIONS, Columns, Operands, draw, layout_form
from eqlayers.bench.products.peers import PEERS, build_peer
from eqlayers.bench.products.problems import GraphSpec, Problem
from eqlayers.bench.products.suite import Case

SMALL = Problem("small", "uvu", "4x0e+4x1o", "0e+1o", "0e+1o")
ODD = Problem("odd", "uvu", "3x0o+5x1o+2x2e", "0e+1o", "0e+0o+1o+2e")
SHARED = Problem("shared", "uvw", "2x0e+3x1o", "2x0e+1x1o", "2x0e+2x1o", "shared")
PER_EDGE = Problem("per edge", "uvw", "2x0e+3x1o", "2x0e+1x1o", "2x0e+2x1o")
EVERY = (SMALL, ODD, SHARED, PER_EDGE)


def made(problem: Problem, operation: str, dtype: torch.dtype = torch.float32) -> tuple[Case, Operands]:
    case = Case("test", problem, operation, GraphSpec("g", 5, 23))
    return case, draw(problem, operation, case.graph, dtype, torch.device("cpu"))


def passes(name: str, problem: Problem, operation: str) -> bool:
    case, operands = made(problem, operation)
    verdicts = check(problem, operands, [build_peer(name, case, operands)], DIRECTIONS)
    return {verdict.status for verdict in verdicts.values()} == {"ok"}


def other_sign(degree: int) -> float:
    """Coefficients of paths into vectors have the other sign in the fakes of other packages."""
    return -1.0 if degree == 1 else 1.0


def inner_order(irreps: o3.Irreps) -> Columns:
    """Columns with the channels innermost."""
    return layout_form(SimpleNamespace(irreps_in1=irreps, irreps_in2=irreps, irreps_out=irreps), "ir_mul")["x"]


def test_peers_of_gpus_refuse_a_cpu() -> None:
    build: Callable[..., object] = PEERS["openequivariance"].build
    with pytest.raises(Refusal, match="GPUs only"):
        build(*made(SMALL, "product"))
    with pytest.raises(Refusal, match="only gradients of convolutions on GPUs"):
        build_peer("eqlayers-unordered", *made(SMALL, "conv"))
