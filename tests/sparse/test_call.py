"""From operands to a call: batch axes, extents and shapes as a backend sees them, and the checks on the way."""

import pytest
import torch

from eqlayers.core.dtypes import ACCUMULATE, DTYPES
from eqlayers.errors import ShapeError
from eqlayers.sparse import SparseProductInfo, SparseScaleInfo
from eqlayers.sparse.call import ProductCall, ScaleCall, check_channels, flatten_batch
from eqlayers.sparse.table import parse
from tests.each import each

INFO = SparseProductInfo(index1=torch.tensor([0, 1]), index2=torch.tensor([1, 0]), out_size=7)


def flat(first, second, spec="u,u->u"):
    x, y = torch.randn(*first, 2, 3), torch.randn(*second, 2, 3)
    a, b, shape = flatten_batch(parse(spec), x, y)
    return x, y, a, b, shape


@each(
    "first, second, shape, flat1, flat2",
    [
        ((), (), (), (2, 3), (2, 3)),
        ((4,), (), (4,), (4, 2, 3), (2, 3)),
        ((), (4,), (4,), (2, 3), (4, 2, 3)),
        ((4, 5), (4, 5), (4, 5), (20, 2, 3), (20, 2, 3)),
        ((4, 1), (1, 5), (4, 5), (20, 2, 3), (20, 2, 3)),
        ((5,), (4, 5), (4, 5), (20, 2, 3), (20, 2, 3)),
        ((4, 5), (), (4, 5), (20, 2, 3), (2, 3)),
        ((0, 3), (), (0, 3), (0, 2, 3), (2, 3)),
        ((1,), (6,), (6,), (6, 2, 3), (6, 2, 3)),
        ((1,), (), (1,), (1, 2, 3), (2, 3)),
    ],
)
def test_leading_axes_become_one(first, second, shape, flat1, flat2):
    x, y, a, b, lead = flat(first, second)
    assert (lead, a.shape, b.shape) == (shape, flat1, flat2)
    for tensor, own, one in ((x, first, a), (y, second, b)):
        want = tensor if not own else tensor.expand(*shape, 2, 3).reshape(-1, 2, 3)
        assert torch.equal(one, want)


def test_one_batch_axis_is_not_copied():
    x, y, a, b, _ = flat((4,), (4,))
    assert a is x
    assert b is y


@each("first, second", [((3,), (4,)), ((2, 3), (2, 4)), ((2, 3), (2,))])
def test_batch_axes_that_do_not_match_are_refused(first, second):
    with pytest.raises(ShapeError, match=r"leading \(batch\) axes .*equal, broadcastable or absent, got .*shared"):
        flat(first, second)


def call(spec, batched, x, y, info=INFO, batch=4):
    return ProductCall(parse(spec), torch.zeros(x), torch.zeros(y), info, batched, batch)


@each("batched", [(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)])
def test_shapes_of_a_call(batched):
    x, y = ([4] if batched[0] else []), ([4] if batched[1] else [])
    one = call("u,uv->v", batched, (*x, 2, 3), (*y, 5, 3, 6))
    assert one.extents == {"u": 3, "v": 6}
    assert one.sparse_rows == (2, 5)
    assert one.out_rows == 7
    assert one.out_shape == ((4, 7, 6) if batched[2] else (7, 6))


def test_out_rows_follow_the_info_then_the_operands():
    assert call("u,u->u", (False, False, False), (5, 3), (5, 3), SparseProductInfo()).out_rows == 5
    assert call("u,u->u", (False, False, False), (5, 3), (5, 3), INFO._replace(out_size=None)).out_rows == 2
    assert call("u,u->", (True, False, False), (4, 5, 3), (5, 3), SparseProductInfo()).out_shape == (5,)
    scale = ScaleCall(torch.zeros(1, 6, 2), SparseScaleInfo(None, torch.tensor([0, 5, 1]), torch.tensor([0, 2, 3])))
    assert scale.out_rows == 2
    assert ScaleCall(torch.zeros(1, 6, 2), SparseScaleInfo(None, None, None)).out_rows == 6


def test_sums_are_never_formed_below_float32():
    assert set(ACCUMULATE) == set(DTYPES)
    for dtype in DTYPES:
        assert torch.finfo(ACCUMULATE[dtype]).eps <= min(torch.finfo(torch.float32).eps, torch.finfo(dtype).eps)


def test_channels_must_agree():
    check_channels(parse("u,uv->v"), torch.zeros(4, 2, 3), torch.zeros(2, 3, 5))
    with pytest.raises(ShapeError, match=r"axis 'u' of 'u,uv->v' must .*got 3 in input1 and 4"):
        check_channels(parse("u,uv->v"), torch.zeros(2, 3), torch.zeros(2, 4, 5))
    with pytest.raises(ShapeError, match=r"input2 must be \[\.\.\., M, u, v\] for .*got shape \[3, 5\].*unsqueeze"):
        check_channels(parse("u,uv->v"), torch.zeros(2, 3), torch.zeros(3, 5))
