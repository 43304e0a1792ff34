"""A replacement takes over hooks, mode and attributes of its original, and hands the changes of each back."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import nn

from eqlayers.integrations import accelerate, deaccelerate


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
