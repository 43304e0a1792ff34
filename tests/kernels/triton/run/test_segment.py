"""The segment kernel's launcher: which elements are read and written, the grid, the reach of offsets."""

import itertools

import pytest
import torch

pytest.importorskip("triton", minversion="3.6")

from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.run import segment
from tests.cases import reserved

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
WIDTHS = {"u": 5, "v": 3}
SENTINEL = 1234.0
LONG = 2**30 + 8  # a stride that fits into int32; twice the stride does not


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


TERMS = segment.Terms(
    torch.tensor([1.5, -2.0, 0.5, 3.0], dtype=torch.float64, device=DEVICE),
    ints(0, 2, 1, 2), ints(2, 0, 1, 1), ints(0, 1, 1, 4), ints(3, 0, 2, 1), ints(4, 1, 0),
)  # fmt: skip


def operands(op: str, batch: int = 3, rows: int = 3, dtype: torch.dtype = torch.float64):
    second = segment.LETTERS[op][0]
    x = torch.randn(batch, rows, WIDTHS["u"], dtype=torch.float64).to(DEVICE, dtype)
    y = torch.randn(batch, rows, *(WIDTHS[c] for c in second), dtype=torch.float64).to(DEVICE, dtype)
    return x, None if op == "scale" else y


def expected(op: str, x, y, terms: segment.Terms, rows: int) -> torch.Tensor:
    """The definition, written once more: term by term."""
    second, out = segment.LETTERS[op]
    z = x.new_zeros(x.shape[0], rows, *(WIDTHS[c] for c in out))
    bounds = terms.seg_out.tolist()
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        for t in terms.gather_index[start:stop].tolist():
            b = x.new_ones(x.shape[0]) if y is None else y[:, terms.index2[t]]
            kernel = torch.einsum(f"nu,n{second}->n{out}", x[:, terms.index1[t]], b)
            z[:, terms.index_out[number]] += terms.scale[t] * kernel
    return z


