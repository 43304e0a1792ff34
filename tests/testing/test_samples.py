"""Random products: the shapes asked for, unnamed first and last rows, and the same numbers for a seed."""

import itertools

import pytest
import torch

from eqlayers.functional import sparse_product
from eqlayers.sparse.table import NAMED
from eqlayers.testing import random_infos, random_product


def test_infos_leave_the_first_and_last_row_of_everything_unnamed():
    for seed in range(5):
        fwd, bwd1, bwd2 = random_infos((4, 5, 6), terms=30, seed=seed)
        for info, size in ((fwd, 6), (bwd1, 4), (bwd2, 5)):
            assert info.num_terms == 30
            assert info.out_size == size
            counts = info.seg_out.diff()
            assert counts[0] == counts[-1] == 0
            assert counts.sum() == 30
        for index, size in ((fwd.index1, 4), (fwd.index2, 5)):
            assert index.min() >= 1
            assert index.max() <= size - 2
        assert fwd.scale.dtype == torch.float64
    assert [info.out_size for info in random_infos((1, 2, 1), terms=3)] == [1, 1, 2]
    assert random_infos(terms=0)[0].num_terms == 0


def test_the_seed_decides():
    first, again, other = (random_infos(seed=s)[0].scale for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    state = torch.get_rng_state()
    x, again, other = (random_product("mul", seed=s)[0] for s in (1, 1, 2))
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("product", [*NAMED, "u,uvw->vw"])
def test_operands_have_the_shapes_asked_for(product):
    first, second, _ = NAMED.get(product, product).replace("->", ",").split(",")
    extents = {"u": 4, "v": 1, "w": 6}
    for batched in itertools.product((True, False), repeat=2):
        x, y, infos = random_product(product, batched, rows=(5, 6, 7), batch=(2, 3), extents=extents)
        lead = ((2, 3) if b else () for b in batched)
        for tensor, batch_axes, rows, letters in zip((x, y), lead, (5, 6), (first, second), strict=True):
            assert tensor.shape == (*batch_axes, rows, *(extents[c] for c in letters))
        z = sparse_product(product, x, y, *infos)
        assert z.shape[: z.ndim - 1 - len(NAMED.get(product, product).split("->")[1])] == (
            (2, 3) if any(batched) else ()
        )
        assert z.any()


def test_options():
    x, y, _ = random_product("mul", dtype=torch.float16, requires_grad=True)
    assert x.dtype == y.dtype == torch.float16
    assert x.is_leaf
    assert y.is_leaf
    assert x.requires_grad
    assert not random_product("mul")[0].requires_grad
    exact = random_product("mul")[0]
    assert torch.equal(x, exact.half())


@pytest.mark.parametrize("default", [torch.float16, torch.float64])
def test_torch_defaults_change_nothing(default):
    want = random_product("vecmat", seed=4)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with torch.device("meta"):
            got = random_product("vecmat", seed=4)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[2][0].scale, want[2][0].scale)
