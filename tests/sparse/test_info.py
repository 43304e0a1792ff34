"""The infos: named tuples that are checked when they are made, move whole, and keep no cache in copies."""

import copy
import pickle
import re

import pytest
import torch

from eqlayers.errors import DeviceError, DTypeError, EqlayersError, IndexRangeError, ShapeError
from eqlayers.functional import sparse_mul
from eqlayers.sparse import SparseProductInfo, SparseScaleInfo
from tests.each import each


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def full(**changes):
    """An info with every field given."""
    fields = {
        "scale": torch.tensor([0.1, 2.0, -3.0], dtype=torch.float64),
        "index1": ints(1, 0, 1),
        "index2": ints(0, 2, 2),
        "seg_out": ints(0, 2, 2, 4),
        "gather_index": ints(2, 0, 1, 1),
        "index_out": ints(4, 0, 2),
        "out_size": 5,
    }
    return SparseProductInfo(**(fields | changes))


def scale_info(**changes):
    fields = {"scale": torch.tensor([0.5, 3.0]).double(), "index": ints(1, 0), "seg_out": ints(0, 1, 2), "out_size": 3}
    return SparseScaleInfo(**(fields | changes))


MADE = (full, scale_info)


def same(a, b):
    """Equal fields: values, dtypes and devices."""
    return type(a) is type(b) and all(
        x == y if x is None or y is None or isinstance(x, int) else torch.equal(x, y) and x.dtype == y.dtype
        for x, y in zip(a, b, strict=True)
    )


def test_fields_are_those_of_the_specification_in_its_order():
    assert SparseProductInfo._fields == (
        "scale", "index1", "index2", "seg_out", "gather_index", "index_out", "out_size",
    )  # fmt: skip
    assert SparseScaleInfo._fields == ("scale", "index", "seg_out", "out_size")
    info = SparseProductInfo(torch.ones(2).double(), ints(0, 1), ints(1, 0), ints(0, 2), ints(1, 0), ints(1), 2)
    assert info[6] == 2
    assert info.gather_index is info[4]
    assert isinstance(info, tuple)
    assert SparseProductInfo() == (None,) * 7
    scale, index, seg_out, out_size = scale_info()
    assert (index.tolist(), seg_out.tolist(), out_size) == ([1, 0], [0, 1, 2], 3)
    assert scale.dtype == torch.float64


@each("make", MADE)
def test_copies_are_equal_and_independent(make):
    info = make()
    assert not same(info, info._replace(scale=None))
    for copied in (pickle.loads(pickle.dumps(info)), copy.deepcopy(info), copy.copy(info)):
        assert same(info, copied)
    assert copy.deepcopy(info).scale.data_ptr() != info.scale.data_ptr()
    assert same(info, info.to("cpu"))
    assert same(info, info.cpu())
    assert same(info, type(info)(**info._asdict()))
    assert same(info, type(info)._make(info))


@each("make", MADE)
def test_a_dtype_changes_the_scale_only_and_leaves_the_indices_where_they_are(make):
    info = make()
    for dtype in (torch.float32, torch.bfloat16):
        cast = info.to(dtype)
        assert type(cast) is type(info)
        assert cast.scale.dtype == dtype
        for name, value in info._asdict().items():
            if name != "scale":
                assert getattr(cast, name) is value
    assert info.scale.dtype == torch.float64


@each("make", MADE)
def test_a_device_moves_every_tensor(make):
    info = make()
    for moved in (info.to("meta"), info.to(device=torch.device("meta")), info.to(torch.empty(0, device="meta"))):
        assert moved.device == torch.device("meta")
        assert all(v.device.type == "meta" for v in moved if isinstance(v, torch.Tensor))
        assert moved.out_size == info.out_size
    both = info.to("meta", torch.float32)
    assert (both.scale.dtype, both.scale.device.type) == (torch.float32, "meta")
    assert SparseProductInfo(out_size=3).device is None
    assert SparseProductInfo(out_size=3).to("meta").out_size == 3


def test_on_moves_once():
    info, meta = full(), torch.device("meta")
    assert info.on(torch.device("cpu")) is info
    assert info.on(meta) is info.on(meta)
    assert info.on(meta).device == meta
    assert SparseProductInfo().on(meta).device is None


def test_caches_are_kept_per_info_and_neither_pickled_nor_copied():
    info, calls = full(), []
    for _ in range(2):
        info.cached("key", lambda: calls.append(1))
    assert calls == [1]
    before = len(pickle.dumps(full()))
    info.terms(3, 3)
    info.on(torch.device("meta"))
    assert len(pickle.dumps(info)) == before
    for copied in (pickle.loads(pickle.dumps(info)), copy.deepcopy(info), info.to("cpu"), info._replace(out_size=6)):
        copied.cached("key", lambda: calls.append(2))
    assert calls == [1, 2, 2, 2, 2]


