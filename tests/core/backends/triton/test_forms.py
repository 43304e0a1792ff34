"""Layers on printed Triton kernels, in the interpreter or on a GPU, against the definition."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import eqlayers as eq
from eqlayers.core.backends import forms
from eqlayers.core.backends import triton as backend
from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.triton import availability

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = torch.finfo(torch.float64).eps
IN1, IN2, OUT = "5x0e + 3x1o", "0e + 1o", "5x0e + 5x1o + 3x0e + 3x1o"
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 2, "uvu", True), (1, 0, 3, "uvu", False)]
EDGES = [[0, 1, 2, 0, 3, 3], [1, 1, 0, 2, 1, 4]]


def towers(fn: Any, inputs: Sequence[torch.Tensor], order: int) -> list[torch.Tensor]:
    """Value and derivatives of a scalar function of it, up to an order."""
    live = [t.detach().clone().requires_grad_() for t in inputs]
    values = [fn(*live)]
    out = list(values)
    for number in range(order):
        total = torch.stack([v.square().sum() for v in values]).sum()
        values = list(torch.autograd.grad(total, live, create_graph=number + 1 < order))
        out += values
    return [t.detach() for t in out]


def assert_equal(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        a, b = a.detach(), b.detach()
        assert (a - b).abs().max() <= 200 * EPS * max(1.0, float(b.abs().max()))  # sums of at most 200 terms


def product(layout: str, name: str, **kwargs: Any) -> eq.TensorProduct:
    torch.manual_seed(1)
    return eq.TensorProduct(IN1, IN2, OUT, PATHS, layout=layout, backend=name, **kwargs).double().to(DEVICE)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_a_product_and_two_derivatives(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[Task] = []
    real = backend.FormRunner.__call__
    monkeypatch.setattr(
        backend.FormRunner, "__call__", lambda self, *args: tasks.append(self.task) or real(self, *args)
    )
    inputs = [draw(3, 14), draw(3, 4)]
    got = towers(product(layout, "triton"), inputs, 2)
    assert {task.order for task in tasks} == {0, 1, 2}, "printed kernels must have run"
    assert_equal(got, towers(product(layout, "reference"), inputs, 2))


def test_a_convolution_and_two_derivatives() -> None:
    found = []
    for name in ("triton", "reference"):
        torch.manual_seed(2)
        conv = eq.TensorProductConv(IN1, IN2, OUT, PATHS, shared_weights=False, backend=name).double().to(DEVICE)
        inputs = [draw(4, 14), draw(6, 4), draw(6, conv.weight_numel)]
        edges = torch.tensor(EDGES, device=DEVICE)
        found.append(towers(lambda *a, conv=conv, edges=edges: conv(*a, edges, 5), inputs, 2))
    assert_equal(*found)


@pytest.mark.slow
def test_a_convolution_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three derivatives, all of them in one walk; an operator's key says so, a layer's repr, too."""
    torch.use_deterministic_algorithms(False)
    atomic: list[bool] = []
    real = backend.FormRunner.__call__
    monkeypatch.setattr(
        backend.FormRunner, "__call__", lambda self, *args: atomic.append("x" in self.plan.added) or real(self, *args)
    )
    found = []
    for name, ordered in (("triton", False), ("reference", True)):
        torch.manual_seed(2)
        conv = eq.TensorProductConv(IN1, IN2, OUT, PATHS, backend=name, deterministic=ordered).double().to(DEVICE)
        assert ("sums in any order" in repr(conv)) == (not ordered)
        inputs = [draw(4, 14), draw(6, 4), conv.weight.detach()]
        edges = torch.tensor(EDGES, device=DEVICE)
        found.append(towers(lambda x, y, w, conv=conv, edges=edges: conv(x, y, w, edges, 5), inputs, 3))
    assert any(atomic)
    assert_equal(*found)


