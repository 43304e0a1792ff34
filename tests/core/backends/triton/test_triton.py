"""Backend triton runs where its kernels do, and says so where they do not compile."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from eqlayers.core.backends import select, triton, verdicts
from eqlayers.core.backends.triton import ALIGNMENT, aligned, refuse
from eqlayers.core.forms.request import Request, Sizes
from eqlayers.errors import BackendError
from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import Axis, Path, Program, Slot
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run.compiling import KernelError
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


@pytest.mark.parametrize("family", ["product", "formula"])
def test_kernels_that_do_not_compile_are_an_error_that_names_the_torch_backend(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [KernelError("ptxas fatal"), torch.OutOfMemoryError("none left")]

    def kernels(operands: object, tables: object, sizes: object) -> list[torch.Tensor]:
        raise errors.pop(0)

    monkeypatch.setitem(triton._KERNELS, family, lambda request: kernels)
    run = triton.make_runner(replace(CALL, key="0123/g1:11", form=SimpleNamespace(family=family, reading=None)))
    message = rf"kernels of the {family} 0123 must compile for cpu, .*, got ptxas fatal\. Pass backend='torch'"
    with pytest.raises(BackendError, match=message):
        run([torch.ones(2, 3)], None, Sizes(2))
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        run([torch.ones(2, 3)], None, Sizes(2))


def test_operands_are_copied_where_wide_loads_would_begin_elsewhere() -> None:
    whole = torch.arange(24.0).view(4, 6)
    assert aligned(whole) is whole
    for part in (whole.flatten()[1:], whole[:, :3], whole.t()):
        copy = aligned(part)
        assert torch.equal(copy, part)
        assert copy.is_contiguous()
        assert copy.data_ptr() % ALIGNMENT == 0
