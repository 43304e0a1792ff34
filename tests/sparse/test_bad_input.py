"""Bad operands of the functional layer: each is refused with what was expected, what came, and the fix."""

import pytest
import torch

from eqlayers import functional
from eqlayers.errors import ConfigError, DeviceError, DTypeError, IndexRangeError, ShapeError
from eqlayers.functional import sparse_mul, sparse_product, sparse_scale
from eqlayers.sparse import SparseProductInfo, sparse_product_infos, sparse_scale_infos
from eqlayers.sparse.table import NAMED
from tests.cases import default_dtype
from tests.each import each

INFOS = sparse_product_infos([0, 3, 1], [4, 0, 2], [1, 1, 0], [0.1, 0.7, 1.3], in1_size=4, in2_size=5, out_size=2)
BACKENDS = [None, "reference", "torch"]


def x(*shape, **options):
    return torch.ones(*(shape or (2, 4, 3)), **options)


def y(*shape, **options):
    return torch.ones(*(shape or (2, 5, 3)), **options)


OPERANDS = {
    "mixed dtypes": (x(), y().double(), DTypeError, r"input2 .*dtype of input1, torch\.float32, got .*64"),
    "mixed halves": (x().half(), y().bfloat16(), DTypeError, "float16, got torch.bfloat16.*Convert one"),
    "integers": (x().long(), y(), DTypeError, "input1 must be float64, .*int64"),
    "integer second": (x(), y().int(), DTypeError, r"input2 must be float64, .*int32.*\.to\("),
    "float8": (x().to(torch.float8_e5m2), y(), DTypeError, "input1 must be float64, .*float8_e5m2"),
    "list": ([[1.0]], y(), DTypeError, r"input1 must be a tensor .*got \[\[1\.0\]\]\. Use torch"),
    "mixed devices": (x(), y(device="meta"), DeviceError, "input2 .*device of input1, cpu, got meta"),
    "no channel axis": (x(4), y(), ShapeError, r"input1 .*M, u\] .*shape \[4\].*\.unsqueeze\(-1\)"),
    "no axes": (x(), torch.ones(()), ShapeError, r"input2 .*M, u\] .*shape \[\]"),
    "channels": (x(), y(2, 5, 4), ShapeError, "axis 'u' of 'u,u->u' .*3 in input1 and 4 in input2"),
    "swapped axes": (x(2, 3, 4), y(), ShapeError, "axis 'u'.*order of the axes: the sparse axis M comes before"),
    "one channel against three": (x(2, 4, 1), y(), ShapeError, "1 in input1 and 3 in input2"),
    "batch": (x(3, 4, 3), y(4, 5, 3), ShapeError, r"\(batch\) axes .*\[3\] and \[4\].*shared by all rows"),
    "two batch axes": (x(2, 3, 4, 3), y(2, 4, 5, 3), ShapeError, r"\[2, 3\] and \[2, 4\]"),
    "batch of none": (x(0, 4, 3), y(2, 5, 3), ShapeError, r"\[0\] and \[2\]"),
    "few rows 1": (x(2, 3, 3), y(), IndexRangeError, "input1 .*at least 4 sparse rows, .*row 3; got 3.*Check"),
    "few rows 2": (x(), y(2, 4, 3), IndexRangeError, "input2 .*at least 5 sparse rows, .*row 4; got 4"),
    "no rows": (x(2, 0, 3), y(), IndexRangeError, "input1 .*at least 4 sparse rows, .*; got 0"),
}
MISFITS = {
    r"input1 .*3 sparse rows.*index1 is None": SparseProductInfo(index2=torch.tensor([0, 1, 2])),
    r"input2 .*3 sparse rows.*index2 is None": SparseProductInfo(index1=torch.tensor([0, 1, 2])),
    r"input2 .*4 sparse rows, one per term \(index2 is None\), got 5": SparseProductInfo(),
    r"input2 .*4 sparse rows, one per term": SparseProductInfo(scale=torch.ones(4)),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_operands_that_do_not_fit(backend):
    for first, second, error, message in OPERANDS.values():
        with pytest.raises(error, match=message):
            sparse_product("mul", first, second, *INFOS, backend=backend)
    for message, info in MISFITS.items():
        with pytest.raises(ShapeError, match=message):
            sparse_mul(x(), y(), info, backend=backend)


@each("product", NAMED)
def test_every_product_checks_its_own_axes(product):
    channels = NAMED[product].replace("->", ",").split(",")
    good = [torch.ones(2, rows, *(3 for _ in letters)) for rows, letters in zip((4, 5), channels, strict=False)]
    for call in (getattr(functional, f"sparse_{product}"), lambda *a: sparse_product(product, *a)):
        call(*good, *INFOS)
        for number, letters in enumerate(channels[:2]):
            axes = "".join(f", {c}" for c in letters)
            bad = list(good)
            bad[number] = torch.ones([3] * len(letters))
            with pytest.raises(ShapeError, match=rf"input{number + 1} must be \[\.\.\., M{axes}\] for channels"):
                call(*bad, *INFOS)


def test_more_rows_than_the_terms_name_are_fine():
    z = sparse_mul(x(2, 9, 3), y(2, 8, 3), INFOS[0])
    assert torch.equal(z, sparse_mul(x(), y(), INFOS[0]))


def test_infos_on_another_device():
    first, second = x(), y()
    message = r"info_{} must be on the device of the operands, cpu, got meta\. Move the infos with `\.to\('cpu'\)`"
    for number, name in enumerate(("fwd", "bwd1", "bwd2")):
        infos = [info.to("meta") if i == number else info for i, info in enumerate(INFOS)]
        with pytest.raises(DeviceError, match=message.format(name)):
            sparse_mul(first, second, *infos)
    with pytest.raises(DeviceError, match="info_fwd must"):
        sparse_mul(first.to("meta"), second.to("meta"), *INFOS)


def test_infos_and_names_that_do_not_exist():
    matrix, _ = sparse_scale_infos([0], [0], in_size=4, out_size=2)
    with pytest.raises(DTypeError, match=r"info_fwd must .*got .*sparse_product_infos"):
        sparse_mul(x(), y(), matrix)
    with pytest.raises(DTypeError, match="info_bwd1 must"):
        sparse_mul(x(), y(), INFOS[0], True)
    with pytest.raises(ConfigError, match=r"product must be one of mul, outer.*got 'dot'.*register_product"):
        sparse_product("dot", x(), y(), *INFOS)
    with pytest.raises(ConfigError, match=r"channels must read like 'u,uv->v'.*got 'u->u'"):
        sparse_product("u->u", x(), y(), *INFOS)


def test_errors_leave_no_trace():
    """A refused call changes neither the info nor what a good call gives afterwards."""
    fresh = sparse_product_infos([0, 3, 1], [4, 0, 2], [1, 1, 0], [0.1, 0.7, 1.3], in1_size=4, in2_size=5, out_size=2)
    for first, second, error, _ in OPERANDS.values():
        with pytest.raises(error):
            sparse_mul(first, second, *fresh)
    assert torch.equal(sparse_mul(x(), y(), *fresh), sparse_mul(x(), y(), *INFOS))


@each("default", [torch.float64, torch.float32])
def test_messages_and_results_do_not_depend_on_torch_defaults(default):
    first, second = torch.randn(2, 4, 3, dtype=torch.float32), torch.randn(2, 5, 3, dtype=torch.float32)
    want = sparse_mul(first, second, *INFOS)
    matrix = sparse_scale_infos([1, 0], [0, 0], [1 / 3, 1.0], in_size=4, out_size=1)
    scaled = sparse_scale(first, *matrix)
    with default_dtype(default):
        got, again = sparse_mul(first, second, *INFOS), sparse_scale(first, *matrix)
        with pytest.raises(DTypeError, match=r"torch\.float32, got torch\.float64"):
            sparse_mul(first, second.double(), *INFOS)
    assert got.dtype == again.dtype == torch.float32
    assert torch.equal(got, want)
    assert torch.equal(again, scaled)


def test_nan_stays_in_its_own_batch_row():
    first = x()
    first[1, 3] = torch.nan
    for backend in ("reference", "torch"):
        z = sparse_mul(first, y(), INFOS[0], backend=backend)
        assert not z[0].isnan().any()
        assert z[1, 1].isnan().all()
