"""Products by a dense table of coefficients and term by term are the reference, within the bound of each dtype."""

import copy
import gc
import itertools
import math

import pytest
import torch

import eqlayers as eq
from eqlayers.functional import sparse_product, sparse_scale
from eqlayers.sparse import SparseProductInfo, channels_of, reference, sparse_product_infos, sparse_scale_infos
from eqlayers.sparse import plans as backend
from eqlayers.sparse.call import ProductCall
from eqlayers.sparse.table import NAMED
from tests.cases import default_dtype
from tests.covering import covering
from tests.each import each
from tests.fresh import fresh
from tests.sparse.rounding import rounding_bound

#: By plan, how many operations of a contraction take as long as one element of a term.
PLANS = {"dense": math.inf, "by terms": 0.0}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SPECS = [*NAMED, "uv,uv->u", "u,uvw->vw", "uv,vw->uw", "v,u->uv", ",->"]
TRIPLES = [t for t in itertools.product((True, False), repeat=3) if t != (False, False, False)]
BATCH = 3


def _segments():
    """Terms as segments with gather_index and index_out; empty segments, unnamed rows, repeated and dropped terms."""
    return SparseProductInfo(
        scale=torch.tensor([0.3, -1.2, 0.7, 2.1, -0.4, 1.9], dtype=torch.float64),
        index1=torch.tensor([0, 3, 1, 1, 3, 0]),
        index2=torch.tensor([2, 2, 0, 4, 4, 2]),
        seg_out=torch.tensor([0, 0, 2, 3, 3, 6]),
        gather_index=torch.tensor([5, 0, 3, 1, 1, 4]),
        index_out=torch.tensor([6, 0, 3, 1, 5]),
        out_size=7,
    )


def _runs(scale=None):
    """A weight that multiplies whole irreps: slices in which some operand stands still, and one that falls."""
    first, second, out = [0, 1, 2, 3, 3, 2, 0, 1, 2], [0, 0, 0, 1, 2, 3, 4, 4, 4], [0, 1, 2, 3, 3, 3, 4, 5, 6]
    return sparse_product_infos(first, second, out, scale, in1_size=4, in2_size=5, out_size=7)[0]


INFOS = {
    "segments": _segments(),
    "runs": _runs(),
    "runs of one coefficient": _runs([2.5] * 3 + [0.1] * 3 + [-1.0] * 3),
    "runs of many coefficients": _runs([0.5, 1.5, -2.5, 3.5, 0.7, 0.3, 0.1, 1.1, -0.9]),
    "once each": sparse_product_infos([3, 0, 1, 2], [4, 2, 0, 0], range(4), in1_size=4, in2_size=5, out_size=4)[0],
    "one row": sparse_product_infos([0, 1, 2, 3], [1, 2, 3, 4], [2] * 4, in1_size=4, in2_size=5, out_size=3)[0],
    "unnamed": sparse_product_infos([1, 2], [0, 1], [1, 2], [0.5, 3.0], in1_size=4, in2_size=5, out_size=5)[0],
}


@pytest.fixture
def force(monkeypatch):
    def only(plan):
        monkeypatch.setattr(backend, "OPERATIONS", PLANS[plan])
        for info in INFOS.values():  # they keep the choice
            info.__dict__.pop("_cache", None)

    yield only
    for info in INFOS.values():
        info.__dict__.pop("_cache", None)


def operands(spec, batched, extents=None, dtype=torch.float64, rows=(4, 5)):
    sizes = {"u": 3, "v": 2, "w": 4} | (extents or {})
    channels = channels_of(spec)
    for flag, letters, size in zip(batched, channels, rows, strict=False):
        yield torch.randn([BATCH] * flag + [size] + [sizes[c] for c in letters], dtype=torch.float64).to(dtype)


def check(spec, x, y, info, triple, dtype):
    batch = BATCH if any(triple) else 1
    call = ProductCall(channels_of(spec), x, y, info, triple, batch)
    exact = ProductCall(channels_of(spec), x.double(), y.double(), info, triple, batch)
    got, want = backend.product(call), reference.product(exact)
    assert got.dtype == dtype
    assert got.shape == want.shape == call.out_shape
    error = (got.double() - want).abs()
    bound = rounding_bound(spec, x, y, info, dtype, out_accumulated=not triple[2])
    if triple == (False, False, True):
        bound = bound.expand(want.shape)
    assert (error <= bound).all(), f"{triple}: {(error / bound).max():.2g} times the rounding bound"
    magnitude = rounding_bound(spec, x, y, info, torch.float64, out_accumulated=not triple[2])
    assert not got[(magnitude == 0).expand(got.shape)].any(), f"{triple}: rows that nothing names must be exactly zero"


STRIDES = {
    "contiguous": lambda t: t,
    "channels outermost": lambda t: t.movedim(-1, 0).contiguous().movedim(0, -1),
    "rows outermost": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "expanded": lambda t: t[:1].expand_as(t),
}
CASES = covering(
    {
        "plan": list(PLANS), "spec": SPECS, "triple": [*TRIPLES, (False, False, False)], "info": list(INFOS),
        "dtype": list(DTYPES), "extents": [(3, 2, 4), (1, 1, 1), (1, 5, 3), (7, 1, 2), (5, 3, 1)],
        "strides": list(STRIDES),
    }
)  # fmt: skip