def test_terms_are_written_out_in_the_order_of_segments():
    terms = full().terms(2, 3)
    assert terms.scale.tolist() == [-3.0, 0.1, 2.0, 2.0]
    assert terms.index1.tolist() == [1, 1, 0, 0]
    assert terms.index2.tolist() == [2, 0, 2, 2]
    assert terms.row.tolist() == [4, 4, 2, 2]
    plain = SparseProductInfo()
    assert plain.terms(2, 2).row.tolist() == [0, 1]
    assert plain.terms(4, 4).row.tolist() == [0, 1, 2, 3]  # not what was cached for two rows


def test_counts():
    assert (full().num_terms, full().num_segments, full().rows(9, 9)) == (3, 3, (3, 3, 5))
    assert SparseProductInfo().rows(4, 4) == (4, 4, 4)
    assert SparseProductInfo(gather_index=ints(1, 1, 0)).rows(2, 2) == (2, 3, 3)
    assert SparseProductInfo(index2=ints(1, 1), out_size=7).rows(5, 5) == (2, 2, 7)
    assert SparseProductInfo().num_terms is None
    assert SparseProductInfo().num_segments is None


LATE = {
    "segments beyond": (SparseProductInfo(seg_out=ints(0, 1, 4)), IndexRangeError, r"seg_out .*end at most at 3"),
    "index_out short": (SparseProductInfo(index_out=ints(1, 0), out_size=5), ShapeError, r"must have 3 entries.*got 2"),
    "index_out long": (SparseProductInfo(index_out=ints(3, 2, 1, 0), out_size=5), ShapeError, r"3 entries.*got 4"),
    "small out_size": (SparseProductInfo(out_size=2), ShapeError, r"at least 3, one row per segment, got 2"),
    "gather beyond": (SparseProductInfo(gather_index=ints(0, 3)), IndexRangeError, r"input1 must have at least 4 .* 3"),
}


@pytest.mark.parametrize("backend", ["reference", "torch"])
@each("info, error, message", LATE.values())
def test_what_only_the_operands_say_is_checked_with_them(info, error, message, backend):
    with pytest.raises(error, match=message):
        sparse_mul(torch.ones(3, 1), torch.ones(3, 1), info, backend=backend)
    sparse_mul(torch.ones(4, 1), torch.ones(4, 1), SparseProductInfo(seg_out=ints(0, 1, 4)), backend=backend)


