"""Equivariance as a property, derivatives to the third order, and backwards that compute what is asked and no more."""

from __future__ import annotations

import random
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eqlayers as eq
from eqlayers import TensorProduct
from eqlayers.core.backends import whole
from eqlayers.irreps import algebra
from eqlayers.layers.tensor_product import lower as program
from eqlayers.testing import check_derivatives, equivariance_residual

MIXED = ("2x0e + 2x1o", "2x1o + 1x1e", "2x1o + 4x0e + 2x1e")
ROWS = [(0, 0, 0, "uvu", True), (1, 0, 1, "uvuv", False), (1, 0, 2, "uuw", True), (1, 1, 0, "uvw", True)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("determinant", [1, -1])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=15)
def test_products_turn_with_their_inputs(twins: Any, layout: str, determinant: int, number: int) -> None:
    dice = random.Random(number)
    case = twins.product(dice)
    ours = TensorProduct(*case.args, **{**case.kwargs, "shared_weights": True}, layout=layout)
    weight = torch.randn(ours.weight_numel).double()
    ins = [ours.irreps_in1, ours.irreps_in2]
    hypothesis.assume(ours.irreps_out.dim and ours.output_mask.any())
    residual = equivariance_residual(
        lambda x, y: ours(x, y, weight), ins, ours.irreps_out, determinant=determinant, layout=layout
    )
    assert residual < 1e-12


@pytest.mark.parametrize("kind", [eq.FullTensorProduct, eq.FullyConnectedTensorProduct, eq.TensorSquare])
@pytest.mark.parametrize("determinant", [1, -1])
def test_derived_products_are_equivariant(kind: Any, determinant: int) -> None:
    irreps = "2x0e + 2x1o + 1x2e + 1x1e"
    args = {eq.TensorSquare: (irreps,), eq.FullTensorProduct: (irreps, "1o + 2e")}.get(
        kind, (irreps, "1o + 2e", irreps)
    )
    layer = kind(*args).double()
    ins = [irreps] if kind is eq.TensorSquare else [irreps, "1o + 2e"]
    assert (
        equivariance_residual(
            layer, [getattr(layer, "irreps_in", irreps), *ins[1:]], layer.irreps_out, determinant=determinant
        )
        < 1e-12
    )


def test_one_flipped_coefficient_is_not_equivariant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two tests above would see it if a single Clebsch-Gordan entry had the wrong sign."""

    def flipped(l1: int, l2: int, l3: int) -> np.ndarray:
        block = algebra.wigner_3j(l1, l2, l3).copy()
        where = np.argwhere(block)[-1]
        block[tuple(where)] *= -1
        return block

    args = ("1o", "1o", "1e", [(0, 0, 0, "uuu", False)])
    assert equivariance_residual(TensorProduct(*args), ["1o", "1o"], "1e") < 1e-13
    monkeypatch.setattr(program, "_terms", program._terms.__wrapped__)
    monkeypatch.setattr(program, "wigner_3j", flipped)
    for backend in (None, "torch"):
        assert equivariance_residual(TensorProduct(*args, backend=backend), ["1o", "1o"], "1e") > 1e-2


@pytest.mark.thinned(3)
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("live", [(0, 1, 2), (0,), (1,), (2,), (0, 2)])
def test_three_derivatives(live: tuple[int, ...], layout: str) -> None:
    ours = TensorProduct(*MIXED, ROWS, internal_weights=False, layout=layout)
    inputs = [torch.randn(2, 8).double(), torch.randn(2, 9).double(), torch.randn(ours.weight_numel).double()]
    for number, value in enumerate(inputs):
        value.requires_grad_(number in live)
    assert check_derivatives(ours, inputs, order=3, max_elements=4).ok


@pytest.mark.parametrize("shared", [True, False])
def test_gradcheck_and_gradgradcheck(shared: bool) -> None:
    ours = TensorProduct("2x1o", "1o", "2x1e + 2x0e", [(0, 0, 0, "uvu", True), (0, 0, 1, "uvw", True)],
                         internal_weights=False, shared_weights=shared)  # fmt: skip
    inputs = [torch.randn(2, 6), torch.randn(2, 3), torch.randn(*([] if shared else [2]), ours.weight_numel)]
    inputs = [v.double().requires_grad_() for v in inputs]
    assert torch.autograd.gradcheck(ours, inputs)
    assert torch.autograd.gradgradcheck(ours, inputs, fast_mode=True)


def test_first_gradients_can_be_differentiated_again() -> None:
    """`gradgradcheck` drops gradients without a graph and would not notice their loss."""
    ours = TensorProduct(*MIXED, ROWS).double()
    x, y = torch.randn(3, 8).double().requires_grad_(), torch.randn(3, 9).double().requires_grad_()
    first = torch.autograd.grad(ours(x, y).sum(), [x, y, ours.weight], create_graph=True)
    assert [g.requires_grad for g in first] == [True] * 3
    square = eq.TensorSquare("2x0e + 2x1o", "2x0e + 1e").double()
    x = torch.randn(3, 8).double().requires_grad_()
    first = torch.autograd.grad(square(x).sum(), [x, square.weight], create_graph=True)
    assert [g.requires_grad for g in first] == [True] * 2


def test_backward_twice_and_unchanged_inputs() -> None:
    ours = TensorProduct(*MIXED, ROWS).double()
    x, y = torch.randn(3, 8).double().requires_grad_(), torch.randn(3, 9).double().requires_grad_()
    before = x.detach().clone(), y.detach().clone(), ours.weight.detach().clone()
    total = ours(x, y).square().sum()
    first = torch.autograd.grad(total, [x, y, ours.weight], retain_graph=True)
    again = torch.autograd.grad(total, [x, y, ours.weight])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, (x, y, ours.weight), strict=True))


def test_nothing_grows_from_call_to_call() -> None:
    ours = TensorProduct(*MIXED, ROWS, backend="torch").double()
    x, y = torch.randn(3, 8).double(), torch.randn(3, 9).double()
    ours(x, y)
    wholes = whole._whole(ours.plan.form.key)
    kept = [len(path._constants._tensors.on_host) for path in wholes.paths]
    for _ in range(5):
        ours(x, y)
    assert whole._whole(ours.plan.form.key) is wholes
    assert kept == [len(path._constants._tensors.on_host) for path in wholes.paths] == [1] * len(kept)
