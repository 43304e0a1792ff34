"""The functions and files of this package that a call goes through, from its public name to the kernel, are few.

Each figure is an upper bound: lower it when a call becomes shorter. The prints of ``pytest -s`` name the functions.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import eqlayers as eq
from eqlayers.cli.main import main
from eqlayers.models import NequIP, Potential, Structures

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "qm9_mini.yaml"

IRREPS, SH = "8x0e + 8x1o", "0e + 1o"
PATHS = [(0, 0, 0, "uvu", True), (1, 1, 0, "uvu", True), (0, 1, 1, "uvu", True)]


class Walk(NamedTuple):
    """Python functions of this package that a call came to, each as often as it was called."""

    steps: list[tuple[str, str]]

    @property
    def functions(self) -> int:
        return len(set(self.steps))

    @property
    def files(self) -> int:
        return len({file for file, _ in self.steps})

    def __str__(self) -> str:
        return f"{len(self.steps)} calls of {self.functions} functions in {self.files} files"


def walk(call: Callable[[], Any]) -> Walk:
    """The walk of a call that was made before: nothing is sorted, compiled or looked up for the first time."""
    for _ in range(3):
        call()
    steps: list[tuple[str, str]] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.partition(".")[0] in ("eqlayers", "eqlayers_kernels"):
            code = frame.f_code
            steps.append((module, f"{getattr(code, 'co_qualname', code.co_name)}:{code.co_firstlineno}"))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(steps)


def tensor_product() -> Callable[[], Any]:
    layer, x, y = eq.TensorProduct(IRREPS, SH, IRREPS, PATHS, layout="ir_mul"), torch.randn(5, 32), torch.randn(5, 4)
    return lambda: layer(x, y)


def convolution() -> Callable[[], Any]:
    layer = eq.TensorProductConv(IRREPS, SH, IRREPS, PATHS, layout="ir_mul", shared_weights=False)
    graph, x, y = eq.Graph(torch.randint(0, 5, (2, 5)), 5), torch.randn(5, 32), torch.randn(5, 4)
    w = torch.randn(5, layer.weight_numel)
    return lambda: layer(x, y, w, graph)


def broadcast() -> Callable[[], Any]:
    layer, x, y = eq.TensorProduct(IRREPS, SH, IRREPS, PATHS, layout="ir_mul"), torch.randn(5, 1, 32), torch.randn(4, 4)
    return lambda: layer(x, y)


def edge_index() -> Callable[[], Any]:
    layer = eq.TensorProductConv(IRREPS, SH, IRREPS, PATHS, layout="ir_mul", shared_weights=False)
    edges, x, y = torch.randint(0, 5, (2, 5)), torch.randn(5, 32), torch.randn(5, 4)
    w = torch.randn(5, layer.weight_numel)
    return lambda: layer(x, y, w, edges)


def layer_norm() -> Callable[[], Any]:
    layer, x = eq.nn.LayerNorm(IRREPS, layout="ir_mul"), torch.randn(5, 32)
    return lambda: layer(x)


def contraction() -> Callable[[], Any]:
    layer = eq.nn.SymmetricContraction(IRREPS, "8x0e", correlation=2, num_elements=3)
    x, species = torch.randn(5, 32), torch.tensor([0, 1, 2, 0, 1])
    return lambda: layer(x, species)


def potential() -> Callable[[], Any]:
    network = NequIP([1, 8], hidden="4x0e + 4x1o", lmax=1, layers=2, cutoff=4.0, num_basis=4, radial_hidden=(8,))
    of = Potential(network, species=[1, 8])
    edges = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    water = Structures(torch.tensor([8, 1, 1]), torch.randn(3, 3), edges)
    return lambda: of(water)["forces"]


@pytest.mark.parametrize(
    ("make", "functions", "files"),
    [
        (tensor_product, 11, 8),
        (convolution, 14, 9),
        (contraction, 21, 9),
        (broadcast, 14, 9),
        (edge_index, 18, 10),
        (layer_norm, 16, 9),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_layer(make: Callable[[], Callable[[], Any]], functions: int, files: int) -> None:
    came = walk(make())
    print(f"{make.__name__}: {came}", *came.steps, sep="\n  ")
    assert came.functions <= functions
    assert came.files <= files


def test_energy_and_forces() -> None:
    came = walk(potential())
    print(f"potential: {came}")
    assert (
        len(came.steps) <= 438
    )  # one asks for pairs; maps and radial layers are one operator of torch each, and more functions of ours


def test_a_configuration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration is read once."""

    def printed() -> None:
        with pytest.raises(SystemExit):
            main(["fit", "-c", str(CONFIG), "--print_config"])

    came = walk(printed)
    reads = [name.partition(":")[0] for _, name in came.steps]
    capsys.readouterr()
    print(f"fit --print_config: {came}")
    assert len(came.steps) <= 998
    assert reads.count("read_yaml") + reads.count("read_yaml_lines") == 1
