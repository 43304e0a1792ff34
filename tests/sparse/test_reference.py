"""Way reference is the definition: sums of products of numbers, written with loops in NumPy."""

import itertools

import numpy as np
import torch

from eqlayers.sparse import SparseProductInfo, reference, sparse_scale_infos
from eqlayers.sparse.call import ProductCall, ScaleCall
from eqlayers.sparse.table import parse
from tests.each import each

BATCH = 3
#: (coefficient, rows of both operands, row of the result); a row without a term, one with two equal ones.
TERMS = [(0.5, 0, 1, 2), (-2.0, 1, 0, 2), (3.0, 1, 1, 0), (3.0, 1, 1, 0)]
INFO = SparseProductInfo(
    scale=torch.tensor([3.0, 3.0, 0.5, -2.0], dtype=torch.float64),
    index1=torch.tensor([1, 1, 0, 1]),
    index2=torch.tensor([1, 1, 1, 0]),
    seg_out=torch.tensor([0, 2, 2, 4, 4]),
    out_size=4,
)


def by_loops(x, y, flags):
    """``z[n, o, v] += s * sum_u x[n, i, u] * y[n, j, u, v]``, number by number."""
    rows = BATCH if any(flags) else 1
    z = np.zeros((rows, 4, y.shape[-1]))
    for n, (s, i, j, o) in itertools.product(range(rows), TERMS):
        first, second = (t[n] if flag else t for t, flag in zip((x, y), flags, strict=False))
        for u, v in itertools.product(range(x.shape[-1]), range(y.shape[-1])):
            z[n, o, v] += s * float(first[i, u]) * float(second[j, u, v])
    return z if flags[2] else z.sum(0)


@each("dtype", [torch.float64, torch.float16])
def test_a_product_is_the_sum_over_its_terms(dtype):
    """Operands and results with and without rows; half precision is rounded once, at the end."""
    for flags in itertools.product((True, False), repeat=3):
        x = torch.randn(*[BATCH] * flags[0], 2, 5, dtype=torch.float64).to(dtype)
        y = torch.randn(*[BATCH] * flags[1], 2, 5, 2, dtype=torch.float64).to(dtype)
        call = ProductCall(parse("u,uv->v"), x, y, INFO, flags, BATCH if any(flags) else 1)
        z, wanted = reference.product(call), torch.from_numpy(by_loops(x, y, flags))
        if flags == (False, False, True):
            wanted = wanted[:1].expand(BATCH, -1, -1)
        assert z.dtype == dtype
        bound = 1e-13 if dtype == torch.float64 else 0.0
        torch.testing.assert_close(z, wanted.to(dtype), rtol=bound, atol=bound, msg=str(flags))
        assert not z.movedim(-2, 0)[[1, 3]].any(), "rows that no term names"


def test_no_rows_and_no_terms_give_zeros():
    x, y = torch.ones(0, 2, 5), torch.ones(1, 2, 5, 2)
    assert reference.product(ProductCall(parse("u,uv->v"), x, y[0], INFO, (True, False, True), 0)).shape == (0, 4, 2)
    none = SparseProductInfo(seg_out=torch.tensor([0, 0]), index1=torch.tensor([], dtype=torch.int64), out_size=1)
    none = none._replace(index2=torch.tensor([], dtype=torch.int64))
    z = reference.product(ProductCall(parse("u,uv->v"), y[..., 0], y, none, (True, True, True), 1))
    assert z.tolist() == [[[0.0, 0.0]]]


def test_a_scale_is_a_matrix_on_the_sparse_axis():
    info, _ = sparse_scale_infos([0, 2, 2], [1, 0, 1], [0.5, -3.0, 2.0], in_size=3, out_size=4)
    matrix = torch.zeros(4, 3, dtype=torch.float64)
    matrix[1, 0], matrix[0, 2], matrix[1, 2] = 0.5, -3.0, 2.0
    x = torch.randn(BATCH, 3, 5)
    z = reference.scale(ScaleCall(x, info))
    assert z.dtype == torch.float32
    torch.testing.assert_close(z, torch.einsum("mi,niu->nmu", matrix, x.double()).float())
