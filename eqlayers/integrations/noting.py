"""Forwards in which gathered rows are noted: when they run, and how a module gets such a forward."""

from __future__ import annotations

import copyreg
import functools
import types
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.torch_internals import being_traced
from .notes import CURE, Note
from .structure import adds_up


def _settle(value: Any) -> Any:
    """Compute the notes in the return value of a forward; its lists and mappings stay the same objects."""
    if isinstance(value, Note):
        return value.numbers()
    if isinstance(value, tuple):
        items = [_settle(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, (list, MutableMapping)):
        for key in range(len(value)) if isinstance(value, list) else list(value):
            if (new := _settle(value[key])) is not value[key]:
                value[key] = new
    return value


#: The class that a module had before :func:`note`, among the names of the one that it has since.
_BASE = "_eqlayers_base"


class _Noting(TorchFunctionMode):
    """Note rows that are taken of a tensor, except of inference tensors, which have no version counter."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[list[Any]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__getitem__ and len(args) == 2:
            x, index = args
        elif function in (Tensor.index_select, torch.index_select) and len(args) == 3 and args[1] in (0, -2):
            x, _, index = args
        else:
            return function(*args, **(kwargs or {}))
        rows = type(x) is Tensor and x.ndim == 2 and x.is_floating_point() and not x.is_inference()
        if rows and type(index) is Tensor and index.ndim == 1 and index.dtype is torch.int64:
            note = Note(x, index, x.shape[1])
            self.made.append(note.known)
            return note
        return function(*args, **(kwargs or {}))


def noting(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A forward with notes of gathered rows; as it is while it is traced, in mixed precision, and in inference mode.

    Inference mode counts no changes in place. Notes that outlive it, wherever they were put, are numbers at its end.
    """
    if being_traced() or torch.is_inference_mode_enabled() or torch.is_autocast_enabled(_device_of(module)):
        return forward(module, *args, **kwargs)
    try:
        with _Noting() as mode:
            result = forward(module, *args, **kwargs)
    except Exception as error:
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(
                f"{type(module).__name__} was accelerated: rows that it gathers are made when they are used. If it ran "
                f"before: {CURE}"
            )
        raise
    result = _settle(result)
    for note in (one() for known in mode.made for one in known):
        if note is not None:
            note.numbers()
    return result


def _device_of(module: nn.Module) -> str:
    first = next(module.parameters(), None)
    return "cpu" if first is None else first.device.type


def notes_rows(module: nn.Module) -> bool:
    """Whether :func:`note` changed a module."""
    return _BASE in vars(type(module))


def note(module: nn.Module) -> None:
    """Let a module's forward note rows, if it adds anything up and is its class's.

    The module gets a class derived from its own, as torch's parametrizations do it: so copies and replicas of the
    module run their own forward.
    """
    if adds_up(module) and "forward" not in vars(module) and not notes_rows(module):
        base: Any = type(module)
        module.__class__ = _noted(base)


def unnote(module: nn.Module) -> None:
    """Take back what :func:`note` did."""
    if notes_rows(module):
        module.__class__ = vars(type(module))[_BASE]


@functools.cache
def _noted(base: Any) -> Any:
    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return noting(self, base.forward, *args, **kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced = super(made, self).__reduce_ex__(protocol)
        if reduced[0] is not getattr(copyreg, "__newobj__") or reduced[1] != (made,):  # noqa: B009 its stub lacks it
            return reduced  # its own way, to a module whose forward notes nothing
        return (_new, (base,), *reduced[2:])

    names = {
        "forward": forward,
        "__reduce_ex__": __reduce_ex__,
        "__module__": base.__module__,
        "__doc__": base.__doc__,
    }
    names |= {"__qualname__": base.__qualname__, _BASE: base}
    made: Any = types.new_class(base.__name__, (base,), {}, lambda body: body.update(names))
    return made


def _new(base: Any) -> Any:
    made = _noted(base)
    return made.__new__(made)
