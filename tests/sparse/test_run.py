"""Which backend runs a sparse product or scale, and the error of a named backend that does not support the call."""

import pytest
import torch

from eqlayers.errors import BackendError, ConfigError
from eqlayers.functional import sparse_mul, sparse_scale
from eqlayers.sparse import SparseProductInfo, SparseScaleInfo
from eqlayers.sparse.call import ProductCall, ScaleCall
from eqlayers.sparse.function import WAYS, Way, select
from eqlayers.sparse.table import parse
from eqlayers_kernels.triton import availability


def product_call(spec="u,u->u", device="cpu"):
    x = torch.ones(2, 3, *(1 for _ in spec.split(",")[0]), device=device)
    return ProductCall(parse(spec), x, x, SparseProductInfo(), (True, True, True), 2)


CALLS = {"product": product_call(), "scale": ScaleCall(torch.ones(2, 3, 1), SparseScaleInfo(None, None, None))}


@pytest.fixture
def ways(monkeypatch):
    """An empty table, and a function that adds a way whose results are the length of its name."""
    real = dict(WAYS)
    WAYS.clear()

    def add(name, reason=None, **options):
        def run(call):
            return torch.full_like(call.x, len(name))

        WAYS[name] = Way(run, run, lambda call: reason, **options)

    yield add
    WAYS.clear()
    WAYS.update(real)


def test_the_order_of_preference():
    assert list(WAYS) == ["triton", "cpu", "torch", "reference"]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_cpu_tensors_run_on_torch_and_never_on_the_reference_unasked(call, monkeypatch):
    monkeypatch.setattr(availability, "interpreted", lambda: False)
    assert select(call) == "torch"
    assert select(call, "reference") == "reference"
    with pytest.raises(BackendError, match=r"'triton' .* needs CUDA or HIP tensors, got cpu\. Pass backend=None"):
        select(call, "triton")
    with pytest.raises(BackendError, match="'cpu' must"):
        select(call, "cpu")


def test_the_first_that_accepts_runs(ways):
    ways("a", "refuses all")
    ways("bb", only_named=lambda call: True)
    ways("ccc")
    ways("dddd")
    x = torch.ones(2, 3, 1)
    assert (sparse_mul(x, x, SparseProductInfo()) == 3).all()
    assert (sparse_mul(x, x, SparseProductInfo(), backend="dddd") == 4).all()
    assert (sparse_scale(x, SparseScaleInfo(None, None, None), backend="bb") == 2).all()
    message = r"backend 'a' must accept this call, but it refuses all\. Pass backend=None"
    with pytest.raises(BackendError, match=message):
        sparse_mul(x, x, SparseProductInfo(), backend="a")
    with pytest.raises(BackendError, match=message):
        sparse_scale(x, SparseScaleInfo(None, None, None), backend="a")


def test_unknown_names():
    with pytest.raises(ConfigError, match=r"one of triton, cpu, torch, reference or None, got 'cuda'\. Pass one"):
        select(CALLS["product"], "cuda")


def test_triton_is_not_chosen_for_the_interpreter(monkeypatch):
    monkeypatch.setattr(availability, "interpreted", lambda: True)
    monkeypatch.setattr(availability, "why_not", lambda: None)
    assert select(CALLS["product"]) == "torch"
    assert select(CALLS["product"], "triton") == "triton"
    with pytest.raises(BackendError, match=r"kernels for the seven named products \(mul, .*got channels 'uv,uv->u'"):
        select(product_call("uv,uv->u"), "triton")


def test_triton_refuses_other_devices():
    call = product_call(device="meta")
    assert WAYS["triton"].refuse(call) == "needs CUDA or HIP tensors, got meta"
    assert select(call) == "torch"
