"""A table of layers with inputs for any number of rows, for what compilers and transforms do with each of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import eqlayers as eq
from eqlayers.layers.convolution.module import Interaction
from eqlayers.layers.gate.activation import GatedNonlinearity
from eqlayers.layers.radial.module import RadialNetwork
from eqlayers.models import MoleculeNetwork

HIDDEN, SH = "4x0e + 4x1o", "0e + 1o"
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 0, "uvu", False)]
MODES = ("uvw", "uvu", "uvv", "uuw", "uuu", "uvuv", "uvu<v", "u<vw")
EVERY_MODE = [(0, 0, i, mode, True) for i, mode in enumerate(MODES)]
EVERY_OUT = "2x0e + 3x1e + 3x2e + 2x0e + 3x1e + 9x0e + 3x1e + 2x1e"


@dataclass
class Case:
    """A layer, and its inputs for n rows (or nodes; twice as many edges)."""

    layer: torch.nn.Module
    inputs: Callable[[int], tuple[Any, ...]]


def flat(*widths: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda n: tuple(torch.randn(n, width) for width in widths)


def edges(n: int) -> Tensor:
    src = torch.randint(n, (2 * n,))
    return torch.stack([src, (src + torch.randint(1, n, (2 * n,))) % n])


def conv_inputs(n: int) -> tuple[Any, ...]:
    return torch.randn(n, 16), torch.randn(2 * n, 4), torch.randn(2 * n, 12), edges(n)


def step_inputs(n: int) -> tuple[Any, ...]:
    return torch.randn(n, 16), torch.randn(2 * n, 4), 4 * torch.rand(2 * n), edges(n)


def atoms(n: int) -> tuple[Any, ...]:
    return torch.tensor([1, 6, 7, 8])[torch.arange(n) % 4], 2 * torch.randn(n, 3), edges(n)


def molecules(n: int) -> tuple[Any, ...]:
    return *atoms(n), (2 * torch.arange(n)) // n, 2


def conv(**kwargs: Any) -> eq.TensorProductConv:
    return eq.TensorProductConv(HIDDEN, SH, HIDDEN, PATHS, shared_weights=False, **kwargs)


CASES: dict[str, Callable[[], Case]] = {
    "product": lambda: Case(eq.TensorProduct(HIDDEN, SH, HIDDEN, PATHS), flat(16, 4)),
    "product, in torch": lambda: Case(eq.TensorProduct(HIDDEN, SH, HIDDEN, PATHS, backend="torch"), flat(16, 4)),
    "every mode": lambda: Case(eq.TensorProduct("3x1o", "3x1o", EVERY_OUT, EVERY_MODE), flat(9, 9)),
    "full": lambda: Case(eq.FullTensorProduct("2x0e + 1o", SH), flat(5, 4)),
    "fully connected": lambda: Case(eq.FullyConnectedTensorProduct("2x0e + 1o", SH, "2x0e + 2x1o"), flat(5, 4)),
    "elementwise": lambda: Case(eq.ElementwiseTensorProduct("2x0e + 2x1o", "2x0e + 2x1o"), flat(8, 8)),
    "square": lambda: Case(eq.TensorSquare("2x0e + 2x1o"), flat(8)),
    "convolution": lambda: Case(conv(layout="ir_mul"), conv_inputs),
    "convolution, in torch": lambda: Case(conv(backend="torch"), conv_inputs),
    "linear": lambda: Case(eq.Linear(HIDDEN, HIDDEN, biases=True), flat(16)),
    "fixed scale": lambda: Case(eq.SO3Scale(HIDDEN, "fixed", 2.0), flat(16)),
    "fixed scale, in torch": lambda: Case(eq.SO3Scale(HIDDEN, "fixed", 2.0, backend="torch"), flat(16)),
    "learned scale": lambda: Case(eq.SO3Scale(HIDDEN), flat(16)),
    "given scale": lambda: Case(eq.SO3Scale(HIDDEN, "external"), flat(16, 8)),
    "given scale, in torch": lambda: Case(eq.SO3Scale(HIDDEN, "external", backend="torch"), flat(16, 8)),
    "gate": lambda: Case(GatedNonlinearity(HIDDEN), flat(20)),
    "radial": lambda: Case(RadialNetwork(8), lambda n: (4 * torch.rand(n),)),
    "interaction": lambda: Case(Interaction(HIDDEN, SH, HIDDEN), step_inputs),
    "energy": lambda: Case(MoleculeNetwork(hidden=HIDDEN, layers=2), atoms),
    "mean of molecules": lambda: Case(MoleculeNetwork(hidden=HIDDEN, layers=1, pooling="mean"), molecules),
    "dipole": lambda: Case(MoleculeNetwork(hidden=HIDDEN, layers=1, readout="vector"), molecules),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, needs_a_compiler: None) -> Case:
    """Every layer of the table; ``parametrize("case", names, indirect=True)`` takes some."""
    torch.manual_seed(3)
    return CASES[request.param]()


@pytest.fixture
def table(needs_a_compiler: None) -> dict[str, Callable[[], Case]]:
    """The whole table, for tests that put several layers into one process."""
    torch.manual_seed(3)
    return CASES
