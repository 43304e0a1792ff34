"""Checks of arguments, whose errors say what is expected, what was given, and the fix.

Each function returns the accepted value, converted to the type that the code works with. For any other value it raises
ConfigError (DTypeError for tensors and dtypes, DeviceError for devices), or the ``error`` that a caller names.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from .errors import ConfigError, DeviceError, DTypeError, EqlayersError

T = TypeVar("T")


def got(value: Any) -> str:
    """``value`` as text for messages: a number or a short text itself, a tensor by its shape, others shortened."""
    try:
        if isinstance(value, (Tensor, np.ndarray)) and value.ndim:
            description = "a tensor" if isinstance(value, Tensor) else "an array"
            graph = " that requires a gradient" if getattr(value, "requires_grad", False) else ""
            return f"{description} {list(value.shape)} of {value.dtype}{graph}"
        if isinstance(value, torch.nn.Module):
            return f"a module of type {type(value).__name__}"
        text = " ".join(repr(value).split())
    except Exception:  # its repr or shape raises
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 120 else f"{text[:100]}... of type {type(value).__name__}"


def check_flag(name: str, value: Any, error: type[EqlayersError] = ConfigError) -> bool:
    """A bool from True, False, 0, 1 or numpy's; other values are refused, also texts such as "no"."""
    if isinstance(value, (bool, np.bool_)) or (is_integer(value) and int(value) in (0, 1)):
        return bool(value)
    if isinstance(value, (Tensor, np.ndarray)) and not value.shape and value.dtype in (torch.bool, np.bool_):
        return bool(value)
    raise error(f"{name} must be True or False, got {got(value)}. Pass one of the two.")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """A text that is one of ``choices``."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {got(value)}. Pick one of these.")
    return value


def check_optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
    """None, or a value that ``check(name, value)`` accepts."""
    return None if value is None else check(name, value)


def is_integer(value: Any) -> bool:
    """Whether ``value`` is an integer of any type, but no bool."""
    if isinstance(value, (bool, np.bool_, str, list, tuple)):
        return False
    if isinstance(value, (int, torch.SymInt)):
        return True  # operator.index would make a constant of a symbolic size
    if isinstance(value, Tensor) and (value.ndim or value.is_floating_point() or value.dtype == torch.bool):
        return False
    try:
        operator.index(value)
    except Exception:
        return False
    return True


def check_integer(
    name: str,
    value: Any,
    at_least: int,
    at_most: int = 2**31 - 1,
    *,
    what: str = "an integer",
    fix: str | None = None,
    error: type[EqlayersError] = ConfigError,
) -> int:
    """An integer from ``at_least`` to ``at_most``."""
    if not is_integer(value) or int(value) < at_least:
        raise error(
            f"{name} must be {what}, at least {at_least}, got {got(value)}. {fix or f'Use {at_least} or more.'}"
        )
    if int(value) > at_most:
        raise error(f"{name} must be {what}, at most {at_most}, got {got(value)}. {fix or f'Use {at_most} or less.'}")
    return int(value)


def fixed(value: Any) -> Any:
    """An integer as a constant, which compilers do not replace by a symbol; other values unchanged."""
    return operator.index(value) if is_integer(value) else value


def check_seed(name: str, value: Any) -> int:
    """A seed of random numbers, an integer of 63 bits."""
    return check_integer(name, value, 0, 2**63 - 1, what="a seed")


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float = math.inf,
    unit: str = "",
    fix: str = "Use a value such as 5.0.",
    error: type[EqlayersError] = ConfigError,
) -> float:
    """A finite number within limits; also a tensor without axes.

    ``unit`` is such as " of Angstrom", ``fix`` the last sentence of the message.
    """
    number = _as_float(value)
    high_enough = (above is None or number > above) and (at_least is None or number >= at_least)
    if -math.inf < number < math.inf and high_enough:  # math.isfinite cannot be traced for symbolic numbers
        if number <= at_most:
            return number
        raise error(f"{name} must be at most {at_most:g}{unit}, got {got(value)}. {fix}")
    limit = "" if above is None else f" above {above:g}"
    limit = limit if at_least is None else f" of at least {at_least:g}"
    description = "a positive number" if above == 0 else f"a finite number{limit}"
    raise error(f"{name} must be {description}{unit}, got {got(value)}. {fix}")


def _as_float(value: Any) -> float:
    """``value`` as a float; NaN if it is no number."""
    one = isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0 and "bool" not in str(value.dtype)
    one = one and not getattr(value, "requires_grad", False)  # a gradient would be lost
    if one or (isinstance(value, Real) and not isinstance(value, bool)):
        try:
            return float(value)
        except (OverflowError, RuntimeError, TypeError, ValueError):
            pass
    return math.nan


def check_items(
    name: str,
    value: Any,
    what: str,
    fix: str,
    error: type[EqlayersError] = ConfigError,
    count: int | None = None,
) -> list[Any]:
    """The items of an iterable that is no text and no mapping; exactly ``count`` items if it is a number."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise error(f"{name} must be {what}, got {got(value)}. {fix}")
    try:
        items = list(value)
    except Exception:  # a tensor without axes has __iter__
        raise error(f"{name} must be {what}, got {got(value)}. {fix}") from None
    if count is not None and len(items) != count:
        raise error(f"{name} must be {what}, {count} in all, got {len(items)}. {fix}")
    return items


