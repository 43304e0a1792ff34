"""Builders: one term list, three views; what they return is checked against dense tables made from the list."""

import itertools

import numpy as np
import pytest
import torch

from eqlayers.errors import DTypeError, IndexRangeError, ShapeError
from eqlayers.functional import sparse_product, sparse_scale
from eqlayers.sparse import SparseProductInfo, SparseScaleInfo, sparse_product_infos, sparse_scale_infos
from tests.cases import default_dtype
from tests.each import each, refused

SIZES = (4, 5, 6)


def term_list(seed=0, terms=12):
    """An unsorted list with repeated terms and unnamed rows."""
    draw = np.random.default_rng(seed)
    rows = [draw.integers(1, size - 1, terms) for size in SIZES]
    return *rows, draw.standard_normal(terms)


def dense(index1, index2, index_out, scale, sizes=SIZES):
    """z[o] = sum_ij table[o, i, j] x[i] y[j]."""
    table = np.zeros((sizes[2], sizes[0], sizes[1]))
    np.add.at(table, (np.asarray(index_out), np.asarray(index1), np.asarray(index2)), np.asarray(scale))
    return torch.from_numpy(table)


def build(index1, index2, index_out, scale=None, sizes=SIZES):
    return sparse_product_infos(
        index1, index2, index_out, scale, in1_size=sizes[0], in2_size=sizes[1], out_size=sizes[2]
    )


def view_as_table(info, rows1, rows2):
    """The table that an info stands for, read off with unit vectors."""
    x = torch.eye(rows1, dtype=torch.float64).reshape(rows1, 1, rows1, 1)
    y = torch.eye(rows2, dtype=torch.float64).reshape(1, rows2, rows2, 1)
    return sparse_product("mul", x, y, info, backend="reference")[..., 0].permute(2, 0, 1)


@each("seed", range(3))
def test_three_views_of_one_list(seed):
    terms = term_list(seed)
    table = dense(*terms)
    fwd, bwd1, bwd2 = build(*terms)
    m1, m2, m3 = SIZES
    torch.testing.assert_close(view_as_table(fwd, m1, m2), table)
    torch.testing.assert_close(view_as_table(bwd1, m2, m3), table.permute(1, 2, 0))
    torch.testing.assert_close(view_as_table(bwd2, m3, m1), table.permute(2, 0, 1))
    assert [info.out_size for info in (fwd, bwd1, bwd2)] == [m3, m1, m2]


def test_terms_are_sorted_by_row_and_keep_their_order_within_one():
    fwd, bwd1, bwd2 = build([3, 0, 1, 2], [0, 1, 2, 3], [5, 2, 5, 2], [1.0, 2.0, 3.0, 4.0])
    assert fwd.scale.tolist() == [2.0, 4.0, 1.0, 3.0]
    assert fwd.index1.tolist() == [0, 2, 3, 1]
    assert fwd.index2.tolist() == [1, 3, 0, 2]
    assert fwd.seg_out.tolist() == [0, 0, 0, 2, 2, 2, 4]
    assert fwd.gather_index is None
    assert fwd.index_out is None
    assert bwd1.index1.tolist() == [1, 2, 3, 0]
    assert bwd2.scale.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_identities_are_left_out():
    fwd, bwd1, bwd2 = build([0, 1, 2, 3], [4, 3, 2, 1], [0, 1, 2, 3], sizes=(4, 5, 4))
    assert fwd.index1 is None
    assert fwd.seg_out is None
    assert fwd.scale is None
    assert fwd.index2.tolist() == [4, 3, 2, 1]
    assert bwd1.index2 is None
    assert bwd1.seg_out is None
    assert bwd2.seg_out.tolist() == [0, 0, 1, 2, 3, 4]
    every = build(range(4), range(4), range(4), sizes=(4, 4, 4))
    assert all(info == (None,) * 6 + (4,) for info in every)
    longer = build(range(4), range(4), range(4), sizes=(5, 4, 4))[0]  # one row of input1 is unnamed: not the identity
    assert longer.index1.tolist() == [0, 1, 2, 3]
    swapped = build([1, 0], [0, 1], [1, 0], [2.0, 3.0], sizes=(2, 2, 2))[0]
    assert swapped.index1 is None
    assert swapped.index2.tolist() == [1, 0]
    assert swapped.scale.tolist() == [3.0, 2.0]


KINDS = {
    "lists": list,
    "tuples": tuple,
    "numpy int64": np.asarray,
    "numpy int32": lambda v: np.asarray(v, dtype=np.int32),
    "numpy uint8": lambda v: np.asarray(v, dtype=np.uint8),
    "tensor int64": lambda v: torch.tensor(list(v)),
    "tensor int32": lambda v: torch.tensor(list(v), dtype=torch.int32),
    "range": lambda v: range(len(v)) if list(v) == list(range(len(v))) else list(v),
}


@each("kind", KINDS.values())
def test_every_kind_of_list(kind):
    i1, i2, o = [1, 0, 2], [0, 1, 2], [3, 3, 0]
    want = build(i1, i2, o, [1.0, 2.0, 3.0])
    for scale in ([1.0, 2.0, 3.0], np.asarray([1, 2, 3]), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float32)):
        for got, info in zip(build(kind(i1), kind(i2), kind(o), scale), want, strict=True):
            assert got.scale.dtype == torch.float64
            for a, b in zip(got, info, strict=True):
                assert a is b or a == b if not isinstance(a, torch.Tensor) else torch.equal(a, b)


