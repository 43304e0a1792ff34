"""Modules whose structure is not e3nn's stay as they are, and the report has the reason."""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import eqlayers
from eqlayers.integrations import accelerate
from eqlayers.integrations.kinds.product import AcceleratedLinear
from tests.each import each

silu, tanh = torch.nn.functional.silu, torch.tanh


def linear() -> Any:
    return o3.Linear("2x0e + 1o", "2x0e + 1o")


class OwnMethod(o3.Linear):
    def reset(self) -> None:
        self.weight.data.zero_()


class OwnLoading(o3.FullTensorProduct):
    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)


class OwnRight(o3.FullyConnectedTensorProduct):
    def right(self, y: torch.Tensor, weight: Any = None) -> torch.Tensor:
        return -super().right(y, weight)


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(linear())


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


def gate() -> Any:
    return e3nn_nn.Gate("8x0e", [silu], "4x0e", [torch.sigmoid], "4x1o")


class Halved(e3nn_nn.Activation):
    def forward(self, features: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return super().forward(features, dim) / 2


def changed(make: Callable[[], Any], change: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    def changed_layer() -> nn.Module:
        layer = make()
        change(layer)
        return layer

    return changed_layer


def hooked(path: str) -> Callable[[Any], Any]:
    return lambda layer: layer.get_submodule(path).register_forward_hook(lambda *args: None)


#: A layer of each kind of e3nn's, and a layer of this package that is none of e3nn's.
KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "linear": (linear, lambda: eqlayers.Linear("2x0e", "2x0e")),
    "product": (lambda: o3.FullTensorProduct("1o", "1o"), lambda: eqlayers.FullTensorProduct("1o", "1o")),
    "harmonics": (lambda: o3.SphericalHarmonics([0, 1], True), lambda: eqlayers.nn.SphericalHarmonics(2, True)),
    "gate": (gate, lambda: eqlayers.nn.Gate("2x0e", [silu], "2x0e", [silu], "2x1o")),
    "norm": (lambda: e3nn_nn.BatchNorm("4x0e + 3x0o + 2x1o"), lambda: eqlayers.nn.BatchNorm("2x0e")),
    "sphere": (lambda: e3nn_nn.S2Activation("0e + 1o", tanh, 8), lambda: eqlayers.nn.S2Activation("0e", tanh, 4)),
    "rotations": (lambda: e3nn_nn.SO3Activation(1, 1, tanh, 2), lambda: eqlayers.nn.SO3Activation(1, 1, tanh, 2)),
}


def of_class(name: str, layer: Any, **methods: Any) -> Any:
    """The layer as one of a class of the user's, which derives from its class."""
    layer.__class__ = type(name, (type(layer),), methods)
    return layer


def doubled(layer: Any) -> Any:
    forward = type(layer).forward
    return of_class("Doubled", layer, forward=lambda self, *args: 2 * forward(self, *args))


def same_name(layer: Any) -> Any:
    return of_class(type(layer).__name__, layer, forward=lambda self, *args: args)


#: What may be done to any layer, and the reason that the report then has.
EVERY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "own forward": (doubled, "is of a class Doubled that defines forward beside what e3nn's does"),
    "same name": (same_name, "that defines forward"),
    "forward on the object": (lambda m: (setattr(m, "forward", abs), m)[1], "had its forward replaced on the object"),
    "a parameter": (
        lambda m: (m.register_parameter("scale", nn.Parameter(torch.ones(()))), m)[1],
        "does not hold what e3nn's layer holds: scale",
    ),
    "compiled": (torch.compile, "is inside torch.compile(module)"),
    "no numbers": (lambda m: m.to("meta"), "is on the meta device"),
    "ours": (lambda m: accelerate(m, inplace=False).model, "is accelerated already"),
}
SPHERE = ("0e + 1o + 2e", tanh, 10)
LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    **{
        f"{kind}, {how}": (lambda make=make, change=change: change(make()), reason)
        for kind, (make, _) in KINDS.items()
        for how, (change, reason) in EVERY.items()
        if (kind, how) != ("harmonics", "no numbers")  # which have no numbers to wait for
    },
    "own method": (lambda: OwnMethod("0e", "0e"), "class OwnMethod that defines reset"),
    "own loading": (lambda: OwnLoading("1o", "1o"), "class OwnLoading that defines _load_from_state_dict"),
    "own right": (lambda: OwnRight("1o", "1o", "0e"), "class OwnRight that defines right"),
    "TorchScript": (scripted, "is TorchScript, which nothing can be taken out of"),
    "parametrized": (parametrized, "is parametrized"),
    "another parameter": (spectral, "does not hold what e3nn's layer holds: weight_orig"),
    "compiled by itself": (compiled_itself, "was compiled by itself"),
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
    "harmonics, other irreps": (
        changed(KINDS["harmonics"][0], lambda m: setattr(m, "irreps_out", o3.Irreps("2x0e"))),
        "cannot be built anew: ConfigError: irreps_out must be the irreps of the degrees",
    ),
    "harmonics of angles": (
        lambda: o3.SphericalHarmonicsAlphaBeta([0, 1]),
        "takes angles, for which there is no",
    ),
    "gate, a part": (
        changed(gate, lambda m: setattr(m, "act_scalars", Halved("8x0e", [silu]))),
        "holds act_scalars, which is of a class Halved that defines forward",
    ),
    "gate, a function": (
        changed(gate, lambda m: m.act_gates.acts.__setitem__(0, nn.Tanh())),
        "holds act_gates.acts.0, which is a Tanh, not e3nn's normalize2mom",
    ),
    "gate, a forward inside": (
        changed(gate, lambda m: setattr(m.act_gates.acts[0], "forward", abs)),
        "holds act_gates.acts.0, which has had its forward replaced",
    ),
    "gate, a hook inside": (changed(gate, hooked("act_scalars.acts.0")), "holds act_scalars, which has hooks"),
    "gate, a hook on the product": (changed(gate, hooked("mul")), "holds mul, which has hooks"),
    "gate, other irreps": (
        changed(gate, lambda m: setattr(m, "_irreps_out", o3.Irreps("20x0e"))),
        "cannot be built anew: ConfigError: irreps_out must be the irreps of the parts",
    ),
    "sphere, matrix products": (
        lambda: e3nn_nn.S2Activation(SPHERE[0], tanh, (10, 12)),
        "has 12 points about the axis: of an even number e3nn makes matrix products, too",
    ),
    "sphere, another grid": (
        changed(lambda: e3nn_nn.S2Activation(*SPHERE), lambda m: setattr(m, "to_s2", nn.Linear(9, 9))),
        "holds to_s2, which is a Linear, not e3nn's ToS2Grid",
    ),
    "rotations, a hook inside": (changed(KINDS["rotations"][0], hooked("act")), "holds act, which has hooks"),
    "rotations, a buffer of the grid": (
        changed(KINDS["rotations"][0], lambda m: m.grid_in.register_buffer("extra", torch.zeros(1))),
        "holds grid_in, which does not hold what e3nn's holds: extra",
    ),
}
if "include_bias" in inspect.signature(e3nn_nn.BatchNorm).parameters:  # older versions of e3nn have fewer options
    LEFT["norm, other means"] = (
        changed(KINDS["norm"][0], lambda m: setattr(m, "irs", [(mul, ir.dim, ir.dim == 1) for mul, ir in m.irreps])),
        "takes means of other irreps than the even scalars",
    )


