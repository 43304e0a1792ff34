"""torch.autocast: dense work runs in half precision, sparse work in the widest dtype that it is given."""

from typing import Any

import pytest
import torch
from torch import Tensor

BF16 = torch.bfloat16
DENSE = ["linear", "radial", "interaction", "energy", "mean of molecules", "dipole"]
SPARSE = ["product", "product, in torch", "every mode", "convolution", "convolution, in torch", "fixed scale", "gate"]
SPARSE += ["learned scale", "given scale", "given scale, in torch", "fixed scale, in torch", "square", "full"]


def halved(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(t.to(BF16) if torch.is_tensor(t) and t.is_floating_point() else t for t in inputs)


def forward(case: Any, inputs: tuple[Any, ...], **kwargs: Any) -> Tensor:
    with torch.autocast("cpu", dtype=BF16, **kwargs):
        return case.layer(*inputs)


@pytest.mark.parametrize("case", SPARSE, indirect=True)
def test_sparse_layers_keep_the_widest_dtype(case: Any) -> None:
    inputs = case.inputs(5)
    want = case.layer(*inputs)
    assert torch.equal(forward(case, inputs), want)
    # features that a dense layer has rounded, beside coordinates or weights in float32
    mixed = (halved(inputs)[0], *inputs[1:])
    if len(inputs) > 1 or list(case.layer.parameters()):
        rounded = case.layer(mixed[0].float(), *mixed[1:])
        assert torch.equal(forward(case, mixed), rounded)
        assert rounded.dtype == torch.float32
    else:
        assert forward(case, mixed).dtype == BF16


@pytest.mark.parametrize("case", DENSE, indirect=True)
def test_dense_layers_round_and_gradients_keep_the_dtype_of_their_tensors(case: Any) -> None:
    inputs = case.inputs(5)
    want = case.layer(*inputs)
    got = forward(case, inputs)
    # a dozen dense layers one after the other, one rounding to bfloat16 each
    assert (got - want).abs().max() < 12 * torch.finfo(BF16).eps * want.abs().max()
    assert not torch.equal(got.to(want.dtype), want), "nothing ran in bfloat16"
    got.float().square().sum().backward()
    parameters = list(case.layer.parameters())
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in parameters)
    assert any(p.grad is not None and p.grad.any() for p in parameters)


@pytest.mark.parametrize("case", [*SPARSE[:4], *DENSE[:4]], indirect=True)
def test_switched_off_it_changes_nothing(case: Any) -> None:
    inputs = case.inputs(5)
    want = case.layer(*inputs)
    assert torch.equal(forward(case, inputs, enabled=False), want)
    with torch.autocast("cpu", dtype=BF16):
        assert torch.equal(forward(case, inputs, enabled=False), want)


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
@pytest.mark.parametrize("case", ["linear"], indirect=True)
def test_compiled_under_autocast(case: Any) -> None:
    inputs = case.inputs(5)
    torch._dynamo.reset()
    compiled = torch.compile(case.layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        exact = case.layer(*inputs)
        with torch.autocast("cpu", dtype=BF16):
            rounded = compiled(*inputs)
            assert torch.equal(rounded, case.layer(*inputs))
    assert not torch.equal(rounded.to(exact.dtype), exact), "nothing ran in bfloat16"
