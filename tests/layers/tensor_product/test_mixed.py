"""Products that mix channels, by one kernel of Triton and matrix products."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eqlayers import FullyConnectedTensorProduct, TensorProduct
from eqlayers.errors import BackendError
from eqlayers_kernels.triton import availability

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")

#: Operators without a launch.
FREE = {"view", "_unsafe_view", "transpose", "permute", "expand", "split_with_sizes", "new_empty"}
LAYOUTS = ("mul_ir", "ir_mul")
#: Irreps of in1, in2 and out: the products of layers, and blocks without paths, in another order, of one channel.
IRREPS = [
    ("8x0e + 8x1o", "0e + 1o", "8x0e + 8x1o"),
    ("3x0e + 1x1e + 4x1o + 2x2e", "0e + 1o + 2e", "5x1o + 3x0e + 2x7o + 1x2e"),
]


class Launches(TorchDispatchMode):
    """Counts operators that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(op).split(".")[1].replace("bmm", "mm")  # torch 2.15 multiplies a batch of one as plain matrices
        self.counted.update([name] if name not in FREE else [])
        return op(*args, **(kwargs or {}))


def pair(irreps: tuple[str, str, str], layout: str) -> tuple[FullyConnectedTensorProduct, FullyConnectedTensorProduct]:
    torch.manual_seed(0)
    expected = FullyConnectedTensorProduct(*irreps, layout=layout, backend="reference").double()
    ours = FullyConnectedTensorProduct(*irreps, layout=layout, backend="triton").double()
    ours.load_state_dict(expected.state_dict())
    return ours, expected


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("irreps", IRREPS)
def test_value_and_two_derivatives(irreps: tuple[str, str, str], layout: str, twins: Any) -> None:
    ours, expected = pair(irreps, layout)
    inputs = {"x": torch.randn(3, ours.irreps_in1.dim).double(), "y": torch.randn(3, ours.irreps_in2.dim).double()}
    inputs["weight"] = ours.weight.detach().clone()
    reference = twins.two_orders(expected, inputs, tuple(inputs))
    twins.assert_close(twins.two_orders(ours, inputs, tuple(inputs)), reference, sum(ours.irreps_in1.dim for _ in "xy"))


@pytest.mark.parametrize("lead", [(), (0,), (2, 3)])
def test_leading_axes_broadcast(lead: tuple[int, ...]) -> None:
    ours, expected = pair(IRREPS[0], "ir_mul")
    x, y = torch.randn(*lead, 32).double(), torch.randn(4).double()
    z: Tensor = ours(x, y)
    assert z.shape == (*lead, 32)
    torch.testing.assert_close(z, expected(x, y))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_launches(layout: str) -> None:
    """Six: the kernel, a matrix product for each block, one copy, and two concatenations, of matrices and blocks."""
    ours, _ = pair(IRREPS[0], layout)
    x, y = torch.randn(3, 32).double(), torch.randn(3, 4).double()
    with torch.no_grad(), Launches() as launches:
        ours(x, y)
    assert launches.counted == {"form": 1, "mm": 2, "cat": 2, "clone": 1}


def test_half_precision_is_summed_in_float32() -> None:
    ours, expected = (layer.half() for layer in pair(IRREPS[0], "ir_mul"))
    x, y = torch.randn(3, 32).half(), torch.randn(3, 4).half()
    torch.testing.assert_close(ours(x, y), expected(x, y), rtol=torch.finfo(torch.float16).eps, atol=0.0)


def test_what_runs() -> None:
    """The layer says it; weights for each sample, and several channels of y, are refused as before."""
    ours, _ = pair(IRREPS[0], "ir_mul")
    assert "all 4 paths before matrices of weights: triton runs" in ours.explain(ours.weight.device)
    assert "matrices" not in FullyConnectedTensorProduct(*IRREPS[0], backend="cpu").explain()
    for irreps, shared in ((IRREPS[0], False), (("2x0e", "3x0e", "2x0e"), True)):
        layer = TensorProduct(*irreps, [(0, 0, 0, "uvw", True)], shared_weights=shared, backend="triton")
        weight = None if shared else torch.randn(2, layer.weight_numel)
        with pytest.raises(BackendError, match="mix channels"):
            layer(torch.randn(2, layer.irreps_in1.dim), torch.randn(2, layer.irreps_in2.dim), weight)
