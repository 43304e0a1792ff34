"""Backend triton runs where its kernels do, and leaves the call to torch where they do not compile."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from eqlayers.core.backends import select, verdicts
from eqlayers.core.backends.triton import ALIGNMENT, TorchInstead, aligned, refuse
from eqlayers.core.forms.request import Request
from eqlayers.errors import BackendError
from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import Axis, Path, Program, Slot
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.errors import KernelError
from tests.each import each

CALL = Request(None, "", torch.float32, torch.device("cpu"))


def test_triton_refuses_cpu_tensors_outside_its_interpreter(monkeypatch):
    monkeypatch.setattr(availability, "interpreted", lambda: False)
    with pytest.raises(BackendError, match=r"'triton' .* needs CUDA or HIP tensors, got cpu\. Pass backend=None"):
        select(CALL, "triton")
    assert verdicts(CALL)["triton"] == "refuses: needs CUDA or HIP tensors, got cpu"


def test_triton_is_not_chosen_for_the_interpreter(monkeypatch):
    monkeypatch.setattr(availability, "interpreted", lambda: True)
    monkeypatch.setattr(availability, "why_not", lambda: None)
    assert select(CALL).name == "cpu"
    assert select(CALL, "triton").name == "triton"
    assert verdicts(CALL)["triton"] == "accepts, only when named"


def form(axes: tuple[Axis, ...], x: Slot, y: Slot, z: Slot) -> ProductForm:
    path = Path(x, y, z, None, axes, ((0, 0, 0, 1.0),))
    return ProductForm(Program((path,), (x.stop, y.stop, 0, z.stop), "ir_mul"))


@each(
    "changes, reason",
    [
        ({}, None),
        ({"dtype": torch.bfloat16}, None),
        ({"dtype": torch.int64}, "needs float64, float32, float16, bfloat16, got torch.int64"),
        ({"device": torch.device("meta")}, "needs CUDA or HIP tensors, got meta"),
        ({"form": form((Axis(3, x=1, z=1),), Slot(0, 3, 1), Slot(0, 1, 1), Slot(0, 3, 1))}, None),
        (
            {"form": form((Axis(2, x=1, z=3), Axis(3, y=1, z=1)), Slot(0, 2, 1), Slot(0, 3, 1), Slot(0, 6, 1))},
            "has 1 of 1 paths that mix channels; backend torch runs them",
        ),
    ],
    ids=lambda row: row[1],
)
def test_calls_that_no_kernel_is_printed_for_are_refused(changes: dict[str, object], reason: str | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability, "interpreted", lambda: True)
        patch.setattr(availability, "why_not", lambda: None)
        assert refuse(replace(CALL, **changes)) == reason


class Kernels:
    """A call that ends with an error until some time."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "kernels"


def test_torch_takes_over_on_the_device_whose_kernels_do_not_compile() -> None:
    without, kernels = TorchInstead("the product 0123"), Kernels(KernelError("ptxas fatal"))
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    with pytest.warns(
        RuntimeWarning,
        match=r"kernels of the product 0123 must compile for cuda:0, .*, got ptxas fatal",
    ):
        assert without(first, kernels, lambda: "torch") == "torch"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert without(first, kernels, lambda: "torch") == "torch"
        assert kernels.calls == 1, "what does not compile is not tried again"
        assert without(second, kernels, lambda: "torch") == "kernels"


def test_other_errors_of_kernels_reach_the_caller() -> None:
    without, kernels = TorchInstead("the product 0123"), Kernels(torch.OutOfMemoryError("none left"))
    for wanted in (torch.OutOfMemoryError, None):
        if wanted is None:
            assert without(torch.device("cpu"), kernels, lambda: "torch") == "kernels"
        else:
            with pytest.raises(wanted, match="none left"):
                without(torch.device("cpu"), kernels, lambda: "torch")


def test_operands_are_copied_where_wide_loads_would_begin_elsewhere() -> None:
    whole = torch.arange(24.0).view(4, 6)
    assert aligned(whole) is whole
    for part in (whole.flatten()[1:], whole[:, :3], whole.t()):
        copy = aligned(part)
        assert torch.equal(copy, part)
        assert copy.is_contiguous()
        assert copy.data_ptr() % ALIGNMENT == 0
