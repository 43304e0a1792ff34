"""Dtypes of operands and sums, torch's default dtype, and checks that operands share dtype, device and batch axes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .checks import check_tensor
from .errors import DeviceError, DTypeError, ShapeError
from .torch_internals import under_autocast

#: Dtype in which sums are formed: never below float32.
ACCUMULATE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
DTYPES = tuple(ACCUMULATE)


def widest_under_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, converted to their widest dtype under autocast, else unchanged.

    Tensors of width 0 (weights of layers that have none) do not count.
    """
    if not under_autocast(tensors[0].device.type):
        return tensors
    dtypes = (t.dtype for t in tensors if not t.ndim or t.shape[-1])
    widest = functools.reduce(torch.promote_types, dtypes, tensors[0].dtype)
    return tuple(t.to(widest) for t in tensors)


def of_one_dtype(**tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, in their widest dtype under autocast; errors as of `check_same_dtype`."""
    checked = tuple(tensors.values())
    first = checked[0]
    if first.is_cpu and not torch.is_autocast_enabled("cpu") and (dtype := first.dtype) in ACCUMULATE:
        for t in checked:
            if not (t.dtype is dtype and t.is_cpu):
                break
        else:
            return checked
    checked = widest_under_autocast(*checked)
    check_same_dtype(**dict(zip(tensors, checked, strict=True)))
    return checked


def check_same_dtype(**tensors: Tensor) -> None:
    """Raise DTypeError or DeviceError unless all tensors share one supported floating dtype and one device.

    Tensors of width 0 (weights of layers that have none) may have any, but for the first tensor.
    """
    (first_name, first), *rest = tensors.items()
    rest = [(name, t) for name, t in rest if not isinstance(t, Tensor) or t.shape[-1:] != (0,)]
    for name, tensor in ((first_name, first), *rest):
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
            raise device_error(name, tensor, first_name, first)


def device_error(name: str, tensor: Tensor, first_name: str, first: Tensor) -> DeviceError:
    """The error of a tensor that is not on the device of another one."""
    return DeviceError(
        f"{name} must be on the device of {first_name}, {first.device}, got {tensor.device}. "
        f"Move it with `.to('{first.device}')`."
    )


def broadcast_shapes(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Broadcast shapes. torch.broadcast_shapes takes longer than a small product even if all shapes are equal."""
    nonempty = [tuple(shape) for shape in shapes if len(shape)]  # compared, not put into a set: sizes may be symbols
    if all(shape == nonempty[0] for shape in nonempty[1:]):
        return nonempty[0] if nonempty else ()
    return tuple(torch.broadcast_shapes(*nonempty))


def broadcast_lead(**shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast the leading (batch) axes of several tensors, or raise ShapeError with their names."""
    try:
        return broadcast_shapes(shapes.values())
    except RuntimeError:
        raise ShapeError(
            f"leading axes of {', '.join(shapes)} must broadcast, got {[list(s) for s in shapes.values()]}. "
            f"Give them equal batch axes."
        ) from None


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype within a block; e3nn rounds constants of new layers to it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
