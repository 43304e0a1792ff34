"""Backend triton against the float64 definition: in the interpreter without a GPU, compiled with one."""

import pytest
import torch

pytest.importorskip("triton", minversion="3.6")

from eqlayers.core.dtypes import ACCUMULATE
from eqlayers.sparse import SparseProductInfo, SparseScaleInfo, function, reference
from eqlayers.sparse import segments as backend
from eqlayers.sparse.call import ProductCall, ScaleCall
from eqlayers.sparse.table import NAMED, parse
from tests.covering import covering
from tests.each import each
from tests.fresh import fresh
from tests.sparse.rounding import rounding_bound

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
WIDTHS = {"u": 5, "v": 3}  # neither a power of two


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def coefficients(count: int) -> torch.Tensor:
    return torch.linspace(-1.3, 1.7, count, dtype=torch.float64)


# fields of the info, for operands with 3 and 4 sparse rows unless the last entry says otherwise
INDEX1, INDEX2 = ints(0, 1, 2, 2, 1, 0), ints(3, 1, 2, 0, 1, 0)
PATTERNS = {
    "all": (
        {"scale": coefficients(6), "index1": INDEX1, "index2": INDEX2, "seg_out": ints(0, 2, 2, 5),
             "gather_index": ints(1, 5, 3, 2, 4), "index_out": ints(3, 0, 2), "out_size": 5},
        (3, 4),
    ),
    "segments": ({"scale": coefficients(6), "index1": INDEX1, "index2": INDEX2, "seg_out": ints(0, 1, 1, 6)}, (3, 4)),
    "late first segment": ({"index1": INDEX1, "index2": INDEX2, "seg_out": ints(2, 3, 6)}, (3, 4)),
    "no scale": ({"index1": INDEX1, "index2": INDEX2, "seg_out": ints(0, 6), "out_size": 2}, (3, 4)),
    "no segments": ({"scale": coefficients(6), "index1": INDEX1, "index2": INDEX2}, (3, 4)),
    "no index1": ({"scale": coefficients(6), "index2": INDEX2, "seg_out": ints(0, 2, 6)}, (6, 4)),
    "no index2": ({"scale": coefficients(6), "index1": INDEX1, "seg_out": ints(0, 2, 6)}, (3, 6)),
    "only gather": ({"gather_index": ints(2, 0), "index_out": ints(1, 0), "out_size": 2}, (3, 3)),
    "nothing": ({}, (4, 4)),
    "empty segments": ({"index1": ints(), "index2": ints(), "seg_out": ints(0, 0, 0)}, (3, 4)),
    "no terms": ({"index1": ints(), "index2": ints(), "out_size": 2}, (3, 4)),
}  # fmt: skip
BATCHED = {
    "both": (True, True, True), "x only": (True, False, True), "y only": (False, True, True),
    "both, summed": (True, True, False), "x only, summed": (True, False, False),
    "y only, summed": (False, True, False), "neither": (False, False, True), "neither, summed": (False, False, False),
}  # fmt: skip
OPS = {**NAMED, "matrix of vecmat transposed": "u,vu->v", "result of outer transposed": "u,v->vu"}


def product_call(op="mul", pattern="all", batched="both", dtype=torch.float64, batch=3, widths=WIDTHS) -> ProductCall:
    channels, (fields, rows) = parse(OPS.get(op, op)), PATTERNS[pattern]
    info = SparseProductInfo(**fields)
    # masters are float64; the definition must see the coefficients that the kernel sees
    if info.scale is not None:
        info = info._replace(scale=info.scale.to(ACCUMULATE[dtype]).double())
    operands = [
        torch.randn(*([batch] if own else []), size, *(widths[c] for c in letters), dtype=torch.float64).to(
            DEVICE, dtype
        )
        for own, size, letters in zip(BATCHED[batched], rows, channels, strict=False)
    ]
    return ProductCall(channels, *operands, info.to(DEVICE), BATCHED[batched], batch)


