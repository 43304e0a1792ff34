"""Who is asked to run a call, in which order, and what is said when nobody does."""

import pytest
import torch

import eqlayers
from eqlayers.backends import BACKENDS, Backend, find, register, select, verdicts
from eqlayers.errors import BackendError, ConfigError
from eqlayers.functional import sparse_mul, sparse_scale
from eqlayers.info import SparseProductInfo, SparseScaleInfo
from eqlayers.ops.call import ProductCall, ScaleCall
from eqlayers.ops.channels import parse
from eqlayers_kernels.triton import availability


def product_call(spec="u,u->u", device="cpu"):
    x = torch.ones(2, 3, *(1 for _ in spec.split(",")[0]), device=device)
    return ProductCall(parse(spec), x, x, SparseProductInfo(), (True, True, True), 2)


CALLS = {"product": product_call(), "scale": ScaleCall(torch.ones(2, 3, 1), SparseScaleInfo(None, None, None))}


def fake(name, reason=None, **options):
    """A backend that returns its name's length everywhere, or refuses with a reason."""

    def run(call):
        return torch.full_like(call.x, len(name))

    return Backend(name, run, run, lambda call: reason, **options)


@pytest.fixture
def registry():
    """An empty registry; the real one comes back afterwards."""
    real = dict(BACKENDS)
    BACKENDS.clear()
    yield BACKENDS
    BACKENDS.clear()
    BACKENDS.update(real)


def test_the_order_of_preference():
    assert list(BACKENDS) == ["triton", "cpu", "torch", "reference"]
    assert [b.automatic for b in BACKENDS.values()] == [True, True, True, False]
    assert all(find(name).name == name for name in BACKENDS)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_cpu_tensors_run_on_torch_and_never_on_the_reference_unasked(call):
    assert select(call).name == "torch"
    assert select(call, "reference").name == "reference"
    assert verdicts(call)["torch"] == "runs"
    assert verdicts(call)["reference"] == "accepts, only when named"


def test_the_reference_is_not_chosen_even_when_all_others_refuse(registry):
    for backend in (fake("first", "is asleep"), fake("second", "needs a moon"), fake("reference", automatic=False)):
        register(backend)
    message = r"each refused:\n  first: is asleep\n  second: needs a moon$"
    for call in CALLS.values():
        with pytest.raises(BackendError, match=message):
            select(call)
        assert select(call, "reference").name == "reference"


def test_the_first_that_accepts_runs(registry):
    for backend in (fake("a", "refuses all"), fake("bb", only_named=lambda call: True), fake("ccc"), fake("dddd")):
        register(backend)
    x = torch.ones(2, 3, 1)
    assert (sparse_mul(x, x, SparseProductInfo()) == 3).all()
    assert (sparse_mul(x, x, SparseProductInfo(), backend="dddd") == 4).all()
    assert (sparse_scale(x, SparseScaleInfo(None, None, None), backend="bb") == 2).all()
    assert verdicts(CALLS["product"]) == {
        "a": "refuses: refuses all",
        "bb": "accepts, only when named",
        "ccc": "runs",
        "dddd": "accepts, behind the chosen one",
    }


def test_a_named_backend_that_refuses_says_why_and_nothing_else_runs(registry):
    register(fake("moon", "needs a full moon, got a new one"))
    register(fake("torch"))
    message = r"backend 'moon' must accept this call, but it needs a full moon, got a new one\. Pass backend=None"
    x = torch.ones(2, 3, 1)
    with pytest.raises(BackendError, match=message):
        sparse_mul(x, x, SparseProductInfo(), backend="moon")
    with pytest.raises(BackendError, match=message):
        sparse_scale(x, SparseScaleInfo(None, None, None), backend="moon")


def test_unknown_names():
    for function in (lambda: find("cuda"), lambda: select(CALLS["product"], "cuda")):
        with pytest.raises(ConfigError, match=r"one of triton, cpu, torch, reference or None, got 'cuda'\. Pass one"):
            function()


def test_names_are_registered_once(registry):
    register(fake("twice"))
    with pytest.raises(ConfigError, match="must be new, got 'twice' again"):
        register(fake("twice"))
    assert list(registry) == ["twice"]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_triton_refuses_cpu_tensors_outside_its_interpreter(call, monkeypatch):
    monkeypatch.setattr(availability, "interpreted", lambda: False)
    with pytest.raises(BackendError, match=r"'triton' .* needs CUDA or HIP tensors, got cpu\. Pass backend=None"):
        select(call, "triton")
    assert select(call).name == "torch"
    assert verdicts(call)["triton"] == "refuses: needs CUDA or HIP tensors, got cpu"


def test_triton_is_not_chosen_for_the_interpreter(monkeypatch):
    monkeypatch.setattr(availability, "interpreted", lambda: True)
    monkeypatch.setattr(availability, "why_not", lambda: None)
    assert select(CALLS["product"]).name == "torch"
    assert select(CALLS["product"], "triton").name == "triton"
    assert verdicts(CALLS["product"])["triton"] == "accepts, only when named"
    with pytest.raises(BackendError, match=r"kernels for the seven named products \(mul, .*got channels 'uv,uv->u'"):
        select(product_call("uv,uv->u"), "triton")


def test_triton_refuses_other_devices():
    call = product_call(device="meta")
    assert verdicts(call)["triton"] == "refuses: needs CUDA or HIP tensors, got meta"
    assert select(call).name == "torch"


def test_explain_gives_every_verdict():
    text = eqlayers.explain()
    assert text.splitlines()[:2] == [
        "TensorProduct on cpu, torch.float32, backend=auto",
        "  all 1 paths: cpu runs",
    ]
    assert "    cpu: runs" in text
    assert "    torch: accepts, behind the chosen one" in text
    assert "    reference: accepts, only when named" in text
    assert "    triton: accepts, only when named" in text  # the interpreter, on CPU tensors
    assert "torch.float64" in eqlayers.explain(dtype=torch.float64)
