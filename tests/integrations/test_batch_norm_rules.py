"""Batch normalizations of e3nn in a model before and after `accelerate`: numbers and statistics."""

import copy
import inspect
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import Tensor, nn

from eqlayers.integrations import accelerate, deaccelerate
from tests.integrations.conftest import copies

#: Older versions of e3nn have fewer options.
NEWER = "include_bias" in inspect.signature(e3nn_nn.BatchNorm).parameters
IRREPS = "4x0e + 3x0o + 2x1o + 0e"
OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "without weights": {"affine": False},
    "largest": {"reduce": "max", "momentum": 0.3},
    "instance": {"instance": True},
    **({"no bias": {"include_bias": False, "eps": 1e-3}} if NEWER else {}),
    "norm": {"normalization": "norm"},
}


def trained(layer: nn.Module) -> nn.Module:
    """With weights and statistics of some use."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return layer


def results(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Value, gradients with respect to features and weights, gradient of their squares, and statistics."""
    x = x.detach().clone().requires_grad_()
    value = model(x)
    named = {"x": x, **dict(model.named_parameters())}
    first = torch.autograd.grad(value.sin().sum(), list(named.values()), create_graph=True)
    (second,) = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), x)
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    return {"value": value, **dict(zip(named, first, strict=True)), "second": second, **buffers}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_numbers(name: str, dtype: torch.dtype, training: bool, close: Any) -> None:
    layer = trained(e3nn_nn.BatchNorm(IRREPS, **OPTIONS[name])).to(dtype).train(training)
    model, x = nn.Sequential(layer), torch.randn(7, 2, layer.irreps.dim, dtype=dtype)
    twin, state = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    (row,) = accelerate(model).rows
    assert (row.kind, row.target, row.replacement) == ("BatchNorm", "norm", "AcceleratedBatchNorm")
    assert row.error is not None
    assert row.error <= 1
    assert layer.training is model[0].training is training
    kept = model.state_dict()
    assert list(kept) == list(state)
    assert all(torch.equal(kept[key], value) for key, value in state.items()), "the comparison changes no statistics"
    close(results(model, x), results(twin, x))
    twin.load_state_dict(model.state_dict())
    assert deaccelerate(model)[0] is layer
    for key, value in results(twin, x).items():
        assert torch.equal(results(copy.deepcopy(model), x)[key], value)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = o3.Linear("2x0e + 1o", "8x0e + 4x1o")
        self.norm = e3nn_nn.BatchNorm("8x0e + 4x1o")
        self.gate = e3nn_nn.Gate("4x0e", [torch.tanh], "4x0e", [torch.sigmoid], "4x1o")
        self.readout = o3.Linear("4x0e + 4x1o", "0e")

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.gate(self.norm(self.mix(x))))


def test_training_keeps_statistics(close: Any, float64: None) -> None:
    """An optimizer from before reaches the weights; running statistics and schedules of the momentum come back."""
    network = Network()
    twin, layer, optimizers = copy.deepcopy(network), network.norm, []
    for one in (network, twin):
        optimizers.append(torch.optim.SGD(one.parameters(), 0.05))
    report = accelerate(network)
    assert {row.path: row.target for row in report.replaced} == {
        "mix": "linear",
        "norm": "norm",
        "gate": "gate",
        "readout": "linear",
    }
    assert network.norm.weight is layer.weight
    batches = [torch.randn(6, 5) for _ in range(4)]
    for step, x in enumerate(batches):
        for one, optimizer in zip((network, twin), optimizers, strict=True):
            one.norm.momentum = 0.1 / (1 + step)
            optimizer.zero_grad()
            one(x).square().mean().backward()
            optimizer.step()
    assert deaccelerate(network) is network
    assert network.norm is layer
    assert layer.momentum == 0.1 / 4
    state, expected = ({k: v for k, v in one.state_dict().items() if v.numel()} for one in (network, twin))
    close(state, expected, 1e3)
    assert (layer.running_mean.abs() > 1e-6).all()
    close({"value": network.eval()(batches[0])}, {"value": twin.eval()(batches[0])}, 1e3)
    assert not layer.training


def test_dtype_copies_and_files(close: Any) -> None:
    model = nn.Sequential(trained(e3nn_nn.BatchNorm(IRREPS)))
    x = torch.randn(5, 14, dtype=torch.float64)
    before = results(copy.deepcopy(model).double(), x)
    accelerate(model)
    model.double()
    for other in copies(model):
        close(results(other, x), before)
        assert other[0].original is not model[0].original
        statistics = other[0].running_var
        assert type(deaccelerate(other)[0]) is e3nn_nn.BatchNorm
        assert other[0].running_var is statistics
