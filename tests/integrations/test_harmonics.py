"""Spherical harmonics in a model before and after `accelerate`: numbers, dtypes and copies."""

import copy
import warnings
from typing import Any

import e3nn
import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.harmonics import AcceleratedSphericalHarmonics
from tests.integrations.conftest import copies

KINDS = ("integral", "component", "norm")
DEGREES: list[Any] = [0, 2, [0, 1, 2, 3], [3, 1, 1, 0], "0e + 1o + 2e", "1e + 2e", "2x2e + 0e"]


def derivatives(layer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Value, gradient of a sum, and gradient of its square."""
    x = x.detach().clone().requires_grad_()
    value = layer(x)
    nothing = 0 * x.square().sum()  # e3nn's harmonics of l = 0 do not depend on x
    (first,) = torch.autograd.grad(value.sin().sum() + nothing, x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return {"value": value, "first": first, "second": second}


@pytest.mark.parametrize("normalization", KINDS)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_numbers(degrees: Any, normalize: bool, normalization: str, close: Any) -> None:
    layer = o3.SphericalHarmonics(degrees, normalize, normalization)
    model, x = nn.Sequential(layer), torch.randn(7, 3, dtype=torch.float64)
    before = derivatives(layer, x)
    (row,) = accelerate(model, backend="torch").replaced
    assert (row.kind, row.target, row.backend) == ("SphericalHarmonics", "harmonics", "torch")
    assert row.paths == len(layer._ls_list)
    assert row.error is not None
    assert row.error <= 1
    assert type(model[0]) is AcceleratedSphericalHarmonics
    close(derivatives(model[0], x), before)
    for name in ("irreps_in", "irreps_out", "normalize", "normalization", "_ls_list", "_lmax"):
        assert getattr(model[0], name) == getattr(layer, name)
    assert deaccelerate(model)[0] is layer


class Energies(nn.Module):
    """Energies of atoms by e3nn's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.harmonics = o3.SphericalHarmonics("0e + 1o + 2e", True, "component")
        self.product = o3.FullyConnectedTensorProduct("0e + 1o + 2e", "0e + 1o + 2e", "4x0e")
        self.readout = o3.Linear("4x0e", "0e")

    def forward(self, pos: Tensor) -> Tensor:
        vector = pos.unsqueeze(0) - pos.unsqueeze(1) + torch.eye(len(pos), dtype=pos.dtype).unsqueeze(-1)
        mean = (self.harmonics(vector) * (-vector.square().sum(-1, keepdim=True)).exp()).sum(1)
        return self.readout(self.product(mean, mean))


def forces(model: nn.Module, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Energies, forces, and gradients of a loss of forces."""
    pos = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype).requires_grad_()
    energy = model(pos)
    (force,) = torch.autograd.grad(-energy.sum(), pos, create_graph=True)
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(force.square().sum(), list(named.values()))
    return {"energy": energy, "forces": force, **dict(zip(named, grads, strict=True))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network(dtype: torch.dtype, close: Any, float64: None) -> None:
    model = Energies().to(dtype)
    keys, before = list(model.state_dict()), forces(model, dtype)
    report = accelerate(model)
    assert {row.path: row.target for row in report.replaced} == {
        "harmonics": "harmonics",
        "product": "product",
        "readout": "linear",
    }
    assert (report.coverage.modules, report.coverage.known_modules) == (4, 3)
    close(forces(model, dtype), before)
    assert list(model.state_dict()) == keys
    again = accelerate(model)
    assert not again.replaced
    assert again.coverage == report.coverage
    other = torch.float32 if dtype == torch.float64 else torch.float64
    close(forces(model.to(other), other), forces(deaccelerate(copy.deepcopy(model)), other), 1e4)
    deaccelerate(model.to(dtype))
    close(forces(model, dtype), before, 1e10 if dtype == torch.float64 else 1e3)  # the weights were in float32


def test_only_harmonics() -> None:
    model = Energies()
    assert [row.path for row in accelerate(model, targets="harmonics").replaced] == ["harmonics"]
    assert type(model.product) is o3.FullyConnectedTensorProduct


def test_a_model_on_the_meta_device() -> None:
    """The harmonics have no numbers to wait for; the linear map has."""
    model = nn.Sequential(o3.SphericalHarmonics([1], True), o3.Linear("1o", "1o")).to("meta")
    report = accelerate(model, backend="torch")
    assert [row.path for row in report.replaced] == ["0"]
    assert "meta device" in report.skipped[0].reason


@pytest.mark.parametrize("mode", ["eager", "script"])
def test_copies(mode: str, request: pytest.FixtureRequest) -> None:
    """Also of e3nn's compiled functions, which neither it nor torch can copy."""
    defaults = e3nn.get_optimization_defaults()
    if "jit_mode" not in defaults:
        pytest.skip("this e3nn compiles nothing")
    request.addfinalizer(lambda: e3nn.set_optimization_defaults(jit_mode=defaults["jit_mode"]))
    e3nn.set_optimization_defaults(jit_mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(o3.SphericalHarmonics([0, 1, 2], True, "norm"))
        x = torch.randn(4, 3)
        before = model(x)
        apart = accelerate(model, inplace=False, backend="torch")
        assert type(model[0]) is o3.SphericalHarmonics
        assert type(apart.model[0]) is AcceleratedSphericalHarmonics
        accelerate(model, backend="torch")
        after = model(x)
        for other in copies(model):
            assert torch.equal(other(x), after)
            assert other[0].original is not model[0].original
            assert torch.equal(deaccelerate(other)(x), before)
        assert torch.equal(deaccelerate(model)(x), before)


def test_torchscript_and_hooks() -> None:
    model, seen = nn.Sequential(o3.SphericalHarmonics([0, 1], True)), []
    handle = model[0].register_forward_hook(lambda *args: seen.append(1))
    accelerate(model)
    x = torch.randn(4, 3)
    expected = model(x)
    assert len(seen) == 1
    handle.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(torch.jit.script(model)(x), expected)
    assert len(seen) == 1


@pytest.mark.long
def test_compiled(close: Any) -> None:
    model, x = nn.Sequential(o3.SphericalHarmonics([0, 1, 2], True)), torch.randn(4, 3)
    accelerate(model)
    expected = derivatives(model, x)
    x = x.requires_grad_()
    value = torch.compile(model, fullgraph=True)(x)
    (slope,) = torch.autograd.grad(value.sin().sum(), x)
    close({"value": value, "first": slope}, {name: expected[name] for name in ("value", "first")})
