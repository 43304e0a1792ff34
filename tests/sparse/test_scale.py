"""The sparse scale against its formula with loops, its gradients of every order, and its messages."""

import itertools

import pytest
import torch

from eqlayers.errors import ConfigError, DeviceError, DTypeError, GradientError, IndexRangeError, ShapeError
from eqlayers.functional import sparse_scale
from eqlayers.sparse import SparseScale, SparseScaleInfo, sparse_scale_infos
from eqlayers.sparse.function import WAYS
from eqlayers.testing import check_derivatives
from tests.each import each

ACCUMULATE = {
    torch.float64: torch.float64,
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float32),
}
TERMS = ([3, 1, 3, 0, 1, 3], [1, 4, 1, 4, 0, 2], [1.0, -2.0, 0.5, 3.0, 0.1, 0.7])  # row 3 of the output is unnamed
ROWS, OUT = 5, 6
CHOICES = ["reference", "torch"]


def matrix_of(info, rows):
    """``S[m, index[t]] += scale[t]`` for the terms t of segment m, with loops."""
    terms = next((len(f) for f in (info.scale, info.index) if f is not None), rows)
    ends = list(range(terms + 1)) if info.seg_out is None else info.seg_out.tolist()
    size = len(ends) - 1 if info.out_size is None else info.out_size
    matrix = torch.zeros(size, rows, dtype=torch.float64)
    for m, (start, end) in enumerate(itertools.pairwise(ends)):
        for t in range(start, end):
            i = t if info.index is None else int(info.index[t])
            matrix[m, i] += 1.0 if info.scale is None else float(info.scale[t])
    return matrix


def agree(x, info, dtype=None):
    exact = (x if dtype is None else x.to(dtype)).double()
    for backend in CHOICES:
        got = sparse_scale(exact.to(dtype or x.dtype), info, backend=backend)
        matrix = matrix_of(info, x.shape[-2])
        want, size = matrix @ exact, matrix.abs() @ exact.abs()
        assert got.shape == want.shape
        assert got.dtype == (dtype or x.dtype)
        sums = torch.float64 if got.dtype == torch.float64 else torch.float32
        store, total = torch.finfo(got.dtype).eps, torch.finfo(sums).eps
        error, bound = (got.double() - want).abs(), size * (store + 9 * total)  # nine: at most six terms, see Higham
        assert (error <= bound).all(), f"{backend}: {(error / bound).max():.2g} times the rounding bound"


@each("given", range(16), ids="{:04b}".format)
def test_every_pattern_of_fields(given):
    scale, index, seg_out, out_size = (bool(given >> k & 1) for k in range(4))
    info = SparseScaleInfo(
        torch.randn(ROWS, dtype=torch.float64) if scale else None,
        torch.tensor([4, 0, 4, 1, 2]) if index else None,
        torch.tensor([0, 1, 1, 3, 3, ROWS] if out_size else [0, 0, 2, 2, 3, ROWS, ROWS]) if seg_out else None,
        8 if out_size else None,
    )
    for lead in ((), (3,), (2, 3), (0,), (2, 0, 1)):
        agree(torch.randn(*lead, ROWS, 3, dtype=torch.float64), info)
    agree(torch.randn(2, ROWS, 1, dtype=torch.float64), info)
    agree(torch.randn(2, ROWS, 0, dtype=torch.float64), info)


def test_all_none_follows_the_rows_of_each_input():
    info = SparseScaleInfo(None, None, None, 4)
    for rows in (4, 3, 1, 4):  # the cache of one number of rows must not serve another
        agree(torch.randn(2, rows, 2, dtype=torch.float64), info)


@each("dtype", ACCUMULATE)
def test_dtypes(dtype):
    fwd, bwd = sparse_scale_infos(*TERMS, in_size=ROWS, out_size=OUT)
    agree(torch.randn(3, ROWS, 4, dtype=torch.float64), fwd, dtype)
    agree(torch.randn(3, OUT, 4, dtype=torch.float64), bwd, dtype)


@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    """4096 ones and one term of 4096: a sum in half precision sticks at 2048 (float16) or 256 (bfloat16)."""
    fwd, _ = sparse_scale_infos(torch.arange(4096), torch.zeros(4096).long(), in_size=4096, out_size=1)
    assert sparse_scale(torch.ones(1, 4096, 1, dtype=dtype), fwd).item() == 4096


def test_strides_do_not_matter():
    fwd, _ = sparse_scale_infos(*TERMS, in_size=ROWS, out_size=OUT)
    x = torch.randn(4, 3, ROWS, dtype=torch.float64)
    for view in (x.transpose(1, 2), x.permute(1, 2, 0), x[:1].transpose(1, 2).expand(3, ROWS, 3), x.mT[::2, :, 1:]):
        assert not view.is_contiguous()
        agree(view, fwd)


