"""Layers of the catalogue on printed Triton kernels, in the interpreter or on a GPU, against the definition."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from eqlayers.core.backends import ahead
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run.forms import FormRunner
from eqlayers_kernels.triton.run.formula_run import FormulaRunner
from tests.kernels.layer_kinds import KINDS, orders

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")
DEVICE = "cpu" if availability.interpreted() else "cuda"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the printed kernels that are launched."""
    names: set[str] = set()
    for runner in (FormRunner, FormulaRunner):
        real = runner.__call__

        def call(self: Any, *args: Any, real: Any = real) -> Any:
            kernels = self.kernels if isinstance(self, FormulaRunner) else self.plan.kernels
            names.update(kernel.text.name for kernel in kernels)
            return real(self, *args)

        monkeypatch.setattr(runner, "__call__", call)
    return names


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", KINDS)
def test_values_and_two_derivatives_are_those_of_the_definition(name: str, ran: set[str]) -> None:
    kind, dtype = KINDS[name], torch.float64
    given = {key: value.to(DEVICE) for key, value in kind.arguments(dtype).items()}
    got = orders(kind.layer("triton", dtype).to(DEVICE), given)
    assert ran == set(kind.kernels.split())
    wanted = orders(kind.layer("reference", dtype).to(DEVICE), given)
    for a, b in zip(got, wanted, strict=True):
        # sums of some hundred terms, in layers of layers
        assert float((a - b).abs().max()) <= 1000 * torch.finfo(dtype).eps * max(1.0, float(b.abs().max()))
    assert all(bool(t.any()) for t in got[: len(got) // 3])


@pytest.mark.parametrize("name", ["gate", "weights_of_heads"])
def test_kernels_of_a_step_are_launched_before_it(name: str, ran: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch compiles a kernel on a GPU; the interpreter takes one thread at a time."""
    monkeypatch.setattr(ahead, "MOST_THREADS", 1)
    kind, dtype = KINDS[name], torch.float64
    given = {key: value.to(DEVICE) for key, value in kind.arguments(dtype).items()}
    layer = kind.layer("triton", dtype).to(DEVICE)
    assert ahead.compile_ahead(lambda: orders(layer, given)) > 2, "values and derivatives"
    assert ran == set(kind.kernels.split())
