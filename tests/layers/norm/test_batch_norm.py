"""Batch norms: e3nn's numbers and running statistics with all options, empty batches, and what the formulas say."""

from itertools import product
from typing import Any

import pytest
import torch
from e3nn import nn as theirs
from torch import Tensor

from eqlayers import errors, to_ir_mul
from eqlayers.nn import BatchNorm, BatchRMSNorm

IRREPS = "2x1o + 3x0e + 1x0o + 2x2e + 2x0e"
OPTIONS = [
    {"reduce": reduce, "instance": instance, "affine": affine, "include_bias": bias, "normalization": kind}
    for reduce, instance, (affine, bias), kind in product(
        ("mean", "max"), (False, True), ((True, True), (True, False), (False, True)), ("component", "norm")
    )
]
EPS = torch.finfo(torch.float64).eps


def twin(options: dict[str, Any], twins: Any, **more: Any) -> tuple[BatchNorm, Any]:
    reference = twins.e3nn(theirs.BatchNorm, IRREPS, eps=1e-3, momentum=0.3, **options)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_()
    ours = BatchNorm(IRREPS, eps=1e-3, momentum=0.3, **options, **more).double()
    assert list(ours.state_dict()) == list(reference.state_dict())
    ours.load_state_dict(reference.state_dict())
    reference.load_state_dict(ours.state_dict())
    return ours, reference


@pytest.mark.thinned(5)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_numbers_and_running_statistics_of_e3nn(options: dict[str, Any], twins: Any) -> None:
    ours, reference = twin(options, twins)
    flipped, _ = twin(options, twins, layout="ir_mul")
    flipped.load_state_dict(ours.state_dict())
    for shape in ((6,), (3, 4), (2, 3, 2)):  # samples between the first axis and the last
        x = 1 + torch.randn(*shape, ours.irreps.dim, dtype=torch.float64)
        found, wanted = twins.two_orders(ours, {"x": x}, ("x",)), twins.two_orders(reference, {"x": x}, ("x",))
        twins.assert_close(found, wanted, 200)
        turned = flipped(to_ir_mul(x, ours.irreps)).detach()
        twins.assert_close({"value": turned}, {"value": to_ir_mul(wanted["value"], ours.irreps)}, 200)
        for name, value in reference.named_buffers():
            assert torch.allclose(ours.get_buffer(name), value, rtol=64 * EPS, atol=64 * EPS), name
    ours.eval(), reference.eval()
    twins.assert_close(twins.two_orders(ours, {"x": x}, ("x",)), twins.two_orders(reference, {"x": x}, ("x",)), 200)


@pytest.mark.parametrize("make", [BatchNorm, BatchRMSNorm])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_batches_without_rows_leave_running_statistics(make: Any, shape: tuple[int, ...]) -> None:
    layer = make(IRREPS).double()
    layer(torch.randn(5, layer.irreps_in.dim, dtype=torch.float64))
    kept = {name: value.clone() for name, value in layer.named_buffers()}
    x = torch.zeros(*shape, layer.irreps_in.dim, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert y.shape == x.shape
    assert y.requires_grad
    assert all(torch.equal(value, kept[name]) for name, value in layer.named_buffers())


def test_a_row_without_batch_is_a_batch_of_one() -> None:
    layer = BatchNorm(IRREPS).double().eval()
    x = torch.randn(layer.irreps.dim, dtype=torch.float64)
    assert torch.equal(layer(x), layer(x[None])[0])


def rms(x: Tensor) -> Tensor:
    """By hand, of 2x0e + 2x1o."""
    return torch.cat([x[:, :2].square().mean(0), x[:, 2:].reshape(-1, 2, 3).square().mean((0, 2))])


def test_batch_rms_norm_by_hand() -> None:
    layer = BatchRMSNorm("2x0e + 2x1o", eps=1e-2, momentum=0.25).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, -3.0, 4.0]))
    x = 2 + torch.randn(50, 8, dtype=torch.float64)
    factors = (rms(x) + 1e-2) ** -0.5 * layer.weight
    wanted = x * torch.cat([factors[:2], factors[2:].repeat_interleave(3)])
    assert torch.allclose(layer(x), wanted, rtol=64 * EPS, atol=0)
    assert torch.allclose(layer.running_squared_norm, 0.75 + 0.25 * rms(x), rtol=64 * EPS, atol=0)
    layer.eval()
    factors = (layer.running_squared_norm + 1e-2) ** -0.5 * layer.weight
    wanted = x * torch.cat([factors[:2], factors[2:].repeat_interleave(3)])
    assert torch.allclose(layer(x), wanted, rtol=64 * EPS, atol=0)


@pytest.mark.parametrize("make", [BatchNorm, BatchRMSNorm])
def test_running_statistics_of_half_precision_are_float32(make: Any) -> None:
    """Squares above 65,504 are infinite in float16; what was float32 is not rounded on the way."""
    layer = make("2x0e + 1x1o")
    layer(100 * torch.randn(9, 5))
    kept = {name: value.clone() for name, value in layer.named_buffers()}
    layer.half()
    assert all(p.dtype == torch.float16 for p in layer.parameters())
    for name, value in layer.named_buffers():
        assert value.dtype == torch.float32
        assert torch.equal(value, kept[name]), name
    layer(torch.full((4, 5), 1000.0, dtype=torch.float16, requires_grad=True))
    assert all(bool(torch.isfinite(value).all()) and not value.requires_grad for value in layer.buffers())
    assert {value.dtype for value in layer.double().buffers()} == {torch.float64}


def test_features_of_zeros_stay_finite() -> None:
    for make in (BatchNorm, BatchRMSNorm):
        layer = make("2x0e + 1x1o")
        x = torch.zeros(4, layer.irreps_in.dim, requires_grad=True)
        (first,) = torch.autograd.grad(layer(x).square().sum() + layer(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        assert bool(torch.isfinite(first).all())
        assert bool(torch.isfinite(second).all())


@pytest.mark.kernels
def test_text_and_bad_input() -> None:
    layer = BatchNorm("2x0e + 1o", reduce="max", affine=False)
    assert (
        repr(layer)
        == "BatchNorm(2x0e+1x1o, eps=1e-05, momentum=0.1, reduce=max, without weights | mul_ir, backend auto)"
    )
    assert "momentum=0.1, norm | mul_ir" in repr(BatchRMSNorm("1o", normalization="norm"))
    with pytest.raises(errors.DTypeError, match=r"running_var must have the dtype of input, torch\.float64"):
        layer(torch.zeros(3, 5, dtype=torch.float64))