@each("name", LEFT)
def test_reasons(name: str) -> None:
    if name == "hooks inside" and torch.__version__ < "2.7":
        pytest.skip("e3nn 0.6 scripts its code with torch 2.6, which then takes no hooks")
    make, reason = LEFT[name]
    module = make()
    model = nn.ModuleList([nn.Sequential(module), linear()])
    # the product of a gate that is left is replaced, or has a reason of its own
    report = accelerate(model, targets=("gate", "linear") if name.startswith("gate") else None)
    (row,) = report.skipped
    assert row.path.startswith("0.0")
    assert reason in row.reason
    assert f"left: {row.path} ({row.kind}) {row.reason}" in str(report)
    assert model[0][0] is module
    assert [r.path for r in report.replaced] == ["1"], "the rest of the model is replaced all the same"


@each("kind", KINDS)
def test_subclasses_that_change_no_number_and_layers_of_ours(kind: str) -> None:
    """A class with a constructor, a name and an attribute; layers of this package stay, and have no row."""
    make, ours = KINDS[kind]
    named = of_class("Named", make(), __init__=lambda self, number: None, __repr__=lambda self: "Named()")
    named.number = 3
    model = nn.ModuleList([named, ours(), nn.Linear(1, 1)])
    others = list(model)[1:]
    (row,) = accelerate(model).rows
    assert (row.path, row.kind, row.replacement) == ("0", "Named", type(model[0]).__name__)
    assert row.replacement.startswith("Accelerated")
    assert (model[0].number, *list(model)[1:]) == (3, *others)


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
