"""Checks of the fields of an info: the index structure of a sparse product or scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import DTypeError, IndexRangeError, ShapeError
from ..core.torch_internals import being_traced


class Words(NamedTuple):
    """Names for error messages: the class of an info, its index fields, and the operands."""

    owner: str
    indices: tuple[str, ...]
    inputs: tuple[str, ...]


PRODUCT = Words("SparseProductInfo", ("index1", "index2"), ("input1", "input2"))
SCALE = Words("SparseScaleInfo", ("index",), ("input",))


def check_one_dimensional(name: str, value: Any, integer: bool) -> None:
    """Raise unless ``value`` is a 1-D tensor, int64 or floating-point."""
    dtype = "int64" if integer else "floating-point"
    if not isinstance(value, Tensor):
        raise DTypeError(
            f"{name} must be a 1-D {dtype} tensor or None, got {type(value).__name__}. "
            f"Wrap it with torch.tensor(...), or build the infos from lists of terms."
        )
    if value.dtype != torch.int64 if integer else not value.is_floating_point():
        raise DTypeError(f"{name} must be {dtype}, got {value.dtype}. Convert it with `.to(...)`.")
    if value.ndim != 1:
        raise ShapeError(f"{name} must have one axis, got shape {list(value.shape)}. Flatten it first.")


def check_lengths(per_term: Mapping[str, Tensor | None], owner: str = "") -> None:
    """Raise unless all tensors have equal lengths."""
    lengths = {name: value.shape[0] if value.ndim else 0 for name, value in per_term.items() if value is not None}
    if len(set(lengths.values())) > 1:
        names = ", ".join(f"{owner}{name}" for name in lengths)
        raise ShapeError(f"{names} must have one entry per term each, got lengths {lengths}. Give each term all.")


def check_in_range(name: str, value: Tensor, size: int, what: str) -> None:
    """Raise unless all values lie in [0, size)."""
    # Values are read on the CPU only, where builders work: on a GPU the read would wait for the stream.
    if value.device.type != "cpu" or value.numel() == 0 or being_traced():  # tensors of a trace were checked before
        return
    low, high = int(value.min()), int(value.max())
    if low < 0 or high >= size:
        raise IndexRangeError(
            f"{name} must lie in [0, {size}) ({what}), got values from {low} to {high}. "
            f"Correct the index, or the size given to the builder."
        )


def check_segments(owner: str, seg_out: Tensor, end: int | None) -> None:
    """Raise unless segment boundaries are non-negative, do not decrease, and are at most ``end``."""
    if seg_out.shape[0] == 0:
        raise ShapeError(
            f"{owner}.seg_out must have one entry more than there are segments, got none. Pass [0] for no segments."
        )
    if seg_out.device.type != "cpu" or being_traced():
        return
    first, last = int(seg_out[0]), int(seg_out[-1])
    if first < 0 or bool((seg_out.diff() < 0).any()) or (end is not None and last > end):
        limit = "" if end is None else f" and end at most at {end}, the number of terms"
        raise IndexRangeError(
            f"{owner}.seg_out must start at 0 or later, never fall{limit}; got {short(seg_out)}. "
            f"Sort the terms by output row before cutting them into segments."
        )


def short(values: Tensor) -> str:
    """The values as text, or the first 10 of more than 12."""
    items = values.tolist()
    return str(items) if len(items) <= 12 else f"[{', '.join(map(str, items[:10]))}, ... ({len(items)} entries)]"