def fenced(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """The tensor as a view into a larger buffer that holds ``value`` on all sides."""
    buffer = torch.full([n + 2 for n in tensor.shape], value, dtype=tensor.dtype, device=tensor.device)
    inside = buffer[tuple(slice(1, -1) for _ in tensor.shape)]
    inside.copy_(tensor)
    return inside


@pytest.mark.parametrize("summed", [False, True], ids=["batched", "summed"])
@pytest.mark.parametrize("op", segment.LETTERS)
def test_nothing_is_touched_outside_the_tensors(op, summed, monkeypatch):
    """Operands lie in seas of NaN, results in a sea of sentinels, their own elements NaN until written."""
    x, y = operands(op)
    buffers = []

    def allocate(like, shape, dtype, fill):
        inside = fenced(torch.full(shape, 0.0 if fill else torch.nan, dtype=dtype, device=DEVICE), SENTINEL)
        buffers.append(inside)
        return inside

    monkeypatch.setattr(segment, "allocate", allocate)
    inputs = fenced(x, torch.nan), None if y is None else fenced(y, torch.nan)
    for terms, rows in ((TERMS, 6), (TERMS._replace(index_out=None), 3)):  # the second fills no zeros
        got = segment.product(segment.Problem(op, 3, rows, 3, (True, True, not summed)), *inputs, terms)
        want = expected(op, x, y, terms if rows == 6 else terms._replace(index_out=ints(0, 1, 2)), rows)
        torch.testing.assert_close(got, want.sum(0) if summed else want, rtol=1e-13, atol=1e-13)
        buffer = buffers.pop()._base
        written = torch.zeros_like(buffer, dtype=torch.bool)
        written[tuple(slice(1, -1) for _ in buffer.shape)] = True
        assert (buffer[~written] == SENTINEL).all()
        assert not buffer[written].isnan().any()


def far(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The tensor with a stride of 2**30 and more along one axis, in memory that is only reserved."""
    strides = list(torch.empty(tensor.shape, device="meta").stride())
    strides[axis] = LONG
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) + 1
    view = torch.frombuffer(reserved(2 * reach), dtype=tensor.dtype).as_strided(tensor.shape, strides)
    assert 2 * strides[axis] > 2**31
    return view.copy_(tensor)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="reserved memory is the host's")
@pytest.mark.parametrize(
    ("op", "which", "axis"),
    [
        *(("vecmat", "x", axis) for axis in range(3)),
        *(("vecmat", "y", axis) for axis in range(4)),
        *(("outer", "z", axis) for axis in range(4)),
        ("inner", "y", 2),
    ],
)
def test_offsets_pass_the_range_of_int32(op, which, axis, monkeypatch):
    x, y = operands(op, dtype=torch.float16)
    terms = TERMS._replace(scale=TERMS.scale.float())
    problem = segment.Problem(op, 3, 5, 3, (True, True, True))
    want = segment.product(problem, x, y, terms)
    assert want.abs().max() > 0.1
    if which == "z":
        monkeypatch.setattr(
            segment, "allocate", lambda like, shape, dtype, fill: far(torch.zeros(shape, dtype=dtype), axis)
        )
    got = segment.product(problem, far(x, axis) if which == "x" else x, far(y, axis) if which == "y" else y, terms)
    assert torch.equal(got, want)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_operands_without_batch_axes_are_multiplied_once(batch):
    x = torch.randn(3, 4, device=DEVICE)
    each, summed = (
        segment.product(segment.Problem("mul", 3, 3, batch, (False, False, kept)), x, x, segment.Terms())
        for kept in (True, False)
    )
    assert torch.equal(each, (x * x).expand(batch, 3, 4))
    assert torch.equal(summed, x * x * batch)


def test_a_long_grid_lies_along_axis_0():
    segments = 70_000
    x = torch.zeros(1, segments, 1, device=DEVICE)
    problem = segment.Problem("mul", segments, segments, 1, (True, True, True))
    _, (one,) = segment.prepare(problem, x, x, segment.Terms(), "cuda")
    assert one.grid == (segments, 1, 1)


@pytest.mark.gpu
def test_more_segments_than_a_short_axis_of_the_grid_holds():
    x = torch.randn(2, 70_000, 3, device=DEVICE)
    got = segment.product(segment.Problem("mul", 70_000, 70_000, 2, (True, True, True)), x, x, segment.Terms())
    assert torch.equal(got, x * x)


@pytest.mark.parametrize("summed", [False, True], ids=["batched", "summed"])
def test_a_grid_that_is_too_long_is_cut(summed, monkeypatch):
    monkeypatch.setattr(tuning, "TABLE", {"mul": tuning.Tuning(block_u=8, block_v=1, elements=16, num_warps=1)})
    monkeypatch.setattr(tuning, "TILES_PER_CHUNK", 1)
    monkeypatch.setattr(segment, "MAX_GRID", 7)  # 3 segments: 2 of the 5 tiles of the batch fit
    x, y = operands("mul", batch=5)
    problem = segment.Problem("mul", 3, 5, 5, (True, True, not summed))
    assert [one.grid[0] for one in segment.prepare(problem, x, y, TERMS, "cuda")[1]] == [6, 6, 3]
    want = expected("mul", x, y, TERMS, 5)
    torch.testing.assert_close(segment.product(problem, x, y, TERMS), want.sum(0) if summed else want)
    with pytest.raises(ValueError, match=r"must be at most 7, the length of a grid, got 8\. Split"):
        segment.prepare(problem._replace(segments=8), x, y, TERMS, "cuda")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_pieces_of_a_sum_over_the_batch_are_not_rounded(dtype, monkeypatch):
    monkeypatch.setattr(tuning, "TABLE", {"mul": tuning.Tuning(block_u=8, block_v=1, elements=16, num_warps=1)})
    monkeypatch.setattr(tuning, "TILES_PER_CHUNK", 1)
    x, y = operands("mul", batch=5, dtype=dtype)
    kernels, _ = segment.prepare(segment.Problem("mul", 3, 5, 5, (True, True, False)), x, y, TERMS, "cuda")
    assert kernels.shape == ((3 if dtype != torch.float64 else 5), 5, 5)
    assert kernels.dtype == segment.accumulator(dtype)


def test_rows_that_no_segment_names_are_zero_and_only_they_are_filled(monkeypatch):
    filled = []
    original = segment.allocate
    monkeypatch.setattr(segment, "allocate", lambda *args: filled.append(args[-1]) or original(*args))
    x, y = operands("mul")
    for terms, rows in ((TERMS, 5), (TERMS._replace(index_out=None), 5), (TERMS._replace(index_out=None), 3)):
        got = segment.product(segment.Problem("mul", 3, rows, 3, (True, True, True)), x, y, terms)
        named = ints(4, 1, 0) if terms.index_out is not None else ints(0, 1, 2)
        others = torch.ones(rows, dtype=torch.bool, device=DEVICE).index_fill(0, named, False)
        assert (got[:, others] == 0).all()
        assert got.isfinite().all()
    assert filled == [True, True, False]


def test_why_not_is_silent_where_kernels_run():
    assert availability.why_not() is None
    assert availability.interpreted() == (DEVICE.type == "cpu")


def test_an_old_release_is_refused(monkeypatch):
    import triton

    monkeypatch.setattr(triton, "__version__", "3.5.1+git1234")
    why_not = availability.why_not.__wrapped__  # what is known already is not asked again
    assert why_not() == "needs Triton 3.6 or newer, got 3.5.1+git1234; newer builds of torch bring it"
    monkeypatch.setattr(triton, "__version__", "3.10.0")
    assert why_not() is None
