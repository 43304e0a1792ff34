"""Operands of one call share a dtype, a device and batch axes."""

import pytest
import torch

from eqlayers.core.dtypes import broadcast_lead, check_same_dtype
from eqlayers.errors import DeviceError, DTypeError, ShapeError


def test_leading_axes_broadcast():
    assert broadcast_lead(x=(), y=(2, 1), w=(3,)) == (2, 3)
    assert broadcast_lead(x=(), y=()) == ()
    with pytest.raises(ShapeError, match=r"leading axes of x, y must .*got \[\[2\], \[3\]\]"):
        broadcast_lead(x=(2,), y=(3,))


def test_kinds_must_agree():
    x = torch.zeros(2)
    check_same_dtype(a=x, b=x, c=x)
    check_same_dtype(a=x, b=x[:0].long(), c=x[:0].to("meta"))  # nothing of these is read
    with pytest.raises(DTypeError, match=r"c must have the dtype of a, torch\.float32, got torch\.float64.*Convert"):
        check_same_dtype(a=x, b=x, c=x.double())
    with pytest.raises(DeviceError, match=r"b must be on the device of a, cpu, got meta.*\.to\('cpu'\)"):
        check_same_dtype(a=x, b=x.to("meta"))
    with pytest.raises(DTypeError, match=r"a must be float64, float32, float16 or bfloat16, got torch\.int64"):
        check_same_dtype(a=x.long())
    with pytest.raises(DTypeError, match=r"b must be a tensor .*got \[1\.0\]\. Use torch\.as_tensor"):
        check_same_dtype(a=x, b=[1.0])
