"""Equivariance as a property, derivatives to the third order, and backwards that compute what is asked and no more."""

import pytest
import torch

import eqlayers as eq
from eqlayers import TensorProduct
from eqlayers.core.backends import whole
from eqlayers.testing import check_derivatives

MIXED = ("2x0e + 2x1o", "2x1o + 1x1e", "2x1o + 4x0e + 2x1e")
ROWS = [(0, 0, 0, "uvu", True), (1, 0, 1, "uvuv", False), (1, 0, 2, "uuw", True), (1, 1, 0, "uvw", True)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("live", [(0, 1, 2), (0,), (1,), (2,), (0, 2)])
def test_three_derivatives(live: tuple[int, ...], layout: str) -> None:
    ours = TensorProduct(*MIXED, ROWS, internal_weights=False, layout=layout)
    inputs = [torch.randn(2, 8).double(), torch.randn(2, 9).double(), torch.randn(ours.weight_numel).double()]
    for number, value in enumerate(inputs):
        value.requires_grad_(number in live)
    assert check_derivatives(ours, inputs, order=3, max_elements=4).ok


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