@each("case", CASES)
def test_every_plan_is_the_reference_within_rounding(case, force):
    """Any product, info, batch axes, dtype, channel numbers and strides, each with each of the others."""
    force(case["plan"])
    extents = dict(zip("uvw", case["extents"], strict=True))
    pair = map(STRIDES[case["strides"]], operands(case["spec"], case["triple"], extents, case["dtype"]))
    check(case["spec"], *pair, INFOS[case["info"]], case["triple"], case["dtype"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@each("plan", PLANS)
def test_half_precision_is_summed_in_float32(plan, dtype, force):
    """256 positive terms: sums kept in half precision lose the small ones, far beyond one final rounding."""
    force(plan)
    pairs = torch.cartesian_prod(torch.arange(16), torch.arange(16)).T
    info = sparse_product_infos(*pairs, [0] * 256, in1_size=16, in2_size=16, out_size=1)[0]
    for spec, channels in (("mul", 1), ("outer", 1), ("inner", 3), ("vecmat", 3)):
        x, y = (t.abs() for t in operands(spec, (True, True), dtype=dtype, rows=(16, 16)))
        for accumulated, terms in ((False, 256 * channels), (True, 256 * channels * BATCH)):
            got = sparse_product(spec, x, y, info, out_accumulated=accumulated)
            want = sparse_product(spec, x.double(), y.double(), info, out_accumulated=accumulated, backend="reference")
            # All terms are positive: one rounding of the result, and float32's of the sum, relative to the sum.
            bound = want * (torch.finfo(dtype).eps / 2 + terms * torch.finfo(torch.float32).eps)
            error = (got.double() - want).abs()
            assert (error <= bound).all(), f"{spec}: {(error / bound).max():.2g} times the rounding bound"


@each("plan", PLANS)
def test_coefficients_stay_in_float64_whatever_ran_before(plan, force):
    force(plan)
    info = INFOS["runs of many coefficients"]._replace()  # with a cache of its own
    x, y = operands("vecmat", (True, True))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        sparse_product("vecmat", x.to(dtype), y.to(dtype), info)
    got, want = (sparse_product("vecmat", x, y, info, backend=b) for b in (None, "reference"))
    assert ((got - want).abs() <= 1e-15 * (1 + want.abs())).all()
    assert info.scale.dtype == torch.float64


@each("plan", PLANS)
def test_autocast_does_not_lower_the_sums(plan, force):
    force(plan)
    infos = sparse_product_infos([0, 3, 1], [4, 0, 2], [1, 1, 0], [0.1, 0.7, 1.3], in1_size=4, in2_size=5, out_size=2)
    for spec in ("vecmat", "mul", "inner"):
        x, y = operands(spec, (True, True), dtype=torch.float32)
        plain = sparse_product(spec, x, y, *infos)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            under = sparse_product(spec, x, y, *infos)
        assert under.dtype == torch.float32
        assert torch.equal(plain, under)
    assert not torch.is_autocast_enabled("cpu")


def test_terms_come_in_blocks(force, monkeypatch):
    force("by terms")
    for block in (1, 40, 100):
        monkeypatch.setattr(backend, "_BLOCK", block)
        for spec, info in itertools.product(("mul", "outer", "vecmat"), INFOS.values()):
            check(spec, *operands(spec, (True, True)), info, (True, True, True), torch.float64)


def test_a_table_that_would_be_huge_is_never_made(force):
    force("dense")
    specs = ["nI", "nJ", "nK"]
    assert backend._contraction(specs, dict.fromkeys("IJK", 200), 200) is None
    assert backend._contraction(specs, dict.fromkeys("IJK", 100), 100) is not None


def test_few_coefficients_are_read_term_by_term_and_many_as_a_table():
    specs, sizes = ["nIa", "nJ", "nKa"], dict.fromkeys("IJK", 40) | {"a": 32}
    assert backend._contraction(specs, sizes, 40) is None
    assert backend._contraction(specs, sizes, 40**3) is not None


def test_results_do_not_alias_the_operands():
    x = torch.ones(2, 3, 4, dtype=torch.float64)
    same, _ = sparse_scale_infos(range(3), range(3), in_size=3, out_size=3)
    plain = SparseProductInfo()
    results = [sparse_scale(x, same), sparse_product("mul", x, x, plain), sparse_product("vecsca", x, x[..., 0], plain)]
    for z in results:
        assert z.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        z.zero_()
    assert (x == 1).all()


@pytest.mark.parametrize("default", [torch.float64, torch.float16])
@each("plan", PLANS)
def test_torch_defaults_change_no_number(plan, default, force):
    force(plan)
    pairs = [(spec, info, *operands(spec, (True, True))) for spec, info in zip(SPECS, INFOS.values(), strict=False)]
    want = [sparse_product(spec, x, y, info._replace()) for spec, info, x, y in pairs]
    with default_dtype(default), torch.device("meta"):
        got = [sparse_product(spec, x, y, info._replace()) for spec, info, x, y in pairs]
        named = [sparse_product(s, x, y, i._replace(), backend="reference") for s, i, x, y in pairs]
    for a, b, c in zip(got, want, named, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-13, atol=1e-13)


def test_copies_and_loaded_layers_run_when_the_first_is_gone(tmp_path):
    """A composed layer is found by a key: copies, equal layers and other processes must know it."""

    def build():
        return eq.TensorProduct("7x0e", "0e + 1o", "7x1o", [(0, 1, 0, "uvu", True)], backend="torch")

    layer, twin = build(), build()
    twin_copy = copy.deepcopy(layer)
    torch.save(layer, tmp_path / "layer.pt")
    x, y = torch.ones(2, 7), torch.ones(2, 4)
    want = layer(x, y).detach()
    del layer
    gc.collect()
    assert torch.equal(twin_copy(x, y), want)
    twin(x, y)
    code = "import sys, torch; torch.load(sys.argv[1], weights_only=False)(torch.ones(2, 7), torch.ones(2, 4))"
    done = fresh(code, str(tmp_path / "layer.pt"))
    assert done.returncode == 0, done.stderr
