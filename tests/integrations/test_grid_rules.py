"""Activations on grids of e3nn in a model before and after `accelerate`, and layers of functions alone."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import Tensor, nn

import eqlayers
from eqlayers.integrations import accelerate, deaccelerate
from tests.each import each
from tests.integrations.conftest import copies
from tests.integrations.forms import Bent

silu, tanh, SIGNAL = torch.nn.functional.silu, torch.tanh, "0e + 1o + 2e"


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "sphere": lambda: e3nn_nn.S2Activation(SIGNAL, tanh, 10),
    "odd signal": lambda: e3nn_nn.S2Activation("0o + 1e", torch.abs, (8, 9), "integral", 3),
    "turned sphere": lambda: e3nn_nn.S2Activation(SIGNAL, silu, 8, "norm", 1, random_rot=True),
    "function with a weight": lambda: e3nn_nn.S2Activation("0e + 1o", Bent(), 6),
    "near the identity": lambda: e3nn_nn.S2Activation("0e + 1o", lambda x: 1.0011 * x, 6),
    "rotations": lambda: e3nn_nn.SO3Activation(1, 2, silu, 2),
    "narrow rotations": lambda: e3nn_nn.SO3Activation(2, 1, torch.relu, 3, aspect_ratio=1),
}


def width(layer: Any) -> int:
    if isinstance(layer, e3nn_nn.SO3Activation):
        return sum((2 * l + 1) ** 2 for l in range(layer.lmax_in + 1))
    return int(layer.irreps_in.dim)


def results(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Value, gradients, gradient of their squares; always of the same random numbers."""
    torch.manual_seed(3)
    x = x.detach().clone().requires_grad_()
    named = {"x": x, **dict(model.named_parameters())}
    value = model(x)
    first = torch.autograd.grad((value + value.sin()).sum(), list(named.values()), create_graph=True)
    total = torch.stack([g.square().sum() for g in first]).sum()
    (second,) = torch.autograd.grad(total, x, materialize_grads=True) if total.requires_grad else (total,)
    return {"value": value, **dict(zip(named, first, strict=True)), "second": second}


@each("dtype", [torch.float32, torch.float64])
@each("name", LAYERS)
def test_numbers(name: str, dtype: torch.dtype, close: Any) -> None:
    torch.set_default_dtype(dtype)
    try:
        layer = LAYERS[name]()
    finally:
        torch.set_default_dtype(torch.float32)
    model, x = nn.Sequential(layer), torch.randn(7, 2, width(layer), dtype=dtype)
    before, state = results(model, x), copy.deepcopy(model.state_dict())
    torch.manual_seed(8)
    (row,) = accelerate(model).rows
    drawn = torch.rand(1)
    torch.manual_seed(8)
    assert torch.equal(torch.rand(1), drawn), "the comparison draws none of the user's random numbers"
    kind = type(layer).__name__
    assert (row.kind, row.target, row.replacement) == (kind, "grid", f"Accelerated{kind}")
    assert row.error is not None
    assert row.error <= 1
    rounded = 2.0**29 if name == "turned sphere" and dtype == torch.float64 else 1.0  # e3nn turns it in float32
    close(results(model, x), before, 1e3 * rounded)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    model.load_state_dict(state)
    assert deaccelerate(model)[0] is layer
    assert all(torch.equal(value, before[key]) for key, value in results(model, x).items())


@pytest.mark.parametrize("name", ["sphere", "function with a weight", "rotations"])
def test_dtype_mode_copies_and_files(name: str, close: Any) -> None:
    model = nn.Sequential(LAYERS[name]())
    x = torch.randn(5, width(model[0]), dtype=torch.float64)
    twin = copy.deepcopy(model).double().eval()
    accelerate(model)
    model.double().eval()
    before = results(twin, x)
    rounded = 2.0**29  # e3nn's Fourier transforms are exact, its other constants are in float32
    for other in copies(model):
        close(results(other, x), before, 100 * rounded)
        assert other[0].original is not model[0].original
        assert type(deaccelerate(other)[0]) is type(twin[0])
        assert not other[0].training
        close(results(other, x), before, 1.0)


def test_weights_settings_and_hooks_come_back(close: Any, float64: None) -> None:
    model = nn.Sequential(LAYERS["function with a weight"](), e3nn_nn.S2Activation("0e + 1o", silu, 6, random_rot=True))
    twin, layers, seen = copy.deepcopy(model), list(model), []
    optimizers = [torch.optim.SGD(one.parameters(), 1e-3) for one in (model, twin)]
    handle = model[0].register_forward_hook(lambda *args: seen.append(1))
    accelerate(model)
    x = torch.randn(9, 4)
    for one, optimizer in zip((model, twin), optimizers, strict=True):
        one[1].random_rot = False
        for _ in range(3):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
    assert len(seen) == 3
    handle.remove()
    close(results(model, x), results(twin, x))
    deaccelerate(model)
    assert list(model) == layers
    assert (layers[1].random_rot, layers[0].act.f.slope != 0.3) == (False, True)
    close(results(model, x), results(twin, x))


def test_whole_graphs(close: Any) -> None:
    for name in ("sphere", "rotations"):
        model = nn.Sequential(LAYERS[name]())
        x = torch.randn(4, width(model[0]))
        before = {"value": model(x)}
        accelerate(model)
        close({"value": torch.compile(model, backend="eager", fullgraph=True)(x)}, before)
        close({"value": torch.export.export(model, (x,)).module()(x)}, before)


def test_layers_that_stay_are_told() -> None:
    """Each once; what is inside of another one is part of it."""
    model = nn.ModuleList(
        [
            e3nn_nn.Activation("4x0e", [tanh]),
            e3nn_nn.Extract("2x0e + 1o", ["1o"], [(1,)]),
            e3nn_nn.ExtractIr("2x0e + 1o", "1o"),
            o3.Norm("2x1o"),
            e3nn_nn.NormActivation("2x1o", torch.sigmoid),
            e3nn_nn.Dropout("2x1o", 0.5),
            e3nn_nn.Gate("8x0e", [silu], "4x0e", [torch.sigmoid], "4x1o"),
            eqlayers.nn.Norm("2x1o"),
            eqlayers.nn.Activation("4x0e", [tanh]),
        ]
    )
    layers = list(model)
    report = accelerate(model)
    assert [(row.path, row.kind) for row in report.skipped] == [
        ("0", "Activation"),
        ("1", "Extract"),
        ("2", "ExtractIr"),
        ("3", "Norm"),
        ("4", "NormActivation"),
        ("5", "Dropout"),
    ]
    assert [row.path for row in report.replaced] == ["3.tp", "4.norm.tp", "4.scalar_multiplier", "6"]
    assert [model[k] is layer for k, layer in enumerate(layers)] == [True] * 6 + [False] + [True] * 2
    for word in (
        "functions of torch alone",
        "makes copies",
        "our product inside",
        "our products inside",
        "same copies",
    ):
        assert word in str(report)
    left = accelerate(nn.ModuleList(layers[:6]), targets="linear")
    assert left.rows == tuple(row for row in left.rows if "already" in row.reason), "who asks for a kind hears of it"
    coverage = left.coverage
    assert (coverage.modules, coverage.known_modules) == (7, 6), "all but the list"
