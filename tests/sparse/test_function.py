"""The seven products against the definition of the specification, written out again here with loops."""

import itertools

import numpy as np
import torch

from eqlayers import functional, sparse
from eqlayers.functional import sparse_product
from eqlayers.sparse import SparseProductInfo, sparse_product_infos
from eqlayers.sparse.table import NAMED
from tests.covering import covering
from tests.each import each

CHANNELS = NAMED  # which tests/sparse/test_table.py holds against the specification
CLASSES = {
    "mul": "SparseMul", "outer": "SparseOuter", "inner": "SparseInner", "vecmat": "SparseVecMat",
    "vecsca": "SparseVecSca", "scavec": "SparseScaVec", "mat_t_vec": "SparseMatTVec",
}  # fmt: skip
BACKENDS = ("reference", "torch")
FIELDS = ("scale", "index1", "index2", "seg_out", "gather_index", "index_out", "out_size")
TERMS, ROWS1, ROWS2 = 6, 4, 5


def brute_force(channels, x, y, info, accumulated=False):
    """The formula, with loops over rows of the batch, segments and places, and the sum of the summands' magnitudes."""
    first, second, out = channels.replace("->", ",").split(",")
    spec = f"{first},{second}->{out}"
    scale, index1, index2, seg_out, gather = (None if f is None else f.tolist() for f in info[:5])
    index_out = None if info.index_out is None else info.index_out.tolist()
    x, y = x.detach().double().numpy(), y.detach().double().numpy()
    lead1, lead2 = x.shape[: x.ndim - 1 - len(first)], y.shape[: y.ndim - 1 - len(second)]
    lead = np.broadcast_shapes(lead1, lead2)
    rows = x.shape[len(lead1)], y.shape[len(lead2)]
    terms = next((len(f) for f in (scale, index1, index2) if f is not None), rows[0])
    places = list(range(terms)) if gather is None else gather
    segments = [[t] for t in places]
    if seg_out is not None:
        segments = [places[a:b] for a, b in itertools.pairwise(seg_out)]
    size = len(segments) if info.out_size is None else info.out_size
    length = dict(zip(first + second, x.shape[x.ndim - len(first) :] + y.shape[y.ndim - len(second) :], strict=True))
    z = np.zeros((*lead, size, *(length[c] for c in out)))
    magnitude = np.zeros_like(z)
    x = np.broadcast_to(x, (*lead, *x.shape[len(lead1) :]))
    y = np.broadcast_to(y, (*lead, *y.shape[len(lead2) :]))
    for n in np.ndindex(*lead):
        for number, segment in enumerate(segments):
            row = number if index_out is None else index_out[number]
            for t in segment:
                s = 1.0 if scale is None else scale[t]
                i1, i2 = t if index1 is None else index1[t], t if index2 is None else index2[t]
                a, b = x[(*n, i1)], y[(*n, i2)]
                z[(*n, row)] += s * np.einsum(spec, a, b)
                magnitude[(*n, row)] += abs(s) * np.einsum(spec, np.abs(a), np.abs(b))
    axes = tuple(range(len(lead))) if accumulated else ()
    return torch.from_numpy(z.sum(axes)), torch.from_numpy(magnitude.sum(axes))


def agree(product, x, y, info, accumulated=False, backends=BACKENDS):
    """Both backends equal the loops within rounding: eps times the number of summands times their magnitudes."""
    channels = CHANNELS.get(product, product)
    want, size = brute_force(channels, x, y, info, accumulated)
    summands = 3 + 8 * TERMS * max(1, x.numel(), y.numel())
    for backend in backends:
        got = sparse_product(product, x, y, info, out_accumulated=accumulated, backend=backend)
        assert got.dtype == x.dtype
        assert got.shape == want.shape, f"{backend}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
        error, bound = (got - want).abs(), size * summands * torch.finfo(torch.float64).eps
        assert (error <= bound).all(), f"{backend}: off by {error.max():.2g}, {(error / bound).max():.2g} bounds"
        assert (got[size == 0] == 0).all(), f"{backend}: rows that nothing names must be exactly zero"


def info_of(pattern):
    """An info with the fields of the pattern: repeated and dropped terms, empty segments inside, and in every second
    pattern (those without out_size) first and last as well.
    """
    given = dict(zip(FIELDS, pattern, strict=True))
    generator = torch.Generator().manual_seed(sum(2**k for k, g in enumerate(pattern) if g))
    places = TERMS
    fields = {}
    if given["gather_index"]:
        fields["gather_index"] = torch.tensor([5, 1, 1, 0, 3, 5, 4])  # 2 is dropped, 1 and 5 repeat
        places = 7
    segments = places
    if given["seg_out"]:
        ends = [0, 2, 2, 3, 4, 4, places] if given["out_size"] else [0, 0, 2, 2, 3, places, places]
        fields["seg_out"] = torch.tensor(ends)
        segments = 6
    if given["scale"]:
        fields["scale"] = torch.randn(TERMS, generator=generator, dtype=torch.float64)
    for name, rows in (("index1", ROWS1), ("index2", ROWS2)):
        if given[name]:
            fields[name] = torch.randint(rows, (TERMS,), generator=generator)
    if given["index_out"]:
        fields["index_out"] = torch.randperm(segments + 2, generator=generator)[:segments]
    if given["out_size"]:
        fields["out_size"] = segments + 2
    return SparseProductInfo(**fields)


