"""Tensor products where the C compiler is missing or breaks: what is reported, what is kept, and what runs instead."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import eqlayers as eq
from eqlayers.core.backends import cpu, forms, tables, verdicts
from eqlayers.core.forms.request import Request
from eqlayers.errors import BackendError
from eqlayers_kernels.c.build import cache, compiler

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler named cc")
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 0, "uvw", True)]
EDGES = torch.tensor([[5, 0, 3, 3, 5, 0], [2, 2, 0, 6, 2, 1]])


def layer(layout: str = "mul_ir", backend: str | None = None) -> eq.TensorProduct:
    options: dict[str, Any] = {"shared_weights": False, "internal_weights": False, "layout": layout}
    return eq.TensorProduct("5x0e + 4x1o", "0e + 1o", "5x0e + 5x1o", PATHS, backend=backend, **options)


@pytest.fixture
def inputs() -> list[Tensor]:
    return [torch.randn(6, 17), torch.randn(6, 4), torch.randn(6, layer().weight_numel)]


def test_without_a_compiler_layers_say_so_once_and_run_on_torch(
    monkeypatch: pytest.MonkeyPatch, inputs: list[Tensor]
) -> None:
    monkeypatch.setattr(forms, "RUNNERS", {})  # kernels that are loaded run on
    monkeypatch.setenv("CC", "/nonexistent/cc")
    monkeypatch.setattr(cpu, "_warned", set())
    ours, theirs, graph = layer(), layer(backend="torch"), eq.Graph(EDGES, 6, 7)
    reason = "needs a C compiler: CC is '/nonexistent/cc', and there is no such program; correct CC, or unset it"
    with pytest.warns(RuntimeWarning, match="expected to run layers as generated C, but") as caught:
        z = ours(*inputs)
    assert len(caught) == 1
    assert f"backend 'cpu' {reason}. They run on backend 'torch'" in str(caught[0].message)
    again = [ours(*inputs), layer("ir_mul")(*inputs) * 0, eq.functional.tensor_product_conv(ours.plan, *inputs, graph)]
    assert torch.equal(z, theirs(*inputs))
    assert torch.equal(again[0], z)
    want = eq.functional.tensor_product_conv(theirs.plan, *inputs, graph, backend="torch")
    assert torch.equal(again[2], want)
    assert verdicts(Request(None, "", torch.float32, torch.device("cpu")))["cpu"] == f"refuses: {reason}"
    assert ours.selected_backend() == "torch"
    named = layer(backend="cpu")
    told = named.explain().splitlines()
    assert told[1].endswith("paths: cpu was named and refuses, so that the layer raises BackendError")
    assert f"    cpu: refuses: {reason}" in told
    assert len(told) == 7  # one for the layer, one for what happens, and one for each backend
    with pytest.raises(BackendError) as refused:
        named(*inputs)
    assert str(refused.value) == (
        f"backend 'cpu' must accept this call, but it {reason}. Pass backend=None to let one be chosen."
    )


# -- compilers that break ---------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """A process that has compiled nothing, with an empty cache; called with a script, makes that the compiler."""
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr(compiler, "_loaded", {})
    monkeypatch.setattr(forms, "RUNNERS", {})
    compiler._tried.clear()
    tables._loaded.cache_clear()

    def make(body: str = "") -> Path:
        script = tmp_path / "cc"
        script.write_text(f'#!/bin/sh\n{body}\nexec "{shutil.which("cc")}" "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CC", str(script))
        return tmp_path / "cache" / "kernels"

    yield make
    compiler._tried.clear()
    tables._loaded.cache_clear()


BREAKS = 'for o; do :; done; case "$*" in *"-o %s"*) printf half > %s_float32.so; %s;; esac'


@needs_cc
@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("exit 4", "failed with status 4; set CC to a working gcc or clang"),
        ("kill -KILL $$", r"killed by signal 9 \(Killed\); is there enough memory"),
        ("exit 0", "expected a shared object from .*, got 4 bytes of something else; set CC"),
    ],
)
def test_a_compiler_that_breaks(fresh: Callable[..., Path], inputs: list[Tensor], end: str, message: str) -> None:
    """A clear error, nothing half-written; with the compiler in order again, the next call works."""
    folder = fresh(BREAKS % ("forward", "forward_rows", end))
    tp = layer()
    with pytest.raises(BackendError, match=rf"(?s){message}.*\. Or pass backend='torch'\."):
        tp(*inputs)
    assert not [path for path in folder.iterdir() if path.name.startswith(("forward", ".tmp"))]
    fresh()
    torch.testing.assert_close(tp(*inputs), layer(backend="torch")(*inputs))
    assert len([path for path in folder.iterdir() if path.name.startswith("forward")]) == 1


@needs_cc
def test_a_compiler_that_breaks_between_forward_and_backward(fresh: Callable[..., Path], inputs: list[Tensor]) -> None:
    fresh(BREAKS % ("backward", "backward_rows", "exit 4"))
    inputs[0].requires_grad_()
    z = layer()(*inputs).sum()
    with pytest.raises(BackendError, match="failed with status 4"):
        z.backward(retain_graph=True)
    assert inputs[0].grad is None
    fresh()
    z.backward()
    assert inputs[0].grad is not None


@needs_cc
@pytest.mark.parametrize("what", ["import", "edges"])
def test_a_compiler_that_breaks_within_a_convolution(
    fresh: Callable[..., Path], inputs: list[Tensor], what: str
) -> None:
    fresh(BREAKS % (what, what, "exit 4"))
    plan, graph = layer().plan, eq.Graph(EDGES, 6, 7)
    with pytest.raises(BackendError, match=r"(?s)failed with status 4.*\. Or pass backend='torch'\."):
        eq.functional.tensor_product_conv(plan, *inputs, graph)
    fresh()
    z = eq.functional.tensor_product_conv(plan, *inputs, graph)
    torch.testing.assert_close(z, eq.functional.tensor_product_conv(plan, *inputs, graph, backend="torch"))


@needs_cc
def test_an_unusable_cache_is_one_warning_and_the_same_numbers(
    fresh: Callable[..., Path], inputs: list[Tensor]
) -> None:
    folder = fresh()
    folder.parent.write_text("occupied")
    with pytest.warns(RuntimeWarning, match="expected to keep compiled kernels in") as caught:
        z = layer()(*inputs)
    assert len(caught) == 1
    torch.testing.assert_close(z, layer(backend="torch")(*inputs))
