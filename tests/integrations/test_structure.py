"""Modules whose structure is not e3nn's stay as they are, and the report has the reason."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from eqlayers.integrations import accelerate
from eqlayers.integrations.kinds import AcceleratedLinear, AcceleratedTensorProduct
from tests.each import each


def linear() -> Any:
    return o3.Linear("2x0e + 1o", "2x0e + 1o")


class OwnForward(o3.Linear):
    def forward(self, features: torch.Tensor, weight: Any = None, bias: Any = None) -> torch.Tensor:
        return 2 * super().forward(features, weight, bias)


class OwnMethod(o3.Linear):
    def reset(self) -> None:
        self.weight.data.zero_()


class OwnLoading(o3.FullTensorProduct):
    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)


class OwnRight(o3.FullyConnectedTensorProduct):
    def right(self, y: torch.Tensor, weight: Any = None) -> torch.Tensor:
        return -super().right(y, weight)


class Cross(o3.TensorProduct):
    """A class with a constructor and attributes of its own, but e3nn's forward."""

    def __init__(self, mul: int) -> None:
        super().__init__(f"{mul}x1o", f"{mul}x1o", f"{mul}x1e", [(0, 0, 0, "uuu", False)])
        self.mul = mul

    def __repr__(self) -> str:
        return f"Cross({self.irreps_in1})"


class Linear(o3.Linear):
    """A class that merely has the same name, and another meaning."""

    def forward(self, features: torch.Tensor, weight: Any = None, bias: Any = None) -> torch.Tensor:
        return -super().forward(features, weight, bias)


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(linear())


def replaced_forward() -> nn.Module:
    layer = linear()
    layer.forward = lambda x: x
    return layer


def parametrized() -> nn.Module:
    return parametrizations.weight_norm(linear(), dim=None)


def spectral() -> nn.Module:
    layer = linear()
    layer.weight_orig = nn.Parameter(layer.weight.detach())
    return layer


def compiled_itself() -> nn.Module:
    layer = linear()
    layer.compile()
    return layer


def other_coefficients() -> nn.Module:
    layer = o3.FullTensorProduct("2x1o", "1o")
    next(iter(layer._compiled_main_left_right.buffers())).mul_(1.5)
    return layer


def hooked_inside() -> nn.Module:
    layer = linear()
    layer._compiled_main.register_forward_hook(lambda *args: None)
    return layer


LEFT = {
    "own forward": (lambda: OwnForward("0e", "0e"), "class OwnForward that defines forward"),
    "own method": (lambda: OwnMethod("0e", "0e"), "class OwnMethod that defines reset"),
    "own loading": (lambda: OwnLoading("1o", "1o"), "class OwnLoading that defines _load_from_state_dict"),
    "own right": (lambda: OwnRight("1o", "1o", "0e"), "class OwnRight that defines right"),
    "same name": (lambda: Linear("0e", "0e"), "class Linear that defines forward"),
    "TorchScript": (scripted, "is TorchScript, which nothing can be taken out of"),
    "forward on the object": (replaced_forward, "had its forward replaced on the object"),
    "parametrized": (parametrized, "is parametrized"),
    "another parameter": (spectral, "does not hold what e3nn's layer holds: weight_orig"),
    "compiled": (compiled_itself, "was compiled by itself"),
    "wrapped by torch.compile": (lambda: torch.compile(linear()), "is inside torch.compile(module)"),
    "channel axes": (lambda: o3.Linear("2x0e", "3x0e", f_in=2, f_out=2), "has channel axes (f_in, f_out)"),
    "channel axes, weights given": (
        lambda: o3.Linear("2x0e", "3x0e", f_in=1, f_out=1, shared_weights=False),
        "has channel axes (f_in, f_out)",
    ),
    "other coefficients": (other_coefficients, "cannot be built anew: ConfigError: the buffer"),
    "hooks inside": (hooked_inside, "has hooks on its generated code"),
    "forward not compiled": (
        lambda: o3.FullTensorProduct("1o", "1o", compile_left_right=False),
        "could not be compared, it raises itself",
    ),
    "no numbers": (lambda: o3.FullTensorProduct("2x1o", "1o").to("meta"), "is on the meta device"),
    "no numbers in a linear map": (lambda: linear().to("meta"), "is on the meta device"),
    "ours": (lambda: accelerate(linear(), inplace=False).model, "is accelerated already"),
}


@each("name", LEFT)
def test_reasons(name: str) -> None:
    if name == "hooks inside" and torch.__version__ < "2.7":
        pytest.skip("e3nn 0.6 scripts its code with torch 2.6, which then takes no hooks")
    make, reason = LEFT[name]
    module = make()
    model = nn.ModuleList([nn.Sequential(module), linear()])
    report = accelerate(model)
    (row,) = report.skipped
    assert row.path.startswith("0.0")
    assert reason in row.reason
    assert f"left: {row.path} ({row.kind}) {row.reason}" in str(report)
    assert model[0][0] is module
    assert [r.path for r in report.replaced] == ["1"], "the rest of the model is replaced all the same"


def test_a_class_of_the_user_with_the_forward_of_e3nn(close: Any) -> None:
    model = nn.Sequential(Cross(3))
    x, y = torch.randn(4, 9), torch.randn(4, 9)
    before = model[0](x, y)
    assert accelerate(model).replaced[0].kind == "Cross"
    assert type(model[0]) is AcceleratedTensorProduct
    assert model[0].mul == 3
    close({"value": model[0](x, y)}, {"value": before})


class Holder(nn.Module):
    """Holds its layer outside the registered modules as well."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = linear()
        held = {
            "list": [self.layer],
            "dict": {"a": (self.layer,)},
            "method": self.layer.forward,
            "partial": partial(self.layer, weight=None),
        }
        self.held = held[how]


@pytest.mark.parametrize("how", ["list", "dict", "method", "partial"])
def test_layers_that_are_held_elsewhere_too(how: str) -> None:
    """A layer that is held there would not follow the model to another dtype."""
    model = nn.Sequential(Holder(how))
    (row,) = accelerate(model).rows
    assert row.reason == "is held in the attribute 0.held too, outside the registered modules"


def test_the_parametrization_can_be_removed_first() -> None:
    model = nn.Sequential(parametrized())
    parametrize.remove_parametrizations(model[0], "weight")
    assert accelerate(model).replaced
    assert type(model[0]) is AcceleratedLinear