def operand(letters, rows, lead=(), sizes=None, dtype=torch.float64):
    sizes = {"u": 3, "v": 2} | (sizes or {})
    return torch.randn(*lead, rows, *(sizes[c] for c in letters), dtype=dtype)


def operands(product, rows=(ROWS1, ROWS2), lead=((), ()), sizes=None):
    first, second, _ = CHANNELS.get(product, product).replace("->", ",").split(",")
    return operand(first, rows[0], lead[0], sizes), operand(second, rows[1], lead[1], sizes)


LEADS = {
    "none": ((), ()), "one axis": ((2,), (2,)), "two axes": ((2, 3), (2, 3)), "three axes": ((2, 1, 3), (2, 1, 3)),
    "broadcast lengths": ((2, 1), (1, 3)), "broadcast ranks": ((3,), (2, 3)), "shared first": ((), (2, 2)),
    "shared second": ((2, 2), ()), "one row": ((1,), (4,)), "empty": ((0,), (0,)),
    "empty inside": ((2, 0, 3), (2, 0, 3)), "empty and shared": ((0,), ()), "empty against one": ((1,), (0,)),
}  # fmt: skip


def _wide(t):
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 1), torch.nan, dtype=t.dtype)
    wide[..., 1::2] = t
    return wide[..., 1::2]


LAYOUTS = {
    "contiguous": lambda t: t,
    "channels outermost": lambda t: t.movedim(-1, 0).contiguous().movedim(0, -1),
    "rows outermost": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "every second element": _wide,
    "offset": lambda t: torch.cat([t, t])[t.shape[0] :],
    "expanded": lambda t: t[:1].expand(t.shape),
    "expanded last": lambda t: t[..., :1].expand(t.shape),
}
SIZES = [(3, 2), (1, 1), (1, 5), (7, 1), (5, 3), (0, 2), (3, 0)]
CASES = covering(
    {
        "product": list(CHANNELS), "lead": list(LEADS), "layout": list(LAYOUTS), "sizes": SIZES,
        "accumulated": [False, True], **{name: [False, True] for name in FIELDS},
    },
    lambda case: case.get("out_size", True) or not case.get("index_out", False),  # index_out asks for out_size
)  # fmt: skip


@each("case", CASES)
def test_products(case):
    """Any product, with any fields, leading axes, channel numbers and strides, each with each of the others."""
    info = info_of([case[name] for name in FIELDS])
    rows = TERMS if info.index1 is None else ROWS1, TERMS if info.index2 is None else ROWS2
    pair = operands(case["product"], rows, LEADS[case["lead"]], dict(zip("uv", case["sizes"], strict=True)))
    x, y = (LAYOUTS[case["layout"]](t) for t in pair)
    agree(case["product"], x, y, info, case["accumulated"])


@each("product", CHANNELS)
def test_no_terms_and_no_rows(product):
    nothing = sparse_product_infos([], [], [], [], in1_size=ROWS1, in2_size=ROWS2, out_size=3)
    no_rows = sparse_product_infos([], [], [], in1_size=0, in2_size=0, out_size=0)
    for infos, rows in ((nothing, (ROWS1, ROWS2)), (no_rows, (0, 0))):
        x, y = operands(product, rows, ((2,), (2,)))
        agree(product, x, y, infos[0])
        x, y = x.requires_grad_(), y.requires_grad_()
        for grad in torch.autograd.grad(sparse_product(product, x, y, *infos).sum(), (x, y)):
            assert not grad.any()


@each("product", CHANNELS)
def test_classes_and_functions_are_the_product_of_their_name(product):
    x, y = operands(product, lead=((2,), ()))
    infos = sparse_product_infos([3, 0], [1, 4], [2, 0], [0.5, 2.0], in1_size=ROWS1, in2_size=ROWS2, out_size=3)
    want, _ = brute_force(CHANNELS[product], x, y, infos[0])
    for call in (getattr(sparse, CLASSES[product]).apply, getattr(functional, f"sparse_{product}")):
        torch.testing.assert_close(call(x, y, *infos), want)
        torch.testing.assert_close(call(x, y, *infos, True), want.sum(0))


def test_gather_index_and_index_out_of_a_worked_example():
    """Segment 0 sums terms 2 and 0 into row 3, segment 1 is empty (row 0), segment 2 takes term 2 again (row 1)."""
    info = SparseProductInfo(
        scale=torch.tensor([2.0, 100.0, 10.0], dtype=torch.float64),
        index1=torch.tensor([0, 0, 1]),
        index2=torch.tensor([1, 1, 0]),
        seg_out=torch.tensor([0, 2, 2, 3]),
        gather_index=torch.tensor([2, 0, 2]),
        index_out=torch.tensor([3, 0, 1]),
        out_size=5,
    )
    x, y = torch.tensor([[3.0], [5.0]]).double(), torch.tensor([[7.0], [11.0]]).double()
    for backend in BACKENDS:
        z = sparse_product("mul", x, y, info, backend=backend)
        assert z[:, 0].tolist() == [0.0, 350.0, 0.0, 350.0 + 66.0, 0.0]
