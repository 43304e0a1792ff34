"""Signals on grids: e3nn's constants and numbers, exactness, rotations, and constants that survive changes of dtype."""

import copy
from typing import Any

import pytest
import torch
from e3nn import nn as theirs
from e3nn import o3

from eqlayers.errors import ConfigError, IrrepsError
from eqlayers.nn import S2Activation, SO3Activation
from eqlayers.testing import equivariance_residual

TANH, EPS = torch.tanh, torch.finfo(torch.float64).eps
SPHERE: dict[str, tuple[Any, ...]] = {
    "even, small": ("0e + 1o + 2e", TANH, 6),
    "points": ("0e + 1e + 2e", torch.relu, (12, 9), "norm", 1),
    "even number of points": ("0o + 1e + 2o", TANH, (8, 10), "component", 3),
    "odd signal, even function": ("0o + 1o", torch.cos, 10, "integral"),
    "degree 0": ("0e", torch.relu, 4),
}


@pytest.mark.parametrize("random_rot", [False, True])
@pytest.mark.parametrize("name", SPHERE)
def test_sphere_equals_e3nn(twins: Any, name: str, random_rot: bool) -> None:
    reference = twins.e3nn(theirs.S2Activation, *SPHERE[name], random_rot=random_rot)
    ours = S2Activation(*SPHERE[name], random_rot=random_rot).double()
    assert (ours.irreps_in, ours.irreps_out) == (reference.irreps_in, reference.irreps_out)
    assert list(ours.state_dict()) == list(reference.state_dict())
    for key, value in reference.state_dict().items():
        assert torch.allclose(ours.state_dict()[key], value, rtol=1e-13, atol=1e-13), key
    x = torch.randn(2, 3, ours.irreps_in.dim, dtype=torch.float64)
    for layer in (ours, reference):
        layer.forward = seeded(layer.forward)
    found, wanted = twins.two_orders(ours, {"x": x}, ("x",)), twins.two_orders(reference, {"x": x}, ("x",))
    if random_rot:  # e3nn rounds rotations of degree 2 and more to the default dtype, float32
        for key, value in wanted.items():
            torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-5)
    else:
        twins.assert_close(found, wanted, 500)


def seeded(forward: Any) -> Any:
    def run(*args: Any) -> Any:
        torch.manual_seed(5)
        return forward(*args)

    return run


@pytest.mark.kernels
def test_a_rotation_of_every_call_under_transforms() -> None:
    """One for all samples or one for each, one graph that draws anew, copies, half precision and autocast."""
    layer = S2Activation("0e + 1o + 2e", torch.tanh, 10, random_rot=True).double()
    x = torch.randn(3, 9, dtype=torch.float64)
    run = seeded(layer)
    wanted = run(x)
    assert not torch.equal(layer(x), layer(x))
    torch.testing.assert_close(seeded(copy.deepcopy(layer))(x), wanted, rtol=0, atol=0)
    same = seeded(torch.func.vmap(layer, randomness="same"))(x)
    torch.testing.assert_close(same, wanted, rtol=0, atol=1e-13)
    different = seeded(torch.func.vmap(layer, randomness="different"))(x[:1].expand(3, 9))
    assert float((different[0] - different[1:]).abs().amax(1).min()) > 1e-4
    jacobian = torch.func.jacrev(run)(x[0])
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(run, x[0]), rtol=0, atol=1e-13)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(seeded(compiled)(x), wanted, rtol=0, atol=1e-13)
    assert not torch.equal(compiled(x), compiled(x))
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(seeded(exported)(x), wanted, rtol=0, atol=1e-13)
    single = layer.float()
    assert copy.deepcopy(single).bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert single(x.float()).dtype == torch.bfloat16


ROTATIONS = {"2 to 1": (2, 1, TANH, 2), "1 to 2": (1, 2, torch.relu, 3), "0": (0, 0, TANH, 1)}