def exact_and_bound(call: ProductCall | ScaleCall) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in float64, and the largest honest error per element."""
    dtype = call.x.dtype
    if isinstance(call, ScaleCall):  # a product with the scalar 1, one per term
        info, x = call.info.as_product(), call.x
        terms = info.rows(x.shape[1], x.shape[1])[0]
        return reference.scale(replaced(call, x=x.double())).cpu(), rounding_bound(
            "vecsca", x, x.new_ones(terms), info, dtype
        )
    want = reference.product(replaced(call, x=call.x.double(), y=call.y.double()))
    summed = not call.batched[2]
    bound = rounding_bound(str(call.channels), call.x, call.y, call.info, dtype, summed and any(call.batched))
    if summed and not any(call.batched):
        bound = bound * call.batch * call.batch  # the sum over the batch is N times as large and as long
    return want.cpu(), bound


def replaced(call, **fields):
    return type(call)(**{**{name: getattr(call, name) for name in call.__dataclass_fields__}, **fields})


def agree(call: ProductCall | ScaleCall) -> torch.Tensor:
    assert backend.refuse(call) is None
    got = (backend.product if isinstance(call, ProductCall) else backend.scale)(call)
    want, bound = exact_and_bound(call)
    assert got.dtype == call.x.dtype
    assert got.shape == want.shape
    error = (got.double().cpu() - want).abs()
    assert (error <= bound).all(), f"{(error / bound).max():.1f} times the rounding bound"  # false for NaN
    return got


def gapped(t: torch.Tensor) -> torch.Tensor:
    """A view with the numbers of ``t`` and steps of two in memory, where NaN lies behind every number."""
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1]), torch.nan, dtype=t.dtype, device=t.device)
    wide[..., ::2] = t
    return wide[..., ::2]


STRIDES = {
    "contiguous": lambda t: t,
    "reversed axes": lambda t: t.permute(*range(t.ndim)[::-1]).contiguous().permute(*range(t.ndim)[::-1]),
    "gaps": gapped,
    "expanded": lambda t: t[:1].expand_as(t),
}
CASES = covering(
    {
        "op": list(OPS),
        "pattern": list(PATTERNS),
        "batched": list(BATCHED),
        "dtype": [torch.float64, torch.float32, torch.float16, torch.bfloat16],
        "strides": list(STRIDES),
        "size": [(3, WIDTHS), (0, WIDTHS), (3, {"u": 0, "v": 3}), (1, {"u": 1, "v": 1})],
    },
    lambda case: (
        (case.get("strides") != "gaps" or case.get("op") not in ("vecsca", "scavec"))  # a scalar has no channels
        and ("size" not in case or case["size"][0] or case.get("batched") != "neither, summed")  # a sum of no rows
    ),
)


@each("case", CASES)
def test_every_product(case):
    """Any op, absent fields, batch axes, dtype, strides and sizes, each with each of the others."""
    batch, widths = case["size"]
    call = product_call(case["op"], case["pattern"], case["batched"], case["dtype"], batch, widths)
    strided = STRIDES[case["strides"]]
    agree(replaced(call, x=strided(call.x), y=strided(call.y)))


@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    """A sum of 256 equal terms in half precision loses many: its spacing grows past the term."""
    zeros = torch.zeros(256, dtype=torch.int64)
    info = SparseProductInfo(index1=zeros, index2=zeros, seg_out=ints(0, 256))
    x = torch.full((1, 1, 2), 1.25, dtype=dtype, device=DEVICE)
    y = torch.full((1, 1, 2), 3.0, dtype=dtype, device=DEVICE)
    agree(ProductCall(parse("u,u->u"), x, y, info.to(DEVICE), (True, True, True), 1))


@pytest.mark.parametrize("op", ["mul", "outer", "inner", "vecmat", "vecsca"])
def test_many_tiles(op, monkeypatch):
    """Channels and batch longer than one tile, with a ragged last one; sums over the batch in several pieces."""
    from eqlayers_kernels.triton.print import tuning

    small = {
        name: row._replace(block_u=4, block_v=min(row.block_v, 2), elements=32) for name, row in tuning.TABLE.items()
    }
    monkeypatch.setattr(tuning, "TABLE", small)
    monkeypatch.setattr(tuning, "TILES_PER_CHUNK", 2)
    agree(product_call(op, "segments", batch=5))
    agree(product_call(op, "segments", batched="both, summed", batch=13, dtype=torch.float32))


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # NumPy says so of inf * 0
def test_what_is_not_finite_stays_in_its_rows():
    """Lanes behind the last row of the batch must not turn inf into NaN, in a sum over the batch either."""
    call = product_call("mul", "segments", batched="x only, summed")
    y = torch.full_like(call.y, torch.inf)
    got = backend.product(replaced(call, x=call.x.abs() + 1, y=y, info=call.info._replace(scale=None)))
    assert got[0].isposinf().all()
    assert (got[1] == 0).all()  # the empty segment


@pytest.mark.parametrize("dtype", ACCUMULATE, ids=str)
@each(
    "info",
    [
        SparseScaleInfo(coefficients(5), ints(2, 0, 1, 1, 2), ints(0, 2, 2, 5), 4),
        SparseScaleInfo(None, ints(2, 0, 1), None, 3),
        SparseScaleInfo(coefficients(3), None, ints(0, 1, 3), None),
        SparseScaleInfo(None, None, None, None),
    ],
)
def test_scale(info, dtype):
    if info.scale is not None:
        info = info._replace(scale=info.scale.to(ACCUMULATE[dtype]).double())
    x = torch.randn(3, 5, 3, dtype=torch.float64).to(DEVICE, dtype).transpose(1, 2)
    agree(ScaleCall(x, info.to(DEVICE)))
    assert backend.scale(ScaleCall(x[:0], info.to(DEVICE))).shape == (0, info.as_product().rows(3, 3)[2], 5)


def test_coefficients_are_cast_once():
    call = product_call(dtype=torch.float32)
    backend.product(call)
    before = dict(call.info._cache)
    backend.product(call)
    assert any(v is not None and getattr(v, "dtype", None) == torch.float32 for v in before.values())
    assert all(call.info._cache[key] is value for key, value in before.items())
    assert call.info.scale.dtype == torch.float64


def test_two_calls_give_the_same_bits():
    torch.use_deterministic_algorithms(False)
    call = product_call("vecmat", batched="both, summed", batch=67, dtype=torch.float32)
    assert torch.equal(backend.product(call), backend.product(call))


# --- who gets it ----------------------------------------------------------------------------------------------------
@pytest.mark.gpu
def test_gpu_tensors_get_it_unasked():
    assert function.select(product_call()) == "triton"


PROBE = """
import os, sys, torch
os.environ["TRITON_INTERPRET"] = "0"
from eqlayers.sparse import SparseProductInfo
from eqlayers.sparse.call import ProductCall
from eqlayers.sparse.table import parse
from eqlayers.sparse.function import WAYS, select
assert "eqlayers_kernels.triton.kernels" not in sys.modules
x = torch.ones(1, 2, 3)
call = ProductCall(parse("u,u->u"), x, x, SparseProductInfo(), (True, True, True), 1)
print(select(call), WAYS["triton"].refuse(call), sep="; ")
"""


def test_cpu_tensors_are_refused_without_the_interpreter():
    done = fresh(PROBE)
    assert done.stdout.strip() == "torch; needs CUDA or HIP tensors, got cpu", done.stderr


def test_products_with_one_matrix_for_all_rows_are_left_to_gemm(monkeypatch):
    """A call that names the backend gets its kernel all the same."""
    monkeypatch.setattr(backend.availability, "interpreted", lambda: False)

    def left(op, batched):
        call = product_call(op, batched=batched)
        on_gpu = replaced(call, x=call.x.to("meta"), y=call.y.to("meta"))
        return backend.only_named(on_gpu)

    assert left("vecmat", "x only")
    assert left("mat_t_vec", "y only")
    assert left("outer", "both, summed")
    assert left("outer", "x only, summed")
    for op in ("vecmat", "outer", "mat_t_vec"):
        assert not left(op, "both")
    for op in ("mul", "inner", "vecsca"):
        assert not any(left(op, batched) for batched in BATCHED)
