"""The check of whole modules passes what commutes with every motion, and names the motion that something does not."""

import copy
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

import eqlayers as eq
from eqlayers import nn
from eqlayers.errors import ConfigError, MismatchError, ShapeError
from eqlayers.testing import check_equivariance, equivariance_residual
from tests.each import refused

EDGES = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
IRREPS = "3x0e + 2x1o"


class Scaled(torch.nn.Module):
    """A factor for each component of one vector."""

    irreps_in = irreps_out = "1o"

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.factors = torch.nn.Parameter(torch.tensor(factors))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors


class Cross(torch.nn.Module):
    irreps_in1 = irreps_in2 = "1o"

    def __init__(self, irreps_out: str) -> None:
        super().__init__()
        self.irreps_out = irreps_out

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.cross(x, y)


class Network(torch.nn.Module):
    """From positions and species to an energy, and vectors on nodes; `fault` adds what does not fit."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.geometry = nn.EdgeGeometry("0e + 1o")
        self.embed = torch.nn.Embedding(2, 3)
        self.layer = nn.Interaction("3x0e", "0e + 1o", IRREPS, layout="mul_ir")
        self.fault = fault

    def forward(self, pos: Tensor, kind: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        edges = self.geometry(pos, edge_index)
        x = self.layer(self.embed(kind), edges.harmonics, edges.lengths, edge_index)
        energy = x[:, :1].sum(0, keepdim=True)
        if self.fault == "place":
            energy = energy + pos.norm()
        if self.fault == "axis":
            energy = energy + (pos[0, 0] - pos[1, 0])
        return {"energy": energy, "vectors": x[:, 3:], "count": kind.sum()}


def network_call(module: torch.nn.Module, **options: Any) -> Any:
    pos = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    inputs = [pos, torch.tensor([0, 1, 1, 0]), EDGES]
    return check_equivariance(module, inputs, ["positions", None, None], ["0e", "2x1o", None], **options)


LAYERS = {
    "product": lambda: eq.TensorProduct(IRREPS, "0e + 1o", *eq.paths(IRREPS, "0e + 1o")),
    "product in ir_mul": lambda: eq.TensorProduct(IRREPS, "0e + 1o", *eq.paths(IRREPS, "0e + 1o"), layout="ir_mul"),
    "linear": lambda: eq.Linear(IRREPS, "2x0e + 5x1o"),
    "gate": lambda: nn.Gate("2x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o"),
    "batch norm": lambda: nn.BatchNorm(IRREPS),
    "dropout": lambda: nn.Dropout(IRREPS, 0.5),
    "of e3nn": lambda: o3.FullyConnectedTensorProduct(IRREPS, "1o", "2x0e + 2x1o + 1e"),
    "factors": lambda: Scaled([2.0, 2.0, 2.0]),
    "cross product": lambda: Cross("1e"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_pass_in_one_line(name: str) -> None:
    module = LAYERS[name]()
    known = {"batch norm": [IRREPS], "dropout": [IRREPS]}.get(name)
    report = check_equivariance(module, irreps_in=known, irreps_out=known[0] if known else None)
    assert report.ok
    assert list(report.residuals) == ["rotation", "reflection"]
    assert max(report.residuals.values()) < (1e-6 if name == "of e3nn" else 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_what_mixes_components_fails(seed: int) -> None:
    with pytest.raises(
        MismatchError, match=r"Scaled must commute with every motion within 1e-06, got\nFAIL rotation: "
    ):
        check_equivariance(Scaled([1.0, 1.0, 1.001]), seed=seed)
    report = check_equivariance(Scaled([1.0, 1.0, 1.001]), seed=seed, raise_exception=False)
    assert not report.ok
    assert 1e-5 < min(report.residuals.values()) < 2e-3
    assert check_equivariance(Scaled([1.0, 1.0, 1.001]), seed=seed, tolerance=0.01).ok


def test_wrong_parities_fail_under_reflections_only() -> None:
    report = check_equivariance(Cross("1o"), raise_exception=False)
    assert report.residuals["rotation"] < 1e-14
    assert report.residuals["reflection"] > 0.1
    assert str(report).startswith("ok   rotation: ")
    assert "\nFAIL reflection: " in str(report)


def test_networks_of_positions() -> None:
    report = network_call(Network())
    assert list(report.residuals) == ["rotation", "reflection", "translation"]
    assert max(report.residuals.values()) < 1e-12
    place = network_call(Network("place"), raise_exception=False)
    assert place.residuals["rotation"] < 1e-12
    assert place.residuals["translation"] > 1e-3
    axis = network_call(Network("axis"), raise_exception=False)
    assert axis.residuals["translation"] < 1e-12
    assert axis.residuals["rotation"] > 1e-3


def test_the_layout_of_features_is_the_modules() -> None:
    layer = eq.Linear(IRREPS, "2x0e + 5x1o", layout="ir_mul")
    assert check_equivariance(layer).ok
    assert not check_equivariance(layer, layout="mul_ir", raise_exception=False).ok


def test_nothing_of_the_module_or_of_random_numbers_changes() -> None:
    module = nn.BatchNorm(IRREPS)
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    kept = x.clone()
    check_equivariance(module, [x], [IRREPS], IRREPS)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)
    assert module.training
    assert {k: (v.dtype, v.tolist()) for k, v in module.state_dict().items()} == {
        k: (v.dtype, v.tolist()) for k, v in before.items()
    }


def test_the_dtype_may_be_another() -> None:
    report = check_equivariance(LAYERS["product"](), dtype=torch.float32)
    assert 1e-9 < report.residuals["rotation"] < 1e-5


def test_numbers_that_are_none_fail() -> None:
    assert not check_equivariance(Scaled([1.0, 1.0, float("nan")]), raise_exception=False).ok


X = torch.ones(4, 9)


test_what_does_not_fit_is_refused = refused("error, message, call", [
        (ConfigError, r"irreps_in must be given for a module without .* entry for each of input: irreps, 'positions'",
            lambda: check_equivariance(torch.nn.Linear(3, 3))),
        (ConfigError, r"irreps_out must be given for a module without .* got a module of type Linear\. Pass",
            lambda: check_equivariance(torch.nn.Linear(3, 3), irreps_in=["1o"])),
        (ConfigError, r"inputs must be given where an entry of irreps_in is None, got \[1x1o, None\]",
            lambda: check_equivariance(torch.nn.Bilinear(3, 3, 3), irreps_in=["1o", None], irreps_out="1o")),
        (ShapeError, r"inputs must have an entry for each of the 1 entries of irreps_in, got 0\. Give all",
            lambda: check_equivariance(eq.Linear(IRREPS, IRREPS), [])),
        (ShapeError, r"inputs\[0\] must be .*9.*got \[4, 8\]",
            lambda: check_equivariance(eq.Linear(IRREPS, IRREPS), [X[:, :8]])),
        (ShapeError, r"inputs\[0\] must be a floating-point tensor, as it has irreps, got .*int64\. Give None",
            lambda: check_equivariance(eq.Linear(IRREPS, IRREPS), [X.long()])),
        (ShapeError, r"irreps_out must have an entry for each of the 1 outputs, got 2\. Pass a list",
            lambda: check_equivariance(eq.Linear(IRREPS, IRREPS), irreps_out=[IRREPS, None])),
        (ShapeError, r"output 0 must be .*got \[4, 9\]",
            lambda: check_equivariance(eq.Linear(IRREPS, IRREPS), irreps_out="1o")),
    ])  # fmt: skip


class _Network(torch.nn.Module):
    """A product and a map of its simplified irreps."""

    irreps_in1, irreps_in2, irreps_out = o3.Irreps("2x0e + 2x1o"), o3.Irreps("0e + 1o"), o3.Irreps("1o")

    def __init__(self, layout: str, simplify: bool) -> None:
        super().__init__()
        self.layout = layout
        out, instructions = eq.paths(self.irreps_in1, self.irreps_in2, "0e + 1o")
        both = self.irreps_in1, self.irreps_in2
        self.product = eq.TensorProduct(*both, out, instructions, layout=layout, simplify=simplify)
        self.linear = eq.Linear(out.simplify(), "1o", layout=layout)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.linear(self.product(x, y))


def test_the_layers_that_misread_ir_mul_are_named() -> None:
    text = r"Linear 'linear' reads 4x0e\+4x1o, and TensorProduct 'product' gives 2x0e\+2x0e\+2x1o\+2x1o.*simplify=True"
    with pytest.raises(MismatchError, match=text):
        check_equivariance(_Network("ir_mul", False))
    for layout, simplify in (("mul_ir", False), ("ir_mul", True)):
        assert check_equivariance(_Network(layout, simplify)).ok


def test_a_number_is_a_result() -> None:
    class Energy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.square().sum()

    assert check_equivariance(Energy(), irreps_in=["1o"], irreps_out="0e").ok
    assert equivariance_residual(Energy(), ["1o"], "0e") < 1e-14
    assert not check_equivariance(Energy(), irreps_in=["1o"], irreps_out="0o", raise_exception=False).ok
