"""Gather, product and sum as one call, in forwards that were written without one.

While such a forward runs, rows that it takes of a tensor are noted, not copied: `x[src]` is a note of x and src. A
product that gets a note returns another, and where that is added up by receivers, all three are one convolution. A
note that is used in any other way turns into its numbers first, and is these from then on, so that every forward gives
what it gave.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.errors import ConfigError, IndexRangeError
from ..core.torch_internals import as_base_tensors, tensor_without_numbers
from ..functional import TabledWeights

CURE = "Accelerate the model with targets that leave out 'convolution'."


class Fused(Protocol):
    """A product that is a convolution as well."""

    irreps_out: Any

    def rows(self, x: Tensor, y: Tensor, weight: Any) -> Tensor:
        """``[E, in1.dim]``, ``[E, in2.dim]`` and weights to ``[E, out.dim]``."""
        ...

    def sums(self, x: Tensor, y: Tensor, weight: Any, src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
        """``[N, in1.dim]``, ``[E, in2.dim]``, weights and ends ``[E]`` to ``[num_nodes, out.dim]``."""
        ...


class Note(Tensor):
    """Numbers ``[E, columns]`` that are computed at their first use, and kept.

    Args:
        x: What they are made of, which says their dtype and device.
        index: ``[E]``, the rows of it.
        columns: Number of columns.
        others: Further tensors that they are made of.

    Attributes:
        followed: Whether they were noted where gradients are followed; they are made in the same way.
    """

    @staticmethod
    def __new__(cls, x: Tensor, index: Tensor, columns: int, *others: Tensor) -> Note:
        """Make a tensor with shape, dtype and device, and no memory."""
        return tensor_without_numbers(cls, (len(index), columns), x)

    def __init__(self, x: Tensor, index: Tensor, columns: int, *others: Tensor) -> None:
        self.x, self.taken, self.followed = x, index, torch.is_grad_enabled()
        self._made_of = (x, index, *others)
        self._seen = _versions(self._made_of)
        self._found: Tensor | None = None
        self._found_version: tuple[int, ...] = ()
        #: Weak references to itself and to notes made of it: all that a forward may leave behind.
        self.known: list[weakref.ref[Note]] = [weakref.ref(self)]

    @property
    def made(self) -> bool:
        """Whether the numbers were used, so that they may have been changed or their gradient may be read."""
        return self._found is not None

    def numbers(self) -> Tensor:
        """The numbers, made at the first call; an error where tensors that they are made of were changed since."""
        if self.followed and not torch.is_grad_enabled() and _inside_function():
            raise ConfigError(f"rows that a forward gathers must not go to an autograd function, got some. {CURE}")
        if self._found is None:
            self.check()
            with torch.set_grad_enabled(self.followed):
                self._found = self._make()
            self._found_version = _versions((self._found,))
        return self._found

    def check(self) -> None:
        """Raise if what the numbers are made of was changed."""
        if _versions(self._made_of) != self._seen:
            raise ConfigError(
                "a forward must not change features or edges in place between the gather and the sum, got one that "
                f"does. {CURE}"
            )

    def _make(self) -> Tensor:
        rows: Tensor = torch.ops.aten.index.Tensor(self.x, [self.taken])  # not noted, as x[index] would be
        return rows

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Shape and sums are known without the numbers; all else gets them."""
        kwargs, name = kwargs or {}, str(getattr(function, "__name__", None) or getattr(function, "name", ""))
        if function in _WITHOUT_NUMBERS:
            with as_base_tensors():
                return function(*args, **kwargs)
        if name.startswith("new_") and isinstance(args[0], Note):  # takes dtype and device from it
            like = torch.empty(0, dtype=args[0].dtype, device=args[0].device)
            return function(like, *settled(args[1:]), **settled(kwargs))
        if name == "expand_as" and not isinstance(args[0], Note):
            return args[0].expand(args[1].shape)
        if name in SUMS and (total := SUMS[name](name, *args, **kwargs)) is not None:
            return total
        return function(*settled(args), **settled(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Raise: callers that bypass ``__torch_function__``, such as TorchScript, would lose gradients."""
        notes = [value for value in args if isinstance(value, Note)]
        if any(note.followed and any(t.requires_grad for t in note._made_of) for note in notes):
            raise ConfigError(f"rows that a forward gathers must not go to {func}, got some. {CURE}")
        return func(*settled(args), **settled(kwargs or {}))


#: Of a tensor, which a note answers as it is.
_WITHOUT_NUMBERS = {
    *(Tensor.size, Tensor.dim, Tensor.__len__, Tensor.numel, Tensor.is_floating_point, Tensor.is_complex),
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "is_cuda", "is_sparse")),
}


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)


def _inside_function() -> bool:
    """Whether an autograd function's forward runs: the call that began it stands on the stack."""
    frame = sys._getframe(2)
    codes = {torch.autograd.Function.apply.__code__}
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Messages(Note):
    """The result of a product of noted rows."""

    @staticmethod
    def __new__(cls, product: Fused, rows: Note, y: Tensor, weight: Any) -> Messages:
        """Make it as :class:`Note` does."""
        return tensor_without_numbers(cls, (len(rows.taken), product.irreps_out.dim), rows.x)

    def __init__(self, product: Fused, rows: Note, y: Tensor, weight: Any) -> None:
        made_of = weight[:3] if isinstance(weight, TabledWeights) else (weight,)
        tensors = [tensor for tensor in (y, *made_of) if isinstance(tensor, Tensor)]
        super().__init__(rows.x, rows.taken, product.irreps_out.dim, *tensors)
        self.product, self.rows, self.y, self.weight = product, rows, y, weight
        rows.known.append(weakref.ref(self))

    def check(self) -> None:
        """See :class:`Note`; the rows are part of it, once they are numbers."""
        super().check()
        rows = self.rows
        if rows._found is not None and _versions((rows._found,)) != rows._found_version:
            raise ConfigError(
                f"a forward must not change rows in place behind their product, got one that does. {CURE}"
            )

    def _make(self) -> Tensor:
        return self.product.rows(self.rows.numbers(), self.y, self.weight)

    def sums(self, index: Any, num_nodes: int) -> Tensor | None:
        """Sums ``[num_nodes, columns]`` by receivers ``[E]``.

        None where the index is none of receivers; where the numbers were used; and where some node is counted from
        the end, or is none, which torch deals with.
        """
        if not isinstance(index, Tensor) or index.dtype is not torch.int64 or index.shape != self.taken.shape:
            return None
        if self.made or self.rows.made or index.device != self.device or self.followed != torch.is_grad_enabled():
            return None
        self.check()
        src = self.taken
        if src.device.type != "cpu":  # where nothing looks at the values
            src = torch.where(src < 0, src + len(self.x), src)
        try:
            return self.product.sums(self.x, self.y, self.weight, src, index, num_nodes)
        except IndexRangeError:
            return None


def _torch_sum(
    name: str,
    out: Any = None,
    dim: Any = None,
    index: Any = None,
    src: Any = None,
    reduce: Any = "sum",
    *,
    input: Any = None,
    source: Any = None,
    include_self: bool = True,
    alpha: Any = 1,
) -> Tensor | None:
    """`scatter_add`, `index_add`, `scatter_reduce` of torch, in place or not; None if it is no sum of messages."""
    messages, out = (source if src is None else src), (input if out is None else out)
    plain = reduce == "sum" and include_self and alpha == 1 and isinstance(out, Tensor) and out.ndim == 2
    if not isinstance(messages, Messages) or isinstance(out, Note) or not plain or dim not in (0, -2):
        return None
    if out.shape[1] != messages.shape[1] or out.dtype != messages.dtype:
        return None
    if name.startswith("scatter"):  # receivers, expanded to all columns
        if not isinstance(index, Tensor) or index.shape != messages.shape or index.stride(1) != 0:
            return None
        index = index[:, 0]
    sums = messages.sums(index, out.shape[0])
    if sums is None:
        return None
    return out.add_(sums) if name.endswith("_") else out + sums


#: Functions that add up rows by receivers.
SUMS: dict[str, Callable[..., Tensor | None]] = {
    **dict.fromkeys(("scatter_add", "scatter_add_", "index_add", "index_add_"), _torch_sum),
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"), _torch_sum),
}


def settled(value: Any) -> Any:
    """Numbers in place of notes, also inside of tuples, lists and dicts, which are made anew."""
    if isinstance(value, Note):
        return value.numbers()
    if type(value) in (tuple, list):
        return type(value)(map(settled, value))
    return {key: settled(item) for key, item in value.items()} if type(value) is dict else value