def check_type(
    name: str,
    value: Any,
    cls: type[T] | tuple[type, ...],
    what: str,
    fix: str,
    error: type[EqlayersError] = ConfigError,
) -> T:
    """A value that is an instance of ``cls``."""
    if not isinstance(value, cls):
        raise error(f"{name} must be {what}, got {got(value)}. {fix}")
    return value  # type: ignore[return-value]


def check_tensor(name: str, value: Any, shape: str) -> Tensor:
    """A dense tensor; ``shape``, such as ``"[..., 5]"``, is text for the message and not checked."""
    if not isinstance(value, Tensor):
        raise DTypeError(f"{name} must be a tensor {shape}, got {got(value)}. Use torch.as_tensor(...).")
    if value.layout is not torch.strided:
        raise DTypeError(f"{name} must be a dense tensor {shape}, got {value.layout}. Use `.to_dense()`.")
    return value


def check_floating(name: str, value: Any, shape: str) -> Tensor:
    """A dense floating-point tensor, not of integers, bools or complex numbers; see :func:`check_tensor`."""
    if isinstance(value, Tensor) and value.layout is torch.strided and value.is_floating_point():
        return value
    if not check_tensor(name, value, shape).is_floating_point():
        raise DTypeError(
            f"{name} must be a floating-point tensor {shape}, got {value.dtype}. Convert it with `.float()`."
        )
    return value


def check_module(name: str, value: Any, what: str = "a torch.nn.Module", fix: str | None = None) -> torch.nn.Module:
    """A torch.nn.Module."""
    fix = fix or "Pass a layer or a model, not its class or its output."
    return check_type(name, value, torch.nn.Module, what, fix)


def check_function(name: str, value: Any, what: str = "a function") -> Callable[..., Any]:
    """A callable."""
    if not callable(value):
        raise ConfigError(f"{name} must be {what}, got {got(value)}. Pass it without calling it.")
    return value


def check_dtype(name: str, value: Any) -> torch.dtype:
    """A floating-point torch.dtype."""
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise DTypeError(f"{name} must be a floating-point torch.dtype, got {got(value)}. Use torch.float32.")
    return value


def check_device(name: str, value: Any) -> torch.device:
    """A torch.device that torch can use on this machine."""
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError, ValueError):
        raise DeviceError(
            f"{name} must be a device such as 'cpu' or 'cuda:0', got {got(value)}. Pass a torch.device or its name."
        ) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"{name} must be one that torch can use here, got {str(device)!r} and {torch.cuda.device_count()} GPUs. "
            f"Pass another, or ask where there is one."
        )
    return device


def check_path(name: str, value: Any, what: str = "a path") -> str:
    """A path as text, not empty and without a zero byte; ``~`` is expanded."""
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise ConfigError(f"{name} must be {what}, got {got(value)}. Pass a text or a pathlib.Path.")
    return os.path.expanduser(os.fspath(value))
