"""One call of a sparse product, checked and brought to the one shape that backends see."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..checks import check_tensor
from ..errors import DeviceError, DTypeError, ShapeError
from ..torch_internals import under_autocast
from .channels import Channels

if TYPE_CHECKING:
    from ..info.structs import SparseProductInfo, SparseScaleInfo

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: Dtype in which sums are formed: never below float32.
ACCUMULATE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


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
        """M1 and M2."""
        return self.x.shape[int(self.batched[0])], self.y.shape[int(self.batched[1])]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        extents = self.extents
        channels = tuple(extents[c] for c in self.channels.out)
        return (*((self.batch,) if self.batched[2] else ()), self.out_rows, *channels)

    @property
    def accumulate(self) -> torch.dtype:
        """Dtype of the sums."""
        return ACCUMULATE[self.x.dtype]


@dataclass(frozen=True)
class ScaleCall:
    """A sparse scale as a backend receives it: ``x [N, M, C]`` to ``[N, out_size, C]``."""

    x: Tensor
    info: SparseScaleInfo

    @property
    def out_rows(self) -> int:
        """Sparse rows of the result."""
        return self.info.as_product().rows(self.x.shape[1], self.x.shape[1])[2]

    @property
    def accumulate(self) -> torch.dtype:
        """Dtype of the sums."""
        return ACCUMULATE[self.x.dtype]


def widest_under_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, the tensors in their widest dtype: other operations hand over a mixture. Else, as they are.

    Tensors of width 0, weights that a layer does not have, say nothing.
    """
    if not under_autocast(tensors[0].device.type):
        return tensors
    said = (t.dtype for t in tensors if not t.ndim or t.shape[-1])
    widest = functools.reduce(torch.promote_types, said, tensors[0].dtype)
    return tuple(t.to(widest) for t in tensors)


def check_same_kind(**tensors: Tensor) -> None:
    """Raise unless all tensors share one supported floating dtype and one device."""
    (first_name, first), *rest = tensors.items()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            check_tensor(name, tensor, "[..., width]")
        if tensor.dtype not in DTYPES:
            raise DTypeError(
                f"{name} must be float64, float32, float16 or bfloat16, got {tensor.dtype}. Convert it with `.to(...)`."
            )
    for name, tensor in rest:
        if tensor.dtype != first.dtype:
            raise DTypeError(
                f"{name} must have the dtype of {first_name}, {first.dtype}, got {tensor.dtype}. "
                f"Convert one of them with `.to({first.dtype})`."
            )
        if tensor.device != first.device:
            raise DeviceError(
                f"{name} must be on the device of {first_name}, {first.device}, got {tensor.device}. "
                f"Move it with `.to('{first.device}')`."
            )


def _broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Broadcast shapes. torch.broadcast_shapes takes longer than a small product even if all shapes are equal."""
    kept = [tuple(shape) for shape in shapes if len(shape)]  # compared, not put into a set: sizes may be symbols
    if all(shape == kept[0] for shape in kept[1:]):
        return kept[0] if kept else ()
    return tuple(torch.broadcast_shapes(*kept))


def broadcast_lead(**shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast the leading (batch) axes of several tensors, or raise ShapeError with their names."""
    try:
        return _broadcast(shapes.values())
    except RuntimeError:
        raise ShapeError(
            f"leading axes of {', '.join(shapes)} must broadcast, got {[list(s) for s in shapes.values()]}. "
            f"Give them equal batch axes."
        ) from None


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
    """Bring leading axes to one batch axis; an operand without leading axes stays shared. Broadcasts the rest."""
    lead = [t.shape[: t.ndim - 1 - len(c)] for t, c in ((x, channels.first), (y, channels.second))]
    try:
        shape = _broadcast(lead)
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
