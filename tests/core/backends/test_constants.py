"""Constants of a form are made once, on the host, and serve in every mode of torch."""

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from eqlayers.core.backends.constants import Constants
from tests.each import each

CPU = torch.device("cpu")


class Maker:
    """Makes the numbers of a constant, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Tensor:
        self.calls += 1
        return torch.arange(3.0)


def test_a_constant_is_made_once_for_each_key() -> None:
    constants, make = Constants(), Maker()
    first = constants("a", CPU, make)
    assert constants("a", CPU, make) is first
    assert constants(("a", 2), CPU, make) is not first
    assert make.calls == 2
    assert constants("a", torch.device("meta"), make).device.type == "meta"
    assert constants("a", CPU, make) is first, "a device keeps none"
    assert make.calls == 2


@each("mode", ["inference", "gradient of a gradient", "samples", "trace"])
def test_a_constant_that_is_first_wanted_in_a_mode_serves_outside_of_it(mode: str) -> None:
    constants, make = Constants(), Maker()

    def total(x: Tensor) -> Tensor:
        return (x * x * constants("a", CPU, make)).sum()

    x = torch.ones(2, 3)
    if mode == "inference":
        with torch.inference_mode():
            assert total(x) == 6
    elif mode == "gradient of a gradient":
        assert torch.equal(grad(lambda t: grad(total)(t).sum())(x), 2 * torch.arange(3.0).expand(2, 3))
    elif mode == "samples":
        assert vmap(total)(x).tolist() == [3, 3]
    else:
        traced = make_fx(total, tracing_mode="fake")(x)  # whose own tensors hold no numbers
        assert make.calls == 1
        assert traced(2 * x) == 24, "the numbers are in the graph"
    live = x.clone().requires_grad_()
    total(live).backward()
    assert torch.equal(live.grad, 2 * torch.arange(3.0).expand(2, 3))
    assert type(constants("a", CPU, make)) is Tensor
    assert make.calls == 1
