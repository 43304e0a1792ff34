"""The rounding bound: its formula on an example, honest sums within it, sloppy sums beyond it."""

import pytest
import torch

from eqlayers.functional import sparse_product
from eqlayers.sparse import SparseProductInfo
from eqlayers.sparse.table import NAMED
from eqlayers.testing import random_product
from tests.each import each
from tests.sparse.rounding import rounding_bound

EPS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def test_the_formula():
    """Row 0 sums two terms of magnitude 6 and 4, row 1 nothing, row 2 one of 12; 2 terms and 3 more roundings count."""
    info = SparseProductInfo(
        scale=torch.tensor([-2.0, 1.0, 3.0], dtype=torch.float64), seg_out=torch.tensor([0, 2, 2, 3]), out_size=3
    )
    x, y = torch.tensor([[-3.0], [4.0], [2.0]]), torch.tensor([[1.0], [-1.0], [2.0]])
    for dtype, eps in EPS.items():
        sums = EPS[torch.float64] if dtype == torch.float64 else EPS[torch.float32]
        factor = 5 * sums + (eps if dtype in (torch.float16, torch.bfloat16) else 0)
        bound = rounding_bound("mul", x, y, info, dtype)
        assert bound.dtype == torch.float64
        torch.testing.assert_close(bound[:, 0], torch.tensor([10.0, 0.0, 12.0]).double() * factor, rtol=1e-6, atol=2e-4)
        assert bound[1] == (0 if dtype == torch.float64 else torch.finfo(dtype).smallest_normal)


def test_contracted_channels_and_the_batch_count_as_terms():
    info = SparseProductInfo()
    x, y = torch.ones(10, 1, 7), torch.ones(10, 1, 7)
    eps = EPS[torch.float64]
    assert rounding_bound("inner", x, y, info, torch.float64)[0, 0] == 7 * (7 + 3) * eps
    assert rounding_bound("inner", x, y, info, torch.float64, out_accumulated=True)[0] == 70 * (70 + 3) * eps
    assert rounding_bound("mul", x, y[0], info, torch.float64, True)[0, 0] == 10 * (10 + 3) * eps
    assert rounding_bound("mul", x[:0], y[:0], info, torch.float64, True)[0, 0] == 0


@each("dtype", EPS)
@each("product", NAMED)
def test_honest_sums_are_within_and_use_a_fair_part_of_it(product, dtype):
    x, y, (info, _, _) = random_product(product, terms=200, batch=(20,), rows=(9, 9, 3), dtype=dtype)
    want = sparse_product(product, x.double(), y.double(), info, backend="reference")
    got = sparse_product(product, x, y, info).double()
    bound = rounding_bound(product, x, y, info, dtype)
    named = bound > 2 * torch.finfo(dtype).smallest_normal
    used = ((got - want).abs() / bound)[named].max().item()
    assert ((got - want).abs() <= bound).all(), f"{used:.2g} times the rounding bound"
    assert named.any()
    least = 2e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-4
    assert used > least, "a bound far too wide would catch nothing"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("product", ["mul", "vecsca", "scavec", "outer"])
def test_sums_formed_in_half_precision_are_beyond_it(product, dtype):
    x, y, _ = random_product(product, (False, False), rows=(300, 300, 1), dtype=dtype)
    x, y = x.abs(), y.abs()
    info = SparseProductInfo(seg_out=torch.tensor([0, 300]), out_size=1)
    channels = {"mul": "u,u->u", "vecsca": "u,->u", "scavec": ",u->u", "outer": "u,v->uv"}[product]
    sloppy = torch.einsum(channels, x[0], y[0])
    for a, b in zip(x[1:], y[1:], strict=True):
        sloppy = sloppy + torch.einsum(channels, a, b)
    want = sparse_product(product, x.double(), y.double(), info, backend="reference")[0]
    assert sloppy.dtype == dtype
    assert ((sloppy.double() - want).abs() > rounding_bound(product, x, y, info, dtype)[0]).any()


@pytest.mark.parametrize("product", NAMED)
def test_a_wrong_coefficient_is_beyond_it(product):
    x, y, (info, _, _) = random_product(product, dtype=torch.float32)
    want = sparse_product(product, x.double(), y.double(), info, backend="reference")
    bound = rounding_bound(product, x, y, info, torch.float32)
    for term in range(info.num_terms):
        scale = info.scale.clone()
        scale[term] *= 1 + 1e-4
        got = sparse_product(product, x, y, info._replace(scale=scale)).double()
        assert ((got - want).abs() > bound).any(), term
