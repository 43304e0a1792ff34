"""Two physical checks of forces: what is no gradient, pushes or turns is seen, and sound models pass."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers.errors import ConfigError, DTypeError, ShapeError
from eqlayers.integrations import accelerate, check_forces

PLACES = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def pairs(pos: Tensor) -> Tensor:
    return (pos[:, None] - pos[None]).square().sum(-1).sin().sum()  # torch.pdist has no second derivative


class Sheared(torch.autograd.Function):
    """The identity with derivatives of something else: forces that are no gradient."""

    @staticmethod
    def forward(ctx: Any, pos: Tensor) -> Tensor:
        ctx.save_for_backward(pos)
        return pos.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (pos,) = ctx.saved_tensors
        return grad + 0.1 * pos.roll(1, 0)


def test_forces_of_pairs_are_sound() -> None:
    check = check_forces(pairs, PLACES)
    assert max(check) < 1e-14
    assert str(check).startswith("forces: derivatives symmetric within")
    single = check_forces(pairs, PLACES.float())
    assert 0 < max(single) < 1e-6


@pytest.mark.parametrize(
    ("energy", "wrong"),
    [
        (lambda pos: pairs(Sheared.apply(pos)), "asymmetry"),
        (lambda pos: pairs(pos) + pos[0, 0], "force"),
        (lambda pos: pairs(pos) + (pos[0, 0] - pos[1, 0]) ** 2, "torque"),
    ],
)
def test_what_is_wrong_is_seen(energy: Any, wrong: str) -> None:
    check = check_forces(energy, PLACES)
    assert getattr(check, wrong) > 1e-3
    if wrong == "torque":
        assert max(check.asymmetry, check.force) < 1e-13


class Once(torch.autograd.Function):
    """A square whose derivative has none."""

    @staticmethod
    def forward(ctx: Any, pos: Tensor) -> Tensor:
        ctx.save_for_backward(pos)
        return pos.square()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (pos,) = ctx.saved_tensors
        return 2 * pos.detach() * grad.detach()


@pytest.mark.parametrize(
    "energy", [lambda pos: Once.apply(pos).sum(), lambda pos: pairs(pos) + 10 * (pos[0] * pos[1].detach()).sum()]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_that_autograd_does_not_see(energy: Any, dtype: torch.dtype) -> None:
    assert check_forces(energy, PLACES.to(dtype)).asymmetry > 1e-2


def test_the_report_of_a_model_has_them(network: Any, inputs: Any) -> None:
    report = accelerate(network)
    assert report.forces is None
    checked = report.check_forces(lambda pos: network(pos, inputs.attrs, inputs.edges), inputs.pos)
    assert checked.forces is not None
    assert checked.forces.asymmetry < 1e-12
    assert checked.forces.force < 1e-12
    assert checked.forces.torque < 1e-12
    assert str(checked.forces) in str(checked)
    assert str(checked.forces) not in str(report)


def test_under_inference_mode_and_of_one_atom() -> None:
    with torch.inference_mode():
        assert max(check_forces(pairs, PLACES)) < 1e-14
    assert check_forces(lambda pos: torch.ones(3), PLACES) == (0.0, 0.0, 0.0)
    assert check_forces(lambda pos: pos.sum() * 0, PLACES[:1]) == (0.0, 0.0, 0.0)


def test_wrong_arguments() -> None:
    with pytest.raises(ShapeError, match=r"positions must be \[A, 3\]"):
        check_forces(pairs, PLACES[:, :2])
    with pytest.raises(DTypeError, match="positions must"):
        check_forces(pairs, PLACES.long())
    with pytest.raises(ConfigError, match="energy must"):
        check_forces(None, PLACES)  # type: ignore[arg-type]
