"""Gates of e3nn in a model before and after `accelerate`: numbers, keys and training."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from torch import Tensor, nn

from eqlayers.errors import ConfigError
from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.product import AcceleratedTensorProduct
from tests.integrations.conftest import copies
from tests.integrations.forms import Bent

silu, tanh = torch.nn.functional.silu, torch.tanh


def nearly_one(x: Tensor) -> Tensor:
    """A function of a second moment within 1e-4 of 1 by e3nn's estimate, so that it is not scaled."""
    return x * 1.0011


GATES: dict[str, Callable[[], nn.Module]] = {
    "kernels": lambda: e3nn_nn.Gate("16x0e", [silu], "12x0e", [torch.sigmoid], "4x1o + 8x2e"),
    "odd scalars": lambda: e3nn_nn.Gate("5x0o + 3x0e", [torch.abs, tanh], "3x0o + 2x0e", [tanh, silu], "2x1e + 3x1o"),
    "left as they are": lambda: e3nn_nn.Gate("4x0e + 4x0e", [None, silu], "4x0e", [None], "4x1o"),
    "near the identity": lambda: e3nn_nn.Gate("4x0e", [nearly_one], "4x0e", [silu], "4x1o"),
    "functions in torch": lambda: e3nn_nn.Gate("3x0e", [nn.Softplus()], "2x0e", [torch.relu], "2x2e"),
    "only scalars": lambda: e3nn_nn.Gate("6x0e", [silu], "", [], ""),
    "only gated": lambda: e3nn_nn.Gate("", [], "4x0e", [torch.sigmoid], "4x1o"),
}
#: What runs them: kernels know silu, sigmoid and tanh.
BACKENDS = dict.fromkeys(("odd scalars", "near the identity", "functions in torch"), "cpu+torch")
BACKENDS["only scalars"] = "torch"


def gate() -> nn.Module:
    return e3nn_nn.Gate("8x0e", [silu], "4x0e", [torch.sigmoid], "4x1o")