def test_torch_has_the_last_word_on_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torch.use_deterministic_algorithms(True) the ordered variant runs."""
    conv = eq.TensorProductConv(IN1, IN2, OUT, PATHS, backend="triton", deterministic=False).double().to(DEVICE)
    made: list[bool] = []
    real = backend.FormRunner.__init__
    monkeypatch.setattr(backend.FormRunner, "__init__", lambda self, *args: made.append(args[6]) or real(self, *args))
    for ordered in (True, False):
        monkeypatch.setattr(forms, "RUNNERS", {})
        torch.use_deterministic_algorithms(ordered)
        conv(draw(4, 14).requires_grad_(), draw(6, 4), None, torch.tensor(EDGES, device=DEVICE), 5).sum().backward()
        assert made.pop() is (not ordered)


def test_scales_and_weights_per_sample() -> None:
    x, s = draw(3, 14), draw(3, 8)
    for task, values, given in (("external", None, (x, s)), ("fixed", 2.0, (x,)), ("learned", None, (x,))):
        scales = [eq.SO3Scale(IN1, task, values, backend=name).double().to(DEVICE) for name in ("triton", "reference")]
        assert_equal([scales[0](*given)], [scales[1](*given)])
    both = [product("mul_ir", name, shared_weights=False, internal_weights=False) for name in ("triton", "reference")]
    inputs = [draw(3, 14), draw(3, 4), draw(3, both[0].weight_numel)]
    assert_equal(towers(both[0], inputs, 1), towers(both[1], inputs, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    x, y = draw(3, 14).to(dtype), draw(3, 4).to(dtype)
    want = product("ir_mul", "reference").to(dtype).double()(x.double(), y.double())
    got = product("ir_mul", "triton").to(dtype)(x, y)
    assert got.dtype == dtype
    # rounded once, and truncated by the interpreter
    assert (got.double() - want).abs().max() <= 2 * torch.finfo(dtype).eps * want.abs().max()


def test_what_is_not_printed_is_refused_and_said() -> None:
    mixing = eq.FullyConnectedTensorProduct("2x0e + 1o", "2x1o", "2x1o", backend="triton").double().to(DEVICE)
    with pytest.raises(eq.errors.BackendError, match="'triton' must"):
        mixing(draw(3, 5), draw(3, 6))
    told = mixing.explain(DEVICE).splitlines()
    assert told[1].endswith("paths: triton was named and refuses, so that the layer raises BackendError")
    assert told[2].startswith("    triton: refuses: has ")
    assert product("mul_ir", "triton").explain(DEVICE).splitlines()[1] == "  all 4 paths: triton runs"


def test_empty_batches_and_strided_rows() -> None:
    layer, definition = product("mul_ir", "triton"), product("mul_ir", "reference")
    assert layer(draw(0, 14), draw(0, 4)).shape == (0, definition.irreps_out.dim)
    x, y = draw(14, 3).t(), draw(4)
    assert_equal([layer(x, y)], [definition(x, y)])


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU it is the first choice")
def test_the_interpreter_runs_only_when_named() -> None:
    assert product("mul_ir", "cpu").selected_backend() == "cpu"
    assert eq.TensorProduct(IN1, IN2, OUT, PATHS).selected_backend() == "cpu"


def test_operators_say_what_they_want() -> None:
    layer = product("mul_ir", "triton")
    weight, key = layer.weight.detach(), layer.plan.form.calls[False, True].key
    with pytest.raises(eq.errors.ShapeError, match=r"y must be \[3, 4\] for this form, got \[3, 5\]"):
        torch.ops.eqlayers.form([draw(3, 14), draw(3, 5), weight], None, 3, 0, 0, key, "triton")
    with pytest.raises(eq.errors.BackendError, match="must run whole forms here, got 'torch'"):
        torch.ops.eqlayers.form([draw(3, 14), draw(3, 4), weight], None, 3, 0, 0, key, "torch")


def test_slices_ask_for_no_kernel_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles for aligned addresses; what begins elsewhere is copied."""
    seen: list[int] = []
    real = backend.FormRunner.__call__

    def spy(self: Any, tensors: Any, tables: Any) -> Any:
        seen.extend(tensor.data_ptr() % 16 for tensor in tensors.values())
        return real(self, tensors, tables)

    monkeypatch.setattr(backend.FormRunner, "__call__", spy)
    layer, definition = product("mul_ir", "triton"), product("mul_ir", "reference")
    x, y = draw(43)[1:].view(3, 14), draw(13)[1:].view(3, 4)
    assert x.data_ptr() % 16 == 8
    assert_equal([layer(x, y)], [definition(x, y)])
    assert set(seen) == {0}


@pytest.mark.gpu
def test_convolutions_that_mix_channels_repeat_bit_by_bit() -> None:
    torch.use_deterministic_algorithms(False)
    conv = eq.TensorProductConv("8x0e + 8x1o", "0e + 1o", "8x0e", [(0, 0, 0, "uvw", True), (1, 1, 0, "uvw", True)])
    conv = conv.to(DEVICE)
    x, y = torch.randn(50, 32, device=DEVICE), torch.randn(20000, 4, device=DEVICE)
    edges = torch.randint(50, (2, 20000), device=DEVICE)
    assert torch.equal(conv(x, y, None, edges), conv(x, y, None, edges))
