"""Probes of modules: numbers that depend on names alone, the dtype of most numbers, calls past hooks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eqlayers.integrations.probes import Probe, call, call_with, draw, dtype_and_device


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
    assert torch.equal(Probe({}, call, lambda operands, count: numbers).draw("x", (200, 50)), numbers)
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
