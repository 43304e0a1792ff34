"""A replacement takes over hooks, mode and attributes of its original, and returns them; random inputs of probes."""

from typing import Any

import pytest
import torch
from e3nn import o3
from torch import nn

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.replacement import call, call_with, draw, dtype_and_device, in_float64
from eqlayers.nn import Linear, TensorSquare


def linear() -> Any:
    return o3.Linear("2x0e + 1o", "2x0e + 1o")


def test_hooks_survive() -> None:
    """Hooks that were there before, their handles, and hooks that come later."""
    layer = linear()
    seen: list[str] = []
    handles = [
        layer.register_forward_pre_hook(lambda module, args: seen.append("before")),
        layer.register_forward_hook(lambda module, args, result: seen.append(type(module).__name__)),
        layer.register_full_backward_hook(lambda module, gx, gy: seen.append("backward")),
    ]
    model = nn.Sequential(layer)
    accelerate(model)
    assert seen == [], "the comparison goes past the hooks"
    model(torch.randn(2, 5).requires_grad_()).sum().backward()
    assert seen == ["before", "AcceleratedLinear", "backward"]
    for handle in handles:
        handle.remove()
    model(torch.randn(2, 5))
    assert len(seen) == 3
    model[0].register_forward_hook(lambda *args: seen.append("late"))
    deaccelerate(model)
    model(torch.randn(2, 5))
    assert seen[3:] == ["late"]


def test_what_was_set_on_a_replacement_comes_back() -> None:
    """Also the kind of its backward hooks, which torch keeps in a flag of its own."""
    layer = linear()
    layer.note = "before"
    model = nn.Sequential(layer)
    accelerate(model)
    seen: list[int] = []
    model[0].note = "after"
    model[0].register_full_backward_hook(lambda module, gx, gy: seen.append(len(gx)))
    assert deaccelerate(model)[0] is layer
    model(torch.randn(2, 5).requires_grad_()).sum().backward()
    assert seen == [1]
    assert layer.note == "after"


def test_new_parameters_of_an_accelerated_model_come_back(network: Any, inputs: Any) -> None:
    """`load_state_dict(assign=True)` and the like put other Parameters in."""
    accelerate(network)
    state = {key: value.clone() + 0.01 for key, value in network.state_dict().items() if not key.count("_compiled")}
    network.load_state_dict(state, assign=True, strict=False)
    expected = network(inputs.pos, inputs.attrs, inputs.edges)
    parameters = [id(p) for p in network.parameters()]
    deaccelerate(network)
    assert [id(p) for p in network.parameters()] == parameters
    torch.testing.assert_close(network(inputs.pos, inputs.attrs, inputs.edges), expected)


def test_evaluation_mode_comes_back(network: Any) -> None:
    accelerate(network)
    network.eval()
    deaccelerate(network)
    assert not any(module.training for module in network.modules() if not isinstance(module, torch.jit.ScriptModule))


def test_numbers_depend_on_name_and_shape_alone() -> None:
    """Reports of accelerate are the same in every run, and random numbers of the model stay where they were."""
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float16)
    try:
        numbers = draw("x", 200, 50)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    assert torch.equal(draw("x", 200, 50), numbers)
    assert not torch.equal(draw("y", 200, 50), numbers)
    assert (numbers.dtype, numbers.device.type) == (torch.float64, "cpu")
    assert abs(float(numbers.mean())) < 5 / 100  # five errors of the mean of 10,000 normal numbers
    assert float(numbers.std()) == pytest.approx(1, abs=0.04)


def test_the_dtype_of_a_module_is_that_in_which_most_numbers_are() -> None:
    module = nn.Linear(2, 2).half()
    module.register_buffer("numbers", torch.ones(9, dtype=torch.int64))
    module.register_buffer("constants", torch.ones(3, dtype=torch.float64))
    assert dtype_and_device(module) == (torch.float16, torch.device("cpu"))
    module.register_buffer("table", torch.ones(5, dtype=torch.float64))
    assert dtype_and_device(module)[0] == torch.float64
    like = (torch.bfloat16, torch.device("meta"))
    for empty in (nn.ReLU(), nn.LazyLinear(3), nn.Linear(2, 2, device="meta")):
        assert dtype_and_device(empty) == (torch.float32, torch.device("cpu"))
        assert dtype_and_device(empty, like) == like


def test_calls_go_past_hooks_and_may_take_other_numbers() -> None:
    module, x = nn.Linear(2, 1, bias=False), torch.ones(1, 2)
    module.register_forward_hook(lambda *args: pytest.fail("a hook of the user is called"))
    before = module.weight.detach().clone()
    assert torch.equal(call(module, x), x @ before.T)
    other = torch.tensor([[2.0, 5.0]], requires_grad=True)
    z = call_with(module, {"weight": other}, x)
    assert z.tolist() == [[7.0]]
    assert torch.autograd.grad(z.sum(), other)[0].tolist() == [[1.0, 1.0]]
    assert call_with(module, {"weight": other}, 3, function=lambda m, n: n * m.weight).tolist() == [[6.0, 15.0]]
    assert torch.equal(module.weight, before)


class Twice(nn.Module):
    """A module that is held twice, an attribute that cannot be copied, a constant in float32, a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(2, 2)
        self.held = (number for number in range(3))
        self.register_buffer("third", torch.tensor(1 / 3))
        self.register_buffer("count", torch.tensor(3))
        self.scripted = torch.jit.script(nn.Linear(2, 2))
        self.compiled = torch.compile(nn.Linear(2, 2))
        self.ours, self.product = Linear("2x0e", "2x0e"), TensorSquare("1o", backend="reference")
        self.register_forward_hook(lambda *args: pytest.fail("a hook of the user is called"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ours(self.compiled(self.scripted(self.second(self.first(x))))) * self.third * self.count


def test_copies_in_float64() -> None:
    """They compute in float64 with the given constants, without hooks, and their original stays as it is."""
    module = Twice()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    x = torch.randn(3, 2, dtype=torch.float64)
    new, same = in_float64([module, module.first], {"third": torch.tensor(1 / 3, dtype=torch.float64)})
    assert new.first is new.second is same
    assert new.held is module.held
    assert (new.product.backend, module.product.backend) == ("torch", "reference")
    y = new(x)
    expected = x
    for name in ("first", "first", "scripted"):
        layer = module.get_submodule(name)
        expected = torch.nn.functional.linear(expected, layer.weight.double(), layer.bias.double())
    layer = module.compiled._orig_mod
    expected = torch.nn.functional.linear(expected, layer.weight.double(), layer.bias.double())
    expected = expected @ module.ours.weight.double().view(2, 2) * 2**-0.5
    torch.testing.assert_close(y, expected, rtol=1e-14, atol=1e-14)
    y.sum().backward()
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert {p.dtype for p in module.parameters()} == {torch.float32}