@each("terms", [TERMS, ([2, 0, 1], [0, 1, 2], None), ([], [], [])])
@pytest.mark.parametrize("lead", [(), (2,), (2, 2)], ids=str)
def test_derivatives(terms, lead):
    sizes = (3, 3) if terms[2] is None else (ROWS, OUT)
    fwd, bwd = sparse_scale_infos(*terms, in_size=sizes[0], out_size=sizes[1])
    x = torch.randn(*lead, sizes[0], 2, dtype=torch.float64, requires_grad=True)
    gz = torch.randn(*lead, sizes[1], 2, dtype=torch.float64, requires_grad=True)
    matrix = matrix_of(fwd, sizes[0])
    (gx,) = torch.autograd.grad(sparse_scale(x, fwd, bwd), x, gz, create_graph=True)
    torch.testing.assert_close(gx, matrix.T @ gz)
    assert gx.requires_grad
    (ggz,) = torch.autograd.grad(gx, gz, x)
    torch.testing.assert_close(ggz, matrix @ x)
    check_derivatives(lambda x: sparse_scale(x, fwd, bwd).sin(), [x], 3, max_elements=3)


def test_the_transpose_is_the_info_of_the_gradient():
    fwd, bwd = sparse_scale_infos(*TERMS, in_size=ROWS, out_size=OUT)
    assert torch.equal(matrix_of(bwd, OUT), matrix_of(fwd, ROWS).T)
    x = torch.randn(OUT, 2, dtype=torch.float64, requires_grad=True)
    (gx,) = torch.autograd.grad(sparse_scale(x, bwd, fwd).sum(), x)
    torch.testing.assert_close(gx, matrix_of(fwd, ROWS).sum(1, keepdim=True).expand(OUT, 2))


def test_no_gradient_is_computed_for_a_constant(monkeypatch):
    calls, backend = [], WAYS["torch"]

    def counted(call):
        calls.append(call.info)
        return backend.scale(call)

    monkeypatch.setitem(WAYS, "torch", backend._replace(scale=counted))
    fwd, bwd = sparse_scale_infos(*TERMS, in_size=ROWS, out_size=OUT)
    x = torch.randn(ROWS, 2)
    assert not sparse_scale(x, fwd, bwd).requires_grad
    y = sparse_scale(x.requires_grad_(), fwd, bwd).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(y, x)[0])
    assert [c is bwd for c in calls] == [False, False, True, True]


def test_the_class_is_the_function():
    fwd, bwd = sparse_scale_infos(*TERMS, in_size=ROWS, out_size=OUT)
    x = torch.randn(2, ROWS, 3)
    assert torch.equal(SparseScale.apply(x, fwd, bwd), sparse_scale(x, fwd, bwd))
    with pytest.raises(ConfigError, match=r"backend must be one of .*reference.* or None, got 'nonsense'"):
        SparseScale.apply(x, fwd, bwd, "nonsense")


def test_messages():
    fwd = sparse_scale_infos(*TERMS, in_size=ROWS, out_size=OUT)[0]
    x = torch.randn(2, ROWS, 3, requires_grad=True)
    with pytest.raises(GradientError, match=r"info_bwd must be given, .*got None.*Pass all infos .*detach input"):
        sparse_scale(x, fwd).sum().backward()
    with pytest.raises(ShapeError, match=r"info_bwd\.out_size must be 5, the sparse rows of input, got 6.*in_size=5"):
        sparse_scale(x, fwd, fwd).sum().backward()
    with pytest.raises(IndexRangeError, match=r"input must have at least 4 sparse rows, .*row 3; got 3.*axes are"):
        sparse_scale(x[:, :3], fwd)
    with pytest.raises(ShapeError, match=r"input must have 2 sparse rows, one per term \(index is None\), got 5"):
        sparse_scale(x, SparseScaleInfo(torch.ones(2), None, None))
    with pytest.raises(ShapeError, match=r"input must be \[\.\.\., M, C\], got shape \[5\].*unsqueeze"):
        sparse_scale(x[0, :, 0], fwd)
    with pytest.raises(DTypeError, match=r"input must be float64, .* got torch\.int64"):
        sparse_scale(x.long(), fwd)
    with pytest.raises(DTypeError, match=r"input must be float64, .* got torch\.complex64"):
        sparse_scale(x * 1j, fwd)
    with pytest.raises(DeviceError, match="info_fwd must"):
        sparse_scale(x, fwd.to("meta"))


def test_meta_tensors_have_the_shape_and_no_numbers() -> None:
    info, transpose = sparse_scale_infos(*TERMS, in_size=ROWS, out_size=OUT)
    x = torch.ones(2, 3, ROWS, 4, device="meta", requires_grad=True)
    y = sparse_scale(x, info.to("meta"), transpose.to("meta"))
    assert y.is_meta
    assert y.shape == (2, 3, OUT, 4)
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
