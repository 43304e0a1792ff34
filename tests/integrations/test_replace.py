"""Calls of accelerate and deaccelerate: errors say what must be, what came and the fix, and a second call is none."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import o3
from e3nn.nn.models.v2106.gate_points_networks import SimpleNetwork
from torch import nn

import eqlayers
from eqlayers.errors import BackendError, ConfigError, EqlayersWarning
from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.product import AcceleratedLinear
from tests.cases import e3nn_defaults, quiet_warnings
from tests.each import each


def linear() -> Any:
    return o3.Linear("2x0e + 1o", "2x0e + 1o")


def model() -> nn.Module:
    return nn.Sequential(o3.Linear("2x0e", "2x0e"))


TARGETS = (
    r"targets must be of convolution, product, linear, harmonics, contraction, gate, norm, grid, or None for all, got "
)
MODULE = r"model must be a torch\.nn\.Module, got "
LAYER = r"module must be an e3nn\.o3\.{}, or of a class derived from it, got "
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no model": (lambda: accelerate(None), MODULE + r"None\. Pass a layer or a model"),
    "a class": (lambda: accelerate(nn.Linear), MODULE + r"<class .*Linear'>\. Pass a layer or a model, not its class"),
    "a state dict": (lambda: accelerate(model().state_dict()), MODULE + r"OrderedDict.*\. Pass a layer or a model"),
    "no model to go back": (lambda: deaccelerate(None), MODULE + r"None\. Pass a layer or a model"),
    "a number": (lambda: accelerate(model(), targets=1), TARGETS + r"1\. Pick from these\."),
    "a list of numbers": (lambda: accelerate(model(), targets=[1, "linear"]), TARGETS + r"\[1\]\. Pick"),
    "lists in a list": (lambda: accelerate(model(), targets=[["linear"]]), TARGETS + r"\[\['linear'\]\]\. Pick"),
    "bytes": (lambda: accelerate(model(), targets=b"linear"), TARGETS + r"b'linear'\. Pick"),
    "a mapping": (lambda: accelerate(model(), targets={"linear": True}), TARGETS + r"\{'linear': True\}\. Pick"),
    "a tensor": (lambda: accelerate(model(), targets=torch.ones(())), TARGETS + r".*tensor.*\. Pick"),
    "another kind": (lambda: accelerate(model(), targets="radial"), TARGETS + r"\['radial'\]\. Pick"),
    "a list of backends": (
        lambda: accelerate(model(), backend=[]),
        r"backend must be one of .* or None, got \[\]\. Pass",
    ),
    "inplace": (lambda: accelerate(model(), inplace="no"), r"inplace must be True or False, got 'no'\. Pass one"),
    "check": (lambda: accelerate(model(), check=None), r"check must be True or False, got None\. Pass one"),
    "product from None": (
        lambda: eqlayers.TensorProduct.from_e3nn(None),
        LAYER.format("TensorProduct") + r"None\. Pass",
    ),
    "product from a class": (
        lambda: eqlayers.TensorProduct.from_e3nn(o3.TensorProduct),
        LAYER.format("TensorProduct") + r"<class .*TensorProduct'>\. Pass such a layer",
    ),
    "product from a model": (
        lambda: eqlayers.TensorProduct.from_e3nn(model()),
        LAYER.format("TensorProduct") + r"a module of type Sequential\. .* for a whole model use eqlayers\.accelerate",
    ),
    "convolution from a linear map": (
        lambda: eqlayers.TensorProductConv.from_e3nn(model()[0]),
        LAYER.format("TensorProduct") + r"a module of type Linear\. Pass",
    ),
    "linear map from None": (lambda: eqlayers.Linear.from_e3nn(None), LAYER.format("Linear") + r"None\. Pass"),
    "linear map from torch's": (
        lambda: eqlayers.Linear.from_e3nn(nn.Linear(2, 2)),
        LAYER.format("Linear") + r"a module of type Linear\. Pass",
    ),
    "linear map from a square": (
        lambda: eqlayers.Linear.from_e3nn(o3.TensorSquare("1o")),
        LAYER.format("Linear") + r"a module of type TensorSquare\. Pass",
    ),
    "square from a product": (
        lambda: eqlayers.TensorSquare.from_e3nn(o3.FullTensorProduct("1o", "0e")),
        LAYER.format("TensorSquare") + r"a module of type FullTensorProduct\. Pass",
    ),
    "square from a linear map": (
        lambda: eqlayers.TensorSquare.from_e3nn(model()[0]),
        LAYER.format("TensorSquare") + r"a module of type Linear\. Pass",
    ),
    "backend of a layer": (
        lambda: eqlayers.Linear.from_e3nn(model()[0], backend=1),
        r"backend must be one of .* or None, got 1\. Pass",
    ),
}


@each("case", CALLS)
def test_bad_calls(case: str) -> None:
    call, message = CALLS[case]
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_refused_call_changes_nothing() -> None:
    network = model()
    for wrong in ({"targets": 1}, {"backend": []}, {"inplace": "no"}, {"check": "no"}):
        with pytest.raises(ConfigError):
            accelerate(network, **wrong)
    assert type(network[0]) is o3.Linear


def test_targets_may_come_from_any_iterable() -> None:
    for targets in ("linear", ["linear"], {"linear"}, iter(("linear", "linear"))):
        assert len(accelerate(model(), targets=targets).replaced) == 1


def test_models_without_such_networks_are_told_so(network: nn.Module) -> None:
    (row,) = [row for row in accelerate(network, radial="table").rows if row.target == "radial"]
    assert "has no radial networks that this package knows" in row.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [({"radial": "spline"}, "radial must be 'table' or None"), ({"tolerance": 0}, "tolerance must be")],
)
def test_wrong_options(network: nn.Module, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        accelerate(network, **options)  # type: ignore[arg-type]


class Unique(nn.Parameter):
    """Cannot be copied, as MACE's parameters of no numbers cannot."""

    def __deepcopy__(self, memo: object) -> nn.Parameter:
        raise TypeError("Unique.__new__() takes 2 positional arguments but 3 were given")


