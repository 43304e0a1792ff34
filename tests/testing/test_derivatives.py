"""The derivative check must pass what is right and name what is wrong: operand, element, order."""

import math

import pytest
import torch

from eqlayers.errors import DTypeError, GradientError
from eqlayers.testing import check_derivatives


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


class _Scaled(torch.autograd.Function):
    """x * y with a backward that multiplies element ``wrong`` of gx by ``factor``; ``once``: gx has no graph."""

    @staticmethod
    def forward(ctx, x, y, factor, wrong, once):
        ctx.save_for_backward(x, y)
        ctx.rest = factor, wrong, once
        return x * y

    @staticmethod
    def backward(ctx, gz):
        x, y = ctx.saved_tensors
        factor, wrong, once = ctx.rest
        mask = torch.ones_like(x)
        mask[wrong] = factor
        gx = gz.detach() * y.detach() if once else gz * y
        return gx * mask, gz * x, None, None, None


def test_right_derivatives_pass_to_every_order():
    x, y = leaf(3), leaf(2, 3)
    report = check_derivatives(lambda x, y: (x.sin() * y).exp(), (x, y), 4)
    assert report.ok
    assert {e.order for e in report.entries} == {1, 2, 3, 4}
    assert {e.operand for e in report.entries if e.order == 1} == {"input 0", "input 1"}
    assert {e.operand for e in report.entries if e.order == 2} == {"input 0", "input 1", "cotangent 1.0"}
    assert max(e.error for e in report.entries) < 1e-7
    assert str(report).count("ok  ") == len(report.entries)


def test_the_numbers_are_the_derivative():
    """One element: d(x^3)/dx and its next orders, contracted with the drawn cotangents, agree with the closed form."""
    x = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    (first,) = check_derivatives(lambda x: x**3, [x], 1).entries
    draw = torch.randn(1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).item()
    assert math.isclose(first.analytical, 3 * 0.49 * draw, rel_tol=1e-12)
    assert math.isclose(first.numerical, first.analytical, rel_tol=1e-9)
    assert (first.order, first.operand, first.element, first.checked) == (1, "input 0", (0,), 1)


def test_a_wrong_element_is_named():
    x, y = leaf(2, 3), leaf(2, 3)
    with pytest.raises(GradientError, match=r"(?s)agree within 1e-06.*FAIL order 1, input 0\[1, 2\]: analytical ") as e:
        check_derivatives(lambda x, y: _Scaled.apply(x, y, 1.001, (1, 2), False), (x, y), 1)
    assert "ok   order 1, input 1[" in str(e.value)
    report = check_derivatives(lambda x, y: _Scaled.apply(x, y, -1.0, (0, 1), False), (x, y), 1, raise_exception=False)
    (failure,) = report.failures
    assert not report.ok
    assert (failure.operand, failure.element) == ("input 0", (0, 1))
    assert failure.numerical == pytest.approx(-failure.analytical)


def test_a_right_first_and_missing_second_derivative_is_caught():
    """gradgradcheck drops outputs that do not require a gradient; here the graph of gx is cut and order 2 says so."""
    x, y = leaf(3), leaf(3)

    def cut(x, y):
        return _Scaled.apply(x, y, 1.0, 0, True)

    assert check_derivatives(cut, (x, y), 1).ok
    report = check_derivatives(cut, (x, y), 2, raise_exception=False)
    assert {(f.order, f.operand) for f in report.failures} == {(2, "input 1"), (2, "cotangent 1.0")}
    assert all(f.analytical != f.numerical for f in report.failures)


def test_a_detached_result_is_caught():
    for function in (lambda x: x.detach().sin(), lambda x: x.sin().detach()):
        report = check_derivatives(function, [leaf(2)], 1, raise_exception=False)
        assert [f.operand for f in report.failures] == ["input 0"]


def test_a_wrong_third_derivative_is_caught():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (3 * x.detach() ** 2 + 6 * x.detach() * (x - x.detach()))  # right to second order only

    x = leaf(2)
    assert check_derivatives(Cube.apply, [x], 2).ok
    report = check_derivatives(Cube.apply, [x], 3, raise_exception=False)
    assert {(f.order, f.operand) for f in report.failures} == {(3, "input 0")}


def test_several_results_and_constants():
    x, y = leaf(2), leaf(2).detach()
    report = check_derivatives(lambda x, y: (x * y, x.sum()), (x, y), 2)
    assert "input 1" not in {e.operand for e in report.entries}
    assert {"cotangent 1.0", "cotangent 1.1"} <= {e.operand for e in report.entries}
    assert check_derivatives(lambda x: x.new_zeros(0) * x.sum(), [leaf(2)], 2).ok
    assert check_derivatives(lambda x: x.sin(), [leaf(0, 3)], 2).ok


def test_gradients_and_inputs_of_any_strides():
    x, y = leaf(4, 3), leaf(3, 4).detach()
    assert check_derivatives(lambda x: x.t() * y, [x], 2).ok
    assert check_derivatives(lambda x: x.sin(), [y.t().requires_grad_()], 2).ok


def test_a_large_operand_is_compared_along_one_direction():
    """Every element takes part, also with one wrong element in 50; that element is named if it is among those drawn."""
    x, y = leaf(50), leaf(50)
    (entry,) = check_derivatives(lambda x: x.sin(), [x], 1, max_elements=7).entries
    assert (entry.element, entry.checked) == (None, 50)
    reports = [check_derivatives(lambda x: x.sin(), [x], 1, max_elements=7, seed=s).entries for s in (1, 1, 2)]
    assert reports[0] == reports[1] != reports[2]

    calls = []

    def wrong(x, y):
        calls.append(True)
        return _Scaled.apply(x, y, 1.001, 3, False)

    for most, element in ((1, None), (49, (3,))):
        report = check_derivatives(wrong, (x, y), 1, max_elements=most, raise_exception=False)
        assert [(f.operand, f.element) for f in report.failures] == [("input 0", element)]
    for element in range(50):
        run = lambda x, y, element=element: _Scaled.apply(x, y, 2.0, element, False)  # noqa: E731
        assert not check_derivatives(run, (x, y), 1, max_elements=1, raise_exception=False).ok
    calls.clear()
    check_derivatives(lambda x, y: wrong(x, y).detach() * 0 + x * y, (x, y), 1, max_elements=7)
    assert len(calls) == 1 + 2 * 4, "one analytical value, and four values for the direction of each operand"


def test_inputs_and_random_state_are_left_alone():
    x = leaf(3)
    before, state = x.detach().clone(), torch.get_rng_state()
    check_derivatives(lambda x: x.sin(), [x], 2)
    assert torch.equal(before, x)
    assert x.grad is None
    assert torch.equal(state, torch.get_rng_state())


def test_float32_is_refused():
    with pytest.raises(DTypeError, match=r"input 1 must be float64 for finite differences, got torch\.float32.*double"):
        check_derivatives(lambda x, y: x * y, (leaf(2), torch.ones(2)), 1)


def test_inputs_without_gradients_are_refused():
    with pytest.raises(GradientError, match=r"some input must .*got 2 without"):
        check_derivatives(lambda x, y: x * y, (leaf(2).detach(), leaf(2).detach()), 1)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_torch_defaults_change_nothing(default):
    x = leaf(3)
    want = check_derivatives(lambda x: x.sin(), [x], 2)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with torch.device("meta"):
            got = check_derivatives(lambda x: x.sin(), [x], 2)
    finally:
        torch.set_default_dtype(before)
    assert got == want
