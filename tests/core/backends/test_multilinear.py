"""Torch in place of kernels that do not compile: the same numbers, and the reason said once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

import eqlayers as eq
from eqlayers.core.backends import forms
from eqlayers.core.backends import triton as backend
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.errors import KernelError
from eqlayers_kernels.triton.run.formula_run import FormulaRunner
from tests.core.backends.triton import test_formulas as formulas
from tests.core.backends.triton import test_tables as tabled
from tests.core.backends.triton.test_forms import (
    DEVICE,
    EDGES,
    IN1,
    IN2,
    OUT,
    PATHS,
    assert_equal,
    draw,
    product,
    towers,
)

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Kernels that do not compile, of products and of formulas; and who tried."""
    tried: list[object] = []

    def fail(self: object, *operands: object) -> None:
        tried.append(self)
        raise KernelError("CalledProcessError: ptxas fatal")

    monkeypatch.setattr(forms, "RUNNERS", {})
    monkeypatch.setattr(backend.FormRunner, "__call__", fail)
    monkeypatch.setattr(FormulaRunner, "__call__", fail)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "kernels of the", RuntimeWarning)
        yield tried


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("shared", [False, True])
def test_products_and_three_derivatives(broken: list[object], layout: str, shared: bool) -> None:
    inputs = [draw(3, 14), draw(3, 4)]
    numel = product(layout, "reference").weight_numel
    inputs.append(draw(numel) if shared else draw(3, numel))
    kind = {"shared_weights": shared, "internal_weights": False}
    got = towers(product(layout, "triton", **kind), inputs, 3)
    assert len(broken) >= 3
    assert_equal(got, towers(product(layout, "reference", **kind), inputs, 3))


@pytest.mark.parametrize("deterministic", [False, True])
def test_convolutions_and_two_derivatives(broken: list[object], deterministic: bool) -> None:
    found = []
    for name in ("triton", "reference"):
        kind = {"shared_weights": False, "deterministic": deterministic, "backend": name}
        conv = eq.TensorProductConv(IN1, IN2, OUT, PATHS, **kind).double().to(DEVICE)
        torch.manual_seed(2)
        inputs = [draw(4, 14), draw(6, 4), draw(6, conv.weight_numel)]
        edges = torch.tensor(EDGES, device=DEVICE)
        found.append(towers(lambda *a, conv=conv, edges=edges: conv(*a, edges, 5), inputs, 2))
    assert broken
    assert_equal(*found)


#: Modes whose paths have one axis at most, which kernels are printed for; some operands have no such axis.
MODES = [
    ("uuu", ("4x1o", "4x1o", "4x1e")),
    ("uuw", ("1x1o", "1x1o", "4x0e")),
    ("uvw", ("4x0e", "1x1o", "1x1o")),
    ("uvv", ("1x1o", "4x1o", "4x0e")),
    ("uvw", ("1x1o", "1x0e", "4x1o")),
]


@pytest.mark.parametrize(("mode", "irreps"), MODES)
def test_modes_of_one_axis(broken: list[object], mode: str, irreps: tuple[str, str, str]) -> None:
    paths = [(0, 0, 0, mode, True)]
    layers = [eq.TensorProduct(*irreps, paths, backend=name).double().to(DEVICE) for name in ("triton", "torch")]
    layers[1].load_state_dict(layers[0].state_dict())
    inputs = [draw(3, layers[0].irreps_in1.dim), draw(3, layers[0].irreps_in2.dim), layers[0].weight.detach()]
    assert_equal(*(towers(layer, inputs, 2) for layer in layers))
    assert broken


@pytest.mark.parametrize(("reads", "orders"), [(4, 1), (6, 3)])
def test_weights_from_tables_and_two_derivatives(broken: list[object], reads: int, orders: int) -> None:
    given, edges = tabled.operands(reads, orders, 24), tabled.graph(24)
    found = tabled.derivatives(tabled.conv("ir_mul", "triton"), given, orders, edges, stored=False)
    assert broken
    assert_equal(found, tabled.derivatives(tabled.conv("ir_mul", "torch"), given, orders, edges, stored=True))


def test_half_precision_is_summed_in_float32(broken: list[object]) -> None:
    inputs = [draw(3, 14).bfloat16(), draw(3, 4).bfloat16()]
    got = product("ir_mul", "triton").bfloat16()(*inputs)
    want = product("ir_mul", "torch").bfloat16()(*inputs)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("name", formulas.FORMS)
def test_formulas_and_two_derivatives(broken: list[object], name: str) -> None:
    """Row by row, and with rows of senders and receivers."""
    found = [formulas.results(formulas.FORMS[name], who, torch.float64) for who in ("triton", "reference")]
    assert any(isinstance(one, FormulaRunner) for one in broken)
    for got, want in zip(*found, strict=True):
        assert float((got - want).abs().max()) <= 400 * 2.0**-53 * max(1.0, float(want.abs().max()))


def test_the_reason_is_said_once(broken: list[object]) -> None:
    layer, inputs = product("ir_mul", "triton"), [draw(3, 14), draw(3, 4)]
    with pytest.warns(
        RuntimeWarning, match=r"kernels of the .* must compile for .*, got CalledProcessError: ptxas fatal"
    ):
        layer(*inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(*inputs)
    assert len(broken) == 1, "what does not compile is not compiled again"