def test_the_scale_is_kept_in_float64():
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert build([0], [0], [0], third)[0].scale.item() == 1 / 3
    assert build([0], [0], [0], [1 / 3])[0].scale.item() == 1 / 3


def test_empty_lists():
    for scale in (None, []):
        for info, size in zip(build([], [], [], scale), (6, 4, 5), strict=True):
            assert info.num_terms == 0
            assert info.out_size == size
            assert info.seg_out.tolist() == [0] * (size + 1)
    nothing = build([], [], [], sizes=(0, 0, 0))
    assert [info.out_size for info in nothing] == [0, 0, 0]
    fwd, bwd = sparse_scale_infos([], [], in_size=2, out_size=3)
    assert (fwd.seg_out.tolist(), bwd.seg_out.tolist()) == ([0] * 4, [0] * 3)


WRONG = {
    "index1 beyond": (
        ([4], [0], [0]),
        IndexRangeError,
        r"^index1 must lie in \[0, 4\) \(in1_size\), got values from 4",
    ),
    "index2 beyond": (([0], [5], [0]), IndexRangeError, r"^index2 must lie in \[0, 5\) \(in2_size\).*Correct"),
    "index_out beyond": (([0], [0], [6]), IndexRangeError, r"^index_out must lie in \[0, 6\) \(out_size\)"),
    "negative": (([0], [-1], [0]), IndexRangeError, r"index2 .* from -1 to -1"),
    "lengths": (([0, 1], [0], [0, 1]), ShapeError, r"got lengths \{'index1': 2, 'index2': 1, 'index_out': 2\}"),
    "float": (([0.0], [0], [0]), DTypeError, r"^index1 must be int64, got torch\.float"),
    "bool": (([0], [True], [0]), DTypeError, r"^index2 must be int64, got torch\.bool"),
    "axes": (([[0]], [0], [0]), ShapeError, r"index1 must have one axis, got shape \[1, 1\].*Flatten"),
    "scale short": (([0, 1], [0, 1], [0, 1], [1.0]), ShapeError, r"one entry per term each, got lengths .*'scale': 1"),
    "scale axes": (([0], [0], [0], [[1.0]]), ShapeError, r"scale must have one axis, got shape \[1, 1\]"),
}


test_wrong_lists_are_refused = refused("lists, error, message", WRONG.values(), lambda lists: build(*lists))


@each("size", [-1, 2.5, "3", None])
def test_sizes_are_counts(size):
    for name in ("in1_size", "in2_size", "out_size"):
        with pytest.raises(ShapeError, match=f"{name} must be a count of rows, at least 0, got"):
            sparse_product_infos([], [], [], **({"in1_size": 1, "in2_size": 1, "out_size": 1} | {name: size}))


def test_a_scale_is_a_matrix_and_its_transpose():
    index, index_out, scale = [2, 0, 2, 1, 2], [1, 3, 1, 0, 0], [1.0, 2.0, 4.0, 8.0, 16.0]
    fwd, bwd = sparse_scale_infos(index, index_out, scale, in_size=4, out_size=5)
    matrix = np.zeros((5, 4))
    np.add.at(matrix, (index_out, index), scale)  # the two terms at (1, 2) add up
    unit_in, unit_out = torch.eye(4, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    assert sparse_scale(unit_in, fwd).tolist() == matrix.tolist()
    assert sparse_scale(unit_out, bwd).tolist() == matrix.T.tolist()
    assert isinstance(fwd, SparseScaleInfo)


def test_a_permutation_needs_no_segments():
    fwd, bwd = sparse_scale_infos([2, 0, 1], [0, 1, 2], in_size=3, out_size=3)
    assert (fwd.index.tolist(), bwd.index.tolist()) == ([2, 0, 1], [1, 2, 0])
    assert fwd.seg_out is None
    assert bwd.seg_out is None
    assert fwd.scale is None
    same, back = sparse_scale_infos(range(3), range(3), in_size=3, out_size=3)
    assert same == back == (None, None, None, 3)


test_wrong_scale_lists_are_refused = refused(
    "lists, error, message",
    [
        (([2], [0]), IndexRangeError, r"index must lie in \[0, 2\) \(in_size\)"),
        (([0], [2]), IndexRangeError, r"index_out must lie in \[0, 2\) \(out_size\)"),
        (([0, 1], [0]), ShapeError, "got lengths"),
        (([0], [0], [1.0, 2.0]), ShapeError, "one entry per term each, got lengths"),
    ],
    lambda lists: sparse_scale_infos(*lists, in_size=2, out_size=2),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_defaults_of_torch_change_nothing(dtype, device):
    terms = term_list(1)
    want = build(*terms)
    with default_dtype(dtype), torch.device(device):
        got = build(*terms)
        matrix = sparse_scale_infos([0, 1], [1, 0], [1 / 3, 1.0], in_size=2, out_size=2)
    for a, b in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
        assert a is b or a == b if not isinstance(a, torch.Tensor) else torch.equal(a, b) and a.dtype == b.dtype
    assert matrix[0].scale.tolist() == [1.0, 1 / 3]
    assert matrix[0].scale.device.type == "cpu"
    assert isinstance(got[0], SparseProductInfo)