def test_a_model_that_cannot_be_copied() -> None:
    original = model()
    original.register_parameter("unique", Unique(torch.zeros(1)))
    with pytest.raises(ConfigError, match=r"one that copy.deepcopy copies .* got TypeError: Unique.__new"):
        accelerate(original, inplace=False)
    assert accelerate(original).model is original


@pytest.mark.slow
def test_copies_have_the_keys_of_the_model_and_load_strictly() -> None:
    """A network with so many paths that copies of e3nn's own layers have keys more."""
    with quiet_warnings(), e3nn_defaults(optimize_einsums=True):
        plain = SimpleNetwork("3x0e+2x1o", "4x0e+1x1o", max_radius=3.0, num_neighbors=3.0, num_nodes=5.0)
    keys = list(plain.state_dict())
    assert set(copy.deepcopy(plain).state_dict()) > set(keys), "e3nn's own copies no longer differ: leave out this test"
    other = accelerate(plain, inplace=False).model
    accelerate(plain)
    for one in (plain, other, copy.deepcopy(plain), copy.deepcopy(other)):
        assert list(one.state_dict()) == keys
        plain.load_state_dict(one.state_dict())
        one.load_state_dict(plain.state_dict())


def test_a_layer_has_no_place_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"must hold the modules.*got a Linear.*inplace=False"):
        accelerate(linear())


def test_a_fault_while_a_layer_is_built_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no check raised is no refusal: without the warning the layer would stay without a sound."""

    def faulty(self: Any, original: nn.Module) -> None:
        raise AttributeError("'AcceleratedLinear' object has no attribute 'mistyped'")

    monkeypatch.setattr(AcceleratedLinear, "stand_in_for", faulty)
    network = model()
    with pytest.warns(
        EqlayersWarning, match=r"got 0 \(Linear\), which cannot be built anew: AttributeError: .*mistyped"
    ):
        report = accelerate(network)
    assert type(network[0]) is o3.Linear
    assert "mistyped" in report.skipped[0].reason


def test_twice_is_once() -> None:
    model = nn.Sequential(linear())
    accelerate(model)
    new = model[0]
    report = accelerate(model)
    assert [row.reason for row in report.rows] == ["is accelerated already"]
    assert report.worst is report.saved_bytes is None
    assert model[0] is new
    assert "0 modules replaced, 1 left" in report.summary()


def test_arguments() -> None:
    model = nn.Sequential(linear())
    with pytest.raises(ConfigError, match=r"targets must be of convolution, product, linear.*got \['radial'\]"):
        accelerate(model, targets=("product", "radial"))
    with pytest.raises(ConfigError, match="backend must"):
        accelerate(model, backend="cuda")


def test_a_named_backend_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqlayers.core.backends.cpu._no_compiler", lambda: "needs a C compiler")
    model = nn.Sequential(linear(), o3.FullTensorProduct("1o", "1o"))
    with pytest.raises(BackendError, match="backend 'cpu' must"):
        accelerate(model, backend="cpu")
    assert type(model[0]) is o3.Linear
    assert accelerate(model, backend="torch").replaced[1].backend == "torch"


def test_deaccelerate_of_a_model_that_was_never_accelerated() -> None:
    model = nn.Sequential(linear())
    layer = model[0]
    assert deaccelerate(model)[0] is layer


def test_a_replacement_that_was_compiled_must_be_taken_out_first() -> None:
    model = nn.Sequential(linear(), linear())
    accelerate(model)
    model[1] = torch.compile(model[1])
    with pytest.raises(ConfigError, match=r"got 1\._orig_mod inside torch\.compile"):
        deaccelerate(model)
    assert type(model[0]) is AcceleratedLinear, "nothing was changed"
    model[1] = model[1]._orig_mod
    assert type(deaccelerate(model)[1]) is o3.Linear
