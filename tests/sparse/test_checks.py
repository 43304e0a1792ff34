"""Fields of infos that do not fit are refused where an info is made, in the words of its class."""

import re

import pytest
import torch

from eqlayers.errors import DeviceError, DTypeError, EqlayersError, IndexRangeError, ShapeError
from eqlayers.sparse import SparseProductInfo
from tests.each import each
from tests.sparse.test_info import full, ints, scale_info

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
