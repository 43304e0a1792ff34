"""Backends that are asked to run a call, their order, and the error where none runs it."""

from dataclasses import replace

import pytest
import torch

import eqlayers
from eqlayers.core.backends import BACKENDS, Backend, find, register, select, verdicts
from eqlayers.core.forms.request import Request
from eqlayers.errors import BackendError, ConfigError

CALL = Request(None, "", torch.float32, torch.device("cpu"))


def fake(name, reason=None, **options):
    """A backend that refuses with a reason, or accepts."""
    return Backend(name, lambda call: reason, **options)


@pytest.fixture
def registry():
    """An empty registry; the real one comes back afterwards."""
    real = dict(BACKENDS)
    BACKENDS.clear()
    yield BACKENDS
    BACKENDS.clear()
    BACKENDS.update(real)


def test_the_order_of_preference():
    assert list(BACKENDS) == ["triton", "cpu", "torch", "sparse", "reference"]
    assert [b.automatic for b in BACKENDS.values()] == [True, True, True, True, False]
    assert all(find(name).name == name for name in BACKENDS)


def test_the_reference_is_not_chosen_even_when_all_others_refuse(registry):
    for backend in (fake("first", "is asleep"), fake("second", "needs a moon"), fake("reference", automatic=False)):
        register(backend)
    with pytest.raises(BackendError, match=r"each refused:\n  first: is asleep\n  second: needs a moon$"):
        select(CALL)
    assert select(CALL, "reference").name == "reference"


def test_the_first_that_accepts_runs(registry):
    for backend in (fake("a", "refuses all"), fake("bb", only_named=lambda call: True), fake("ccc"), fake("dddd")):
        register(backend)
    assert select(CALL).name == "ccc"
    assert [select(CALL, name).name for name in ("bb", "dddd")] == ["bb", "dddd"]
    assert verdicts(CALL) == {
        "a": "refuses: refuses all",
        "bb": "accepts, only when named",
        "ccc": "runs",
        "dddd": "accepts, behind the chosen one",
    }


def test_a_named_backend_that_refuses_says_why_and_nothing_else_runs(registry):
    register(fake("moon", "needs a full moon, got a new one"))
    register(fake("torch"))
    message = r"backend 'moon' must accept this call, but it needs a full moon, got a new one\. Pass backend=None"
    with pytest.raises(BackendError, match=message):
        select(CALL, "moon")


def test_unknown_names():
    for function in (lambda: find("cuda"), lambda: select(CALL, "cuda")):
        with pytest.raises(
            ConfigError, match=r"one of triton, cpu, torch, sparse, reference or None, got 'cuda'\. Pass one"
        ):
            function()


def test_names_are_registered_once(registry):
    register(fake("twice"))
    with pytest.raises(ConfigError, match="must be new, got 'twice' again"):
        register(fake("twice"))
    assert list(registry) == ["twice"]


def test_only_torch_runs_on_other_devices():
    call = replace(CALL, device=torch.device("meta"))
    assert verdicts(call)["triton"] == "refuses: needs CUDA or HIP tensors, got meta"
    assert verdicts(call)["cpu"] == "refuses: needs CPU tensors, got meta"
    assert select(call).name == "torch"


def test_explain_gives_every_verdict():
    text = eqlayers.explain()
    assert text.splitlines()[:2] == ["TensorProduct on cpu, torch.float32, backend=auto", "  all 1 paths: cpu runs"]
    assert "    cpu: runs" in text
    assert "    torch: accepts, behind the chosen one" in text
    assert "    sparse: accepts, behind the chosen one" in text
    assert "    reference: accepts, only when named" in text
    assert "    triton: accepts, only when named" in text  # the interpreter, on CPU tensors
    assert "torch.float64" in eqlayers.explain(dtype=torch.float64)
