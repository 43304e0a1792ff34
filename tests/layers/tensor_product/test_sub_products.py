"""The products that derive their own instructions: e3nn's outputs, numbers, weights and first two derivatives."""

import random
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from e3nn import o3
from hypothesis import given
from hypothesis import strategies as st

import eqlayers as eq

NORMALIZATIONS = ["component", "norm", "none", None]


def compare(twins: Any, theirs: Any, ours: Any, in1: o3.Irreps, in2: o3.Irreps | None, seed: int = 0) -> None:
    """Structure, state dicts both ways, values, derivatives."""
    assert ours.irreps_out == theirs.irreps_out
    assert [tuple(i)[:5] for i in ours.instructions] == [tuple(i)[:5] for i in theirs.instructions]
    ours = ours.double()
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    generator = torch.Generator().manual_seed(seed)
    inputs = {"x": torch.randn(2, 3, in1.dim, generator=generator, dtype=torch.float64)}
    if in2 is not None:
        inputs["y"] = torch.randn(3, in2.dim, generator=generator, dtype=torch.float64)
    depth = in1.dim * (in1 if in2 is None else in2).dim * max(1, len(ours.instructions))
    reference = twins.two_orders(theirs, inputs, tuple(inputs))
    twins.assert_close(twins.two_orders(ours, inputs, tuple(inputs)), reference, depth)


def fully_connected(twins: Any, dice: random.Random) -> None:
    in1, in2, out = (twins.irreps(dice) for _ in range(3))
    kwargs: dict[str, Any] = {
        "irrep_normalization": dice.choice(NORMALIZATIONS),
        "path_normalization": dice.choice(["element", "path", None]),
    }
    theirs = twins.e3nn(o3.FullyConnectedTensorProduct, in1, in2, out, **kwargs)
    compare(twins, theirs, eq.FullyConnectedTensorProduct(in1, in2, out, **kwargs), in1, in2)


def full(twins: Any, dice: random.Random) -> None:
    in1, in2 = twins.irreps(dice), twins.irreps(dice)
    keep = dice.choice([None, ["0e", "1o"], [o3.Irrep("1e"), o3.Irrep("2e")]])
    theirs_keep = None if keep is None else [o3.Irrep(ir) for ir in keep]
    norm = dice.choice(NORMALIZATIONS)
    theirs = twins.e3nn(o3.FullTensorProduct, in1, in2, theirs_keep, irrep_normalization=norm)
    compare(
        twins, theirs, eq.FullTensorProduct(in1, in2, keep, irrep_normalization=norm), in1.simplify(), in2.simplify()
    )


def elementwise(twins: Any, dice: random.Random) -> None:
    in1 = twins.irreps(dice, least=1)
    in2 = o3.Irreps(
        [(1, (dice.randint(0, 2), dice.choice([1, -1]))) for _ in range(in1.num_irreps)]
    )  # simplifies to other groups than in1
    keep = dice.choice([None, ["0e", "1o", "1e"]])
    norm = dice.choice(NORMALIZATIONS)
    theirs = twins.e3nn(
        o3.ElementwiseTensorProduct,
        in1,
        in2,
        None if keep is None else [o3.Irrep(k) for k in keep],
        irrep_normalization=norm,
    )
    compare(twins, theirs, eq.ElementwiseTensorProduct(in1, in2, keep, irrep_normalization=norm), in1, in2)


def square(twins: Any, dice: random.Random) -> None:
    irreps = twins.irreps(dice)
    out = dice.choice([None, "given"])
    out = None if out is None else twins.irreps(dice)
    norm = dice.choice(["component", "norm", "none"])
    theirs = twins.e3nn(o3.TensorSquare, irreps, out, irrep_normalization=norm)
    ours = eq.TensorSquare(irreps, out, irrep_normalization=norm)
    assert ours.irreps_in == theirs.irreps_in1
    compare(twins, theirs, ours, irreps.simplify(), None)


CHECKS = [fully_connected, full, elementwise, square]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("check", CHECKS)
@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=4)  # each compiles kernels
def test_random_products_equal_e3nn(twins: Any, check: Callable[[Any, random.Random], None], number: int) -> None:
    check(twins, random.Random(number))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=80)
def test_many_random_products_equal_e3nn(twins: Any, check: Callable[[Any, random.Random], None], number: int) -> None:
    check(twins, random.Random(number))


def test_square_is_a_square_of_unit_variance_numbers() -> None:
    """The normalisation that e3nn and we claim, by sampling: every component of the output has variance 1."""
    square = eq.TensorSquare("3x0e + 3x1o + 2x2e", irrep_normalization="component").double()
    z = square(torch.randn(40_000, square.irreps_in.dim).double())
    for columns, (_, ir) in zip(square.irreps_out.slices(), square.irreps_out, strict=True):
        second_moment = z[:, columns].square().mean()
        assert 0.9 < second_moment < 1.1, ir


def test_elementwise_with_a_number_of_copies_that_does_not_pair() -> None:
    with pytest.raises(eq.errors.IrrepsError, match=r"equally many irreps, got 5 in 5x1o and 4 in 4x1e.*one by one"):
        eq.ElementwiseTensorProduct("5x1o", "4x1e")


def test_large_product_constructs() -> None:
    ls = "+".join(f"2x{l}{'eo'[l % 2]}" for l in range(5))
    product = eq.FullyConnectedTensorProduct(ls, ls, ls)
    assert product.num_paths == len(o3.FullyConnectedTensorProduct(ls, ls, ls).instructions)
    assert product(torch.randn(2, 50), torch.randn(2, 50)).shape == (2, 50)