@pytest.mark.parametrize("arguments", ROTATIONS.values(), ids=ROTATIONS)
@pytest.mark.parametrize("aspect_ratio", [2, 1.5])
def test_rotations_equal_e3nn(twins: Any, arguments: tuple[Any, ...], aspect_ratio: float) -> None:
    reference = twins.e3nn(theirs.SO3Activation, *arguments, aspect_ratio=aspect_ratio)
    ours = SO3Activation(*arguments, aspect_ratio=aspect_ratio).double()
    assert list(ours.state_dict()) == list(reference.state_dict())
    for key, value in reference.state_dict().items():
        assert torch.allclose(ours.state_dict()[key], value, rtol=1e-12, atol=1e-13), key
    x = torch.randn(2, 3, ours.irreps_in.dim, dtype=torch.float64)
    twins.assert_close(twins.two_orders(ours, {"x": x}, ("x",)), twins.two_orders(reference, {"x": x}, ("x",)), 2000)


def test_the_error_of_the_grid_falls() -> None:
    """For a smooth function it falls faster than any power."""
    errors = []
    for res in (6, 12, 24):
        layer = S2Activation("0e + 1o + 2e", TANH, res).double()
        errors.append(equivariance_residual(layer, [layer.irreps_in], layer.irreps_out))
    assert errors[0] > 1e-3
    assert errors[1] < errors[0] / 10
    assert errors[2] < errors[1] / 10


def test_the_identity_comes_back() -> None:
    """A grid gives back the signal that it holds: the weights are those of the integral."""
    x = torch.randn(5, 9, dtype=torch.float64)
    layer = S2Activation("0e + 1o + 2e", lambda z: z, 6).double()
    factor = layer.act.cst  # of the identity e3nn's estimate is not 1
    torch.testing.assert_close(layer(x), factor * x, rtol=1e-12, atol=1e-13)
    y = torch.randn(5, 35, dtype=torch.float64)
    torch.testing.assert_close(SO3Activation(2, 2, lambda z: z, 3).double()(y), factor * y, rtol=1e-12, atol=1e-13)


@pytest.mark.kernels
def test_constants_are_rounded_once() -> None:
    exact = S2Activation("0e + 1o", TANH, 6).double()
    layer = S2Activation("0e + 1o", TANH, 6).bfloat16().float()
    rounded = {key: value.clone() for key, value in layer.state_dict().items()}
    layer.load_state_dict({key: value.bfloat16().float() for key, value in rounded.items()})
    assert all(torch.equal(value, rounded[key]) for key, value in layer.state_dict().items())
    layer = layer.double()
    assert all(torch.equal(value, exact.state_dict()[key]) for key, value in layer.state_dict().items())
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(S2Activation("0e + 1o", TANH, 8).state_dict())
    assert all(value.is_meta for value in layer.to("meta").state_dict().values())
    back = layer.to_empty(device="cpu")
    assert all(torch.equal(value, exact.state_dict()[key]) for key, value in back.state_dict().items())


def test_text_and_bad_input() -> None:
    assert repr(S2Activation("0e + 1o", TANH, 6)).splitlines()[1] == "  1x0e+1x1o -> 1x0e+1x1o, res=[6, 5]"
    assert repr(SO3Activation(1, 2, TANH, 2)).splitlines()[1] == "  lmax 1 -> 2, resolution=2"
    with pytest.raises(IrrepsError, match="irreps must be one of each degree from 0"):
        S2Activation(o3.Irreps("2x0e + 1o"), TANH, 6)
    with pytest.raises(ConfigError, match="act must be even or odd for a signal of parity -1, got relu"):
        S2Activation("0o + 1e", torch.relu, 6)


def test_turns_may_be_set_later() -> None:
    layer, made = (S2Activation("0e + 1o", TANH, 6, random_rot=turns).double() for turns in (False, True))
    x = torch.randn(3, 4, dtype=torch.float64)
    plain = layer(x)
    layer.random_rot, found = True, []
    for one in (layer, made):
        torch.manual_seed(3)
        found.append(one(x))
    assert torch.equal(*found)
    layer.random_rot = False
    assert torch.equal(layer(x), plain)
