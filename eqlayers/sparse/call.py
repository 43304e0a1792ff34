"""Calls of sparse products and scales: checked, with leading axes flattened to one batch axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.dtypes import broadcast_shapes
from ..core.errors import DeviceError, DTypeError, GradientError, ShapeError
from .info import SparseProductInfo, SparseScaleInfo
from .table import Channels


@dataclass(frozen=True)
class ProductCall:
    """A sparse product as a backend receives it: checked, with at most one batch axis.

    ``x [N, M1, *first]`` or ``[M1, *first]`` where ``batched[0]`` is False (one row for all), ``y`` likewise, and
    the result ``[N, out_size, *out]`` or, where ``batched[2]`` is False, summed over N. Where neither operand is
    batched and the result is, every one of the N rows is the same.
    """

    channels: Channels
    x: Tensor
    y: Tensor
    info: SparseProductInfo
    batched: tuple[bool, bool, bool]
    batch: int  # N; 1 where nothing is batched

    @property
    def extents(self) -> dict[str, int]:
        """Length of each channel letter."""
        sizes: dict[str, int] = {}
        for letters, operand in ((self.channels.first, self.x), (self.channels.second, self.y)):
            sizes.update(zip(letters, operand.shape[operand.ndim - len(letters) :], strict=True))
        return sizes

    @property
    def out_rows(self) -> int:
        """Sparse rows of the result."""
        return self.info.rows(self.sparse_rows[0], self.sparse_rows[1])[2]

    @property
    def sparse_rows(self) -> tuple[int, int]:
        """Numbers of sparse rows of x and y, M1 and M2."""
        return self.x.shape[int(self.batched[0])], self.y.shape[int(self.batched[1])]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        extents = self.extents
        channels = tuple(extents[c] for c in self.channels.out)
        return (*((self.batch,) if self.batched[2] else ()), self.out_rows, *channels)


@dataclass(frozen=True)
class ScaleCall:
    """A sparse scale as a backend receives it: ``x [N, M, C]`` to ``[N, out_size, C]``."""

    x: Tensor
    info: SparseScaleInfo

    @property
    def out_rows(self) -> int:
        """Sparse rows of the result."""
        return self.info.as_product().rows(self.x.shape[1], self.x.shape[1])[2]


Call = ProductCall | ScaleCall


def check_infos(cls: type[Any], like: Tensor, **infos: Any) -> None:
    """Raise unless infos are of their class and on the device of ``like``; all but the first may be None."""
    for number, (name, info) in enumerate(infos.items()):
        if not isinstance(info, cls) and (info is not None or number == 0):
            raise DTypeError(
                f"{name} must be a {cls.__name__}, got {type(info).__name__}. Build the infos from lists of terms, as "
                f"with eqlayers.sparse.sparse_product_infos or sparse_scale_infos."
            )
        device = None if info is None else info.device
        if device is not None and device != like.device:
            raise DeviceError(
                f"{name} must be on the device of the operands, {like.device}, got {device}. "
                f"Move the infos with `.to('{like.device}')`."
            )


def needed(info: Any, number: int | str, rows: int) -> Any:
    """Check the info of the gradient of input ``number``: it must be given, and have ``rows`` output rows."""
    if info is None:
        raise GradientError(
            f"info_bwd{number} must be given, because the gradient of input{number} is needed, got None. "
            f"Pass all infos of the builder, or detach input{number}."
        )
    if info.out_size is not None and info.out_size != rows:
        raise ShapeError(
            f"info_bwd{number}.out_size must be {rows}, the sparse rows of input{number}, got {info.out_size}. "
            f"Build the infos with in{number}_size={rows}; check that infos of two gradients are not exchanged."
        )
    return info


def check_channels(channels: Channels, x: Tensor, y: Tensor) -> None:
    """Raise unless x and y have the channel axes of the spec, with equal lengths where letters are shared."""
    sizes: dict[str, tuple[str, int]] = {}
    for name, letters, operand in (("input1", channels.first, x), ("input2", channels.second, y)):
        if operand.ndim < 1 + len(letters):
            axes = "".join(f", {c}" for c in letters)
            raise ShapeError(
                f"{name} must be [..., M{axes}] for channels '{channels}', got shape {list(operand.shape)}. "
                f"Add the missing axes, for one channel with `.unsqueeze(-1)`."
            )
        for letter, size in zip(letters, operand.shape[operand.ndim - len(letters) :], strict=True):
            other, known = sizes.setdefault(letter, (name, size))
            if known != size:
                raise ShapeError(
                    f"channel axis '{letter}' of '{channels}' must have one length, got {known} in {other} and {size} "
                    f"in {name}. Check the order of the axes: the sparse axis M comes before the channels."
                )


def flatten_batch(channels: Channels, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Broadcast leading axes and flatten them to one batch axis; operands without leading axes stay as they are."""
    lead = [t.shape[: t.ndim - 1 - len(c)] for t, c in ((x, channels.first), (y, channels.second))]
    try:
        shape = broadcast_shapes(lead)
    except RuntimeError:
        raise ShapeError(
            f"the leading (batch) axes of input1 and input2 must be equal, broadcastable or absent, got "
            f"{list(lead[0])} and {list(lead[1])}. Operands without batch axes are shared by all rows."
        ) from None
    batch = math.prod(shape)
    flat = []
    for tensor, own in ((x, lead[0]), (y, lead[1])):
        if own:
            tail = tensor.shape[len(own) :]
            tensor = tensor if own == shape else tensor.expand(*shape, *tail)
            tensor = tensor if len(shape) == 1 else tensor.reshape(batch, *tail)
        flat.append(tensor)
    return flat[0], flat[1], shape
