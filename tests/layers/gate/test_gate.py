"""Activations and gates: e3nn's irreps, numbers and state for random irreps, known and unknown functions; errors."""

import copy
import random
from itertools import pairwise
from typing import Any

import hypothesis
import pytest
import torch
from e3nn import nn as theirs
from e3nn import o3
from e3nn.math import normalize2mom
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from eqlayers import to_ir_mul
from eqlayers.errors import ConfigError, IrrepsError
from eqlayers.layers.gate.activation import NormalizedFunction, second_moment
from eqlayers.nn import Activation, Gate

KNOWN = [functional.silu, torch.sigmoid, torch.tanh, torch.nn.SiLU(), None]
OTHER = [*KNOWN, functional.gelu, torch.cos, torch.relu]
ODD = [torch.tanh, None]
ODD_OTHER = [*ODD, torch.abs, torch.sin]


def scalars(dice: random.Random, total: int, other: bool) -> tuple[o3.Irreps, list[Any]]:
    """So many scalars in groups, some of them odd, empty or alike, and a function for each."""
    groups, acts = [], []
    while total > 0:
        mul, odd = dice.randint(0, min(total, 5)), dice.random() < 0.4
        groups.append((mul, (0, -1 if odd else 1)))
        acts.append(dice.choice((ODD_OTHER if other else ODD) if odd else (OTHER if other else KNOWN)))
        total -= mul
    return o3.Irreps(groups), acts


@given(number=st.integers(0, 2**32), other=st.booleans(), channels=st.sampled_from([1, 1, 4]))
@hypothesis.settings(max_examples=5)  # most compile kernels
def test_random_gates_equal_e3nn(twins: Any, number: int, other: bool, channels: int) -> None:
    dice = random.Random(number)
    gated = o3.Irreps(
        [(dice.randint(0, 3), (dice.randint(1, 2), dice.choice([1, -1]))) for _ in range(dice.randint(0, 4))]
    )
    first, acts = scalars(dice, dice.randint(0, 5), other)
    second, gate_acts = scalars(dice, gated.num_irreps, other)
    first, second, gated = (
        o3.Irreps([(channels * mul, ir) for mul, ir in irreps]) for irreps in (first, second, gated)
    )
    arguments = first, acts, second, gate_acts, gated
    reference = twins.e3nn(theirs.Gate, *arguments)
    ours = Gate(*arguments).double()
    assert (ours.irreps_in, ours.irreps_out) == (reference.irreps_in, reference.irreps_out)
    assert list(ours.state_dict()) == list(reference.state_dict())
    ours.load_state_dict(reference.state_dict())
    reference.load_state_dict(ours.state_dict())
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(2, 3, ours.irreps_in.dim, dtype=torch.float64, generator=generator)
    wanted = twins.two_orders(reference, {"x": x}, ("x",) if x.numel() else ())
    twins.assert_close(twins.two_orders(ours, {"x": x}, ("x",) if x.numel() else ()), wanted, 32)
    irreps = [ir for mul, ir in gated if mul]
    if any(first == second for first, second in pairwise(irreps)):
        with pytest.raises(IrrepsError, match="irreps_gated must"):
            Gate(*arguments, layout="ir_mul")
        return
    turned = {"value": Gate(*arguments, layout="ir_mul").double()(to_ir_mul(x, ours.irreps_in))}
    twins.assert_close(turned, {"value": to_ir_mul(wanted["value"], ours.irreps_out)}, 32)


def test_known_functions_are_in_the_formula_and_others_are_not() -> None:
    gate = Gate("4x0e", [functional.silu], "4x0e", [torch.nn.Sigmoid()], "4x1o")
    assert len(gate.formulas()[0].operands) == 1
    gate = Gate("4x0e", [functional.silu], "4x0e", [lambda z: torch.sigmoid(z)], "4x1o")
    assert len(gate.formulas()[0].operands) == 2


@pytest.mark.parametrize("f", [functional.silu, torch.tanh, functional.gelu, torch.nn.Softplus()])
def test_factors_are_those_of_e3nn(f: Any) -> None:
    mine = NormalizedFunction(f)
    assert mine.cst == normalize2mom(f).cst
    if f is functional.silu:
        exact = second_moment("silu") ** -0.5
        assert 1e-6 < abs(mine.cst / exact - 1) < 3e-3  # an estimate from a million samples
    near = normalize2mom(torch.abs).cst  # of |z|, as of z: the estimate is not 1
    assert NormalizedFunction(lambda z: z * near * (1 + 5e-5)).cst == 1.0  # so close to 1 that e3nn leaves it out
    assert NormalizedFunction(lambda z: z * near * (1 + 2e-4)).cst != 1.0


def test_activations_keep_parameters_and_axes(twins: Any) -> None:
    prelu = torch.nn.PReLU(init=0.3)
    arguments = "3x0e + 2x1o + 2x0o", [prelu, None, torch.abs]
    ours = Activation(*copy.deepcopy(arguments))
    reference = theirs.Activation(arguments[0], [None, None, torch.abs])
    assert ours.irreps_out == reference.irreps_out == o3.Irreps("3x0e + 2x1o + 2x0e")
    assert list(ours.state_dict()) == ["acts.0.f.weight"]
    x = torch.randn(4, 11, 3)
    y = ours(x, dim=1)
    assert torch.equal(y, ours(x.movedim(1, -1)).movedim(-1, 1))
    assert torch.equal(y[:, 3:9], x[:, 3:9])
    assert torch.equal(y, ours(x, dim=-2))
    reference = twins.e3nn(theirs.Activation, "3x0e", [functional.gelu])
    z = torch.randn(5, 3, dtype=torch.float64)
    assert torch.equal(Activation("3x0e", [functional.gelu])(z), reference(z))
    assert torch.equal(Activation("", [])(x[..., :0]), x[..., :0])


@pytest.mark.kernels
def test_text_and_bad_input() -> None:
    gate = Gate("2x0e", [functional.silu], "1x0e", [torch.sigmoid], "1x1o", layout="ir_mul")
    assert repr(gate).splitlines()[1] == "  3x0e+1x1o -> 2x0e+1x1o | ir_mul, backend auto"
    for wrong, message in (
        (("1o", [None], "", [], ""), "irreps_scalars must be scalars, got 1x1o"),
        (("0e", [None], "2x0e", [None], "3x1o"), "irreps_gates must hold a scalar for each copy of irreps_gated, 3 of"),
        (
            ("0e", [None, None], "", [], ""),
            "acts must be a list of functions.* 1 in all, got 2",
        ),
        (("0o", [functional.silu], "", [], ""), "acts must be even or odd for odd scalars, got silu"),
        (("0e", [lambda z: z.sum()], "", [], ""), "an activation must map a tensor to one of its shape"),
    ):
        with pytest.raises(ConfigError, match=message):
            Gate(*wrong)
    with pytest.raises(ConfigError, match="acts must"):
        Activation("1o", [torch.tanh])