WRONG = {
    "scale integer": ({"scale": ints(1, 2, 3)}, DTypeError, r"\.scale must be floating-point, got torch\.int64"),
    "scale complex": ({"scale": torch.ones(3) * 1j}, DTypeError, r"\.scale must be floating-point, got torch\.complex"),
    "scale list": ({"scale": [1.0, 2.0, 3.0]}, DTypeError, r"1-D floating-point tensor or None, got list.*tensor"),
    "index1 int32": ({"index1": ints(1, 0, 1).int()}, DTypeError, r"\.index1 must be int64, got torch\.int32.*\.to"),
    "index2 float": ({"index2": torch.ones(3)}, DTypeError, r"\.index2 must be int64, got torch\.float32"),
    "seg_out float": ({"seg_out": torch.zeros(4)}, DTypeError, r"\.seg_out must be int64"),
    "gather_index bool": ({"gather_index": torch.ones(4).bool()}, DTypeError, r"\.gather_index must be int64"),
    "index_out float": ({"index_out": torch.ones(3)}, DTypeError, r"\.index_out must be int64"),
    "scale axes": ({"scale": torch.ones(3, 1)}, ShapeError, r"\.scale must have one axis, got shape \[3, 1\].*Flatten"),
    "index1 axes": ({"index1": ints(1)[0]}, ShapeError, r"\.index1 must have one axis, got shape \[\]"),
    "scale short": ({"scale": torch.ones(2)}, ShapeError, r"one entry per term each, got lengths .*'scale': 2"),
    "index2 long": ({"index2": ints(0, 0, 0, 0)}, ShapeError, r"one entry per term each, got lengths .*'index2': 4"),
    "index1 negative": ({"index1": ints(0, -1, 0)}, IndexRangeError, r"\.index1 .*negative.* from -1 to 0"),
    "index2 negative": ({"index2": ints(0, -2, 0)}, IndexRangeError, r"\.index2 .*negative.* from -2 to 0"),
    "gather negative": ({"gather_index": ints(0, -1, 0, 0)}, IndexRangeError, r"\.gather_index .* from -1 to 0"),
    "gather beyond": ({"gather_index": ints(0, 3, 0, 0)}, IndexRangeError, r"gather_index must lie in \[0, 3\)"),
    "segments fall": ({"seg_out": ints(0, 2, 1, 4)}, IndexRangeError, r"never fall.*got \[0, 2, 1, 4\].*Sort"),
    "segments negative": ({"seg_out": ints(-1, 0, 2, 4)}, IndexRangeError, r"start at 0 or later"),
    "segments beyond": ({"seg_out": ints(0, 2, 2, 5)}, IndexRangeError, r"end at most at 4, the number of terms"),
    "no segment entry": ({"seg_out": ints()}, ShapeError, r"one entry more than there are segments, got none"),
    "index_out repeats": ({"index_out": ints(4, 0, 4)}, IndexRangeError, r"not repeat a row, got \[4, 0, 4\].*Merge"),
    "index_out short": ({"index_out": ints(4, 0)}, ShapeError, r"index_out must have 3 entries, .* got 2"),
    "index_out beyond": ({"index_out": ints(4, 0, 5)}, IndexRangeError, r"index_out must lie in \[0, 5\)"),
    "index_out negative": ({"index_out": ints(4, 0, -1)}, IndexRangeError, r"index_out must lie in \[0, 5\)"),
    "no out_size": ({"out_size": None}, ShapeError, r"out_size must be given with index_out, got None"),
    "small out_size": ({"out_size": 2, "index_out": None}, ShapeError, r"at least 3, one row per segment, got 2"),
    "negative out_size": ({"out_size": -1, "index_out": None}, ShapeError, r"a count of rows, got -1"),
    "float out_size": ({"out_size": 5.0}, ShapeError, r"a count of rows, got 5\.0"),
    "two devices": ({"scale": torch.ones(3, device="meta")}, DeviceError, r"one device, got cpu, meta.*\.to\(device\)"),
}


@each("changes, error, message", WRONG.values())
def test_wrong_fields_are_refused_at_construction_and_by_replace(changes, error, message):
    good = full()
    for make in (full, good._replace, lambda **c: SparseProductInfo._make((good._asdict() | c).values())):
        with pytest.raises(error, match=f"(?s)SparseProductInfo.*{message}"):
            make(**changes)


WRONG_SCALE = {
    "index float": ({"index": torch.ones(2)}, DTypeError, r"\.index must be int64, got torch\.float32"),
    "index negative": ({"index": ints(-1, 0)}, IndexRangeError, r"\.index .*negative"),
    "lengths": ({"index": ints(0)}, ShapeError, r"one entry per term each, got lengths \{'scale': 2, 'index': 1\}"),
    "segments beyond": ({"seg_out": ints(0, 1, 3)}, IndexRangeError, r"\.seg_out .*end at most at 2"),
    "segments fall": ({"seg_out": ints(0, 2, 1)}, IndexRangeError, r"\.seg_out .*never fall"),
    "small out_size": ({"out_size": 1}, ShapeError, r"\.out_size must be at least 2, one row per segment, got 1"),
    "scale axes": ({"scale": torch.ones(2, 1)}, ShapeError, r"\.scale must have one axis"),
    "two devices": ({"scale": torch.ones(2, device="meta")}, DeviceError, r"one device, got cpu, meta"),
}


@each("changes, error, message", WRONG_SCALE.values())
def test_wrong_fields_of_a_scale_are_refused_in_its_own_words(changes, error, message):
    for make in (scale_info, scale_info()._replace):
        with pytest.raises(error, match=f"(?s)SparseScaleInfo.*{message}") as caught:
            make(**changes)
        assert not re.search("SparseProductInfo|index1|index2|sparse_product_infos", str(caught.value))
        assert isinstance(caught.value, EqlayersError)


def test_long_segments_are_shortened_in_messages():
    falling = torch.cat([torch.arange(20), ints(3)])
    with pytest.raises(IndexRangeError, match=r"\[0, 1, .*8, 9, \.\.\. \(21 entries\)\]"):
        SparseProductInfo(seg_out=falling)


def test_no_values_are_looked_at_off_the_cpu():
    wrong = {"index1": ints(-1, 0, 1).to("meta"), "seg_out": ints(3, 0, 1, 9).to("meta"), "out_size": 5}
    info = SparseProductInfo(**wrong)
    assert info.num_segments == 3
