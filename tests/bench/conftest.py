"""Implementations that are wrong in one way each, and torch as users have it."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eqlayers.bench.products.implementation import Implementation
from eqlayers.bench.products.operands import Operands
from eqlayers.bench.products.peers import build_peer
from eqlayers.bench.products.suite import Case

# networks of other packages, of which an environment has one or none; `nox` has them
collect_ignore = [] if any(map(find_spec, ("mace", "nequip", "sevenn"))) else ["networks/test_guests.py"]


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.bench)


class SlightlyWrongGradient(torch.autograd.Function):
    """The identity with a gradient that is a thousandth too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 1.001


def one_sign(z: Tensor) -> Tensor:
    change = torch.zeros_like(z)
    change[0, 0] = -2 * z.detach()[0, 0]
    return z + change


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "one sign": one_sign,
    "a thousandth": lambda z: z * 1.001,
    "not finite": lambda z: z + torch.tensor(float("nan")),
    "another shape": lambda z: z[:, 1:],
    "rows exchanged": lambda z: z.flip(0),
    "gradient only": SlightlyWrongGradient.apply,
}

LAYERS = """
device: cpu
threads: 1
runs: 2
cases:
  small:
    layer: SphericalHarmonics
    rows: [4, 7]
    lmax: [2]
    peers: [e3nn]
    goals: {ratio: {fwd: 5, fwd+bwd: 5}, memory: {fwd: 0.5}}
  graph: {layer: EdgeGeometry, rows: [6], lmax: [1], dtypes: [float32, float64], peers: [e3nn]}
  power:
    layer: SymmetricContraction
    rows: [3]
    in: 0e+1o
    out: 0e+1o
    channels: 2
    elements: 3
    correlation: 3
    runs: 1
    peers: [mace-torch, einsum]
    goals: {ratio: {fwd: 100}}
"""

Faulty = Callable[[str, Case, Operands], Implementation]


@pytest.fixture
def faulty() -> Faulty:
    """Makes e3nn with the fault of that name."""

    def make(fault: str, case: Case, operands: Operands) -> Implementation:
        right = build_peer("e3nn", case, operands)
        return replace(right, fn=lambda x, y, w: FAULTS[fault](right.fn(x, y, w)))

    return make


@pytest.fixture(autouse=True)
def ordinary_mode() -> None:
    """Deterministic mode fills fresh memory, which would be measured too; the session's fixture turns it on again."""
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def layer_config(tmp_path: Path) -> Path:
    """Small settings of `eqlayers bench layers`."""
    path = tmp_path / "tiny.yaml"
    path.write_text(LAYERS)
    return path