def results(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Value, gradient of a sum, and gradient of its square."""
    x = x.detach().clone().requires_grad_()
    value = model(x)
    (first,) = torch.autograd.grad(value.sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return {"value": value, "first": first, "second": second}


@pytest.mark.kernels
@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", GATES)
def test_numbers_of_gates(name: str, dtype: torch.dtype, close: Any) -> None:
    layer = GATES[name]().to(dtype)
    model, x = nn.Sequential(layer), torch.randn(7, layer.irreps_in.dim, dtype=dtype)
    before, state = results(model, x), model.state_dict()
    (row,) = accelerate(model).rows
    assert (row.kind, row.target, row.replacement) == ("Gate", "gate", "AcceleratedGate")
    assert row.backend == BACKENDS.get(name, "cpu")
    assert row.error is not None
    assert row.error <= 1
    close(results(model, x), before)
    accelerated_state = model.state_dict()
    assert list(accelerated_state) == list(state)
    assert all(torch.equal(accelerated_state[key], value) for key, value in state.items())
    model.load_state_dict(state)
    for attribute in ("irreps_in", "irreps_out", "irreps_scalars", "irreps_gates", "irreps_gated"):
        assert str(getattr(model[0], attribute)) == str(getattr(layer, attribute))
    factors = [[None if act is None else act.cst for act in part.acts] for part in (layer.act_scalars, layer.act_gates)]
    mine = [[None if a is None else a.cst for a in p.acts] for p in (model[0].act_scalars, model[0].act_gates)]
    if name == "near the identity":  # e3nn keeps a factor that it does not apply
        assert factors[0] != [1.0]
        factors[0] = [1.0]
    assert mine == factors
    assert deaccelerate(model)[0] is layer
    for key, value in results(model, x).items():
        assert torch.equal(value, before[key])


def test_functions_with_parameters_train(close: Any) -> None:
    """Steps reach both, and the factor of the first weights stays, as e3nn's does."""
    layer = e3nn_nn.Gate("3x0e", [Bent()], "2x0e", [Bent()], "2x1o").double()
    model, twin = nn.Sequential(layer), nn.Sequential(copy.deepcopy(layer))
    optimizers = [torch.optim.SGD(one.parameters(), 1e-3) for one in (model, twin)]
    accelerate(model)
    assert "0.act_scalars.acts.0.f.slope" in model.state_dict()
    x = torch.randn(5, layer.irreps_in.dim, dtype=torch.float64)
    for _ in range(3):
        for one, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
    close(results(model, x), results(twin, x), 1e4)
    assert deaccelerate(model)[0] is layer
    close(results(model, x), results(twin, x), 1e4)
    assert layer.act_scalars.acts[0].f.slope != 0.3


def test_dtype_copies_and_files(close: Any) -> None:
    """The product that only writes keys follows the model, too."""
    model, x = nn.Sequential(gate()), torch.randn(4, 24, dtype=torch.float64)
    before = results(copy.deepcopy(model).double(), x)
    accelerate(model)
    assert type(model[0].mul) is AcceleratedTensorProduct
    model.double()
    for other in copies(model):
        close(results(other, x), before)
        assert other[0].original is not model[0].original
        deaccelerate(other)
        assert other[0].mul.output_mask.dtype == torch.float64
        close(results(other, x), before)


def test_the_product_is_inside_or_by_itself() -> None:
    model = nn.Sequential(gate())
    layer = model[0]
    (row,) = accelerate(model, targets="product").replaced
    assert (row.path, row.target) == ("0.mul", "product")
    assert model[0] is layer
    again = accelerate(model)
    assert {row.path: bool(row.replacement) for row in again.rows} == {"0": False, "0.mul": False}
    deaccelerate(model)
    assert [row.path for row in accelerate(model, targets=("gate", "product")).replaced] == ["0"]
    assert accelerate(model).skipped[0].reason == "is accelerated already"


def test_coverage_counts_a_gate_once() -> None:
    model = nn.Sequential(gate(), nn.Linear(20, 1))
    coverage = accelerate(model, inplace=False, targets="linear").coverage
    assert (coverage.modules, coverage.known_modules) == (3, 1)
    assert accelerate(model).coverage == accelerate(model).coverage == coverage


def test_hooks_and_attributes_stay() -> None:
    model, seen = nn.Sequential(gate()), []
    model[0].name = "before"
    handle = model[0].register_forward_hook(lambda *args: seen.append(1))
    accelerate(model)
    assert seen == []
    x = torch.randn(2, 24)
    model(x)
    assert (len(seen), model[0].name) == (1, "before")
    handle.remove()
    model(x)
    assert len(seen) == 1


def test_a_gate_that_is_left_has_its_product_replaced() -> None:
    model = nn.Sequential(gate())
    model[0].act_gates.acts[0] = nn.Tanh()
    report = accelerate(model)
    assert [(row.path, row.target) for row in report.skipped] == [("0", "gate")]
    assert [(row.path, row.target) for row in report.replaced] == [("0.mul", "product")]


def test_gates_that_are_held_elsewhere() -> None:
    model = nn.Sequential(gate())
    model.held = [model[0]]
    model.append(nn.ModuleList([model[0].mul]))
    reasons = [row.reason for row in accelerate(model, targets="gate").skipped]
    assert reasons == ["is held in the attribute held too, outside the registered modules"]
    del model.held
    reasons = [row.reason for row in accelerate(model, targets="gate").skipped]
    assert reasons == ["holds a product that sits elsewhere too, where it is no gate"]


def test_scripting_names_the_gate() -> None:
    model = nn.Sequential(gate())
    accelerate(model)
    with pytest.raises(
        ConfigError, match="no replacement but products, linear maps and harmonics to be scripted, got Acc"
    ):
        torch.jit.script(model)
