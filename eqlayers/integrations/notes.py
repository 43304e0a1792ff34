"""Gather, product and sum as one call, in forwards that were written without one.

While such a forward runs, rows that it takes of a tensor are noted, not copied: `x[src]` is a note of x and src. A
product that gets a note returns another, and where that is added up by receivers, all three are one convolution. A
note that is used in any other way turns into its numbers first, so that every forward gives what it gave.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError
from ..functional import TabledWeights
from ..torch_internals import being_traced


class Fused(Protocol):
    """A product that is a convolution as well."""

    irreps_out: Any

    def rows(self, x: Tensor, y: Tensor, weight: Any) -> Tensor:
        """``[E, in1.dim]``, ``[E, in2.dim]`` and weights to ``[E, out.dim]``."""
        ...

    def sums(self, x: Tensor, y: Tensor, weight: Any, src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
        """``[N, in1.dim]``, ``[E, in2.dim]``, weights and ends ``[E]`` to ``[num_nodes, out.dim]``."""
        ...


class Note:
    """Numbers ``[E, columns]`` that are made when somebody asks for them.

    Args:
        x: What they are made of, which says their dtype and device.
        index: ``[E]``, the rows of it.
        columns: Number of columns.
        others: Further tensors that they are made of.

    Attributes:
        grad: Whether they were noted where gradients are followed; they are made in the same way.
    """

    def __init__(self, x: Tensor, index: Tensor, columns: int, *others: Tensor) -> None:
        self.x, self.index = x, index
        self.shape, self.ndim = torch.Size((len(index), columns)), 2
        self.dtype, self.device, self.layout = x.dtype, x.device, x.layout
        self.grad = torch.is_grad_enabled()
        self._made_of = (x, index, *others)
        self._seen = _versions(self._made_of)
        self._found: Tensor | None = None

    def numbers(self) -> Tensor:
        """The numbers, made at the first call.

        Raises:
            ConfigError: What they are made of was changed since they were noted.
        """
        if self._found is None:
            self.check()
            with torch.set_grad_enabled(self.grad):
                self._found = self._make()
        return self._found

    def check(self) -> None:
        """Raise if what the numbers are made of was changed."""
        if _versions(self._made_of) != self._seen:
            raise ConfigError(
                "a forward must not change features or edges in place between the gather and the sum, got one that "
                "does. Accelerate the model with targets that leave out 'convolution'."
            )

    def _make(self) -> Tensor:
        found: Tensor = torch.ops.aten.index_select(self.x, 0, self.index)  # not noted, as a method of tensors would be
        return found

    def size(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """As of a tensor."""
        return self.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("new_"):  # takes dtype and device from it, no numbers
            return getattr(torch.empty(0, dtype=self.dtype, device=self.device), name)
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.numbers(), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, str(getattr(function, "__name__", None) or getattr(function, "name", ""))
        if name == "expand_as" and isinstance(args[0], Tensor):
            return args[0].expand(args[1].shape)
        if name in SUMS and (found := SUMS[name](name, *args, **kwargs)) is not None:
            return found
        return function(*settled(args), **settled(kwargs))


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)


def _by_operator(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)

    def apply(self: Note, *others: Any) -> Any:
        return function(self.numbers(), *settled(others))

    return apply


def _by_operator_of_the_other(name: str) -> Callable[[Note, Any], Any]:
    function = getattr(operator, name)
    return lambda self, other: function(other, self.numbers())


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow"):
    setattr(Note, f"__{_name}__", _by_operator(_name))
    setattr(Note, f"__r{_name}__", _by_operator_of_the_other(_name))
for _name in ("neg", "pos", "abs", "getitem", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Note, f"__{_name}__", _by_operator(_name))


class Messages(Note):
    """What a product makes of noted rows."""

    def __init__(self, product: Fused, rows: Note, y: Tensor, weight: Any) -> None:
        made_of = weight[:3] if isinstance(weight, TabledWeights) else (weight,)
        tensors = [tensor for tensor in (y, *made_of) if isinstance(tensor, Tensor)]
        super().__init__(rows.x, rows.index, product.irreps_out.dim, *tensors)
        self.product, self.rows, self.y, self.weight = product, rows, y, weight

    def _make(self) -> Tensor:
        return self.product.rows(self.rows.numbers(), self.y, self.weight)

    def sums(self, index: Any, num_nodes: int) -> Tensor | None:
        """Sums ``[num_nodes, columns]`` by receivers; None where the index is none of receivers."""
        if not isinstance(index, Tensor) or index.dtype is not torch.int64 or self.grad != torch.is_grad_enabled():
            return None
        if index.shape == self.shape and index.stride(1) == 0:  # receivers, expanded to all columns
            index = index[:, 0]
        if index.shape != self.index.shape or index.device != self.device:
            return None
        self.check()
        return self.product.sums(self.x, self.y, self.weight, self.index, index, num_nodes)


def _torch_sum(
    name: str,
    out: Any,
    dim: int,
    index: Any,
    src: Any = None,
    reduce: str = "sum",
    *,
    source: Any = None,
    include_self: bool = True,
    alpha: Any = 1,
) -> Tensor | None:
    """`scatter_add`, `index_add`, `scatter_reduce` of torch, in place or not; None if it is no sum of messages."""
    messages = source if src is None else src
    plain = reduce == "sum" and include_self and alpha == 1 and isinstance(out, Tensor) and out.ndim == 2
    if not isinstance(messages, Messages) or not plain or dim not in (0, -2):
        return None
    if out.shape[1] != messages.shape[1] or out.dtype != messages.dtype:
        return None
    found = messages.sums(index, out.shape[0])
    if found is None:
        return None
    return out.add_(found) if name.endswith("_") else out + found


#: Functions that add up rows by receivers.
SUMS: dict[str, Callable[..., Tensor | None]] = {
    **dict.fromkeys(("scatter_add", "scatter_add_", "index_add", "index_add_"), _torch_sum),
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"), _torch_sum),
}


def settled(value: Any) -> Any:
    """Numbers in place of notes, also inside of tuples, lists and dicts."""
    if isinstance(value, Note):
        return value.numbers()
    if type(value) in (tuple, list):
        return type(value)(map(settled, value))
    return {key: settled(item) for key, item in value.items()} if type(value) is dict else value


class _Noting(TorchFunctionMode):
    """Rows that are taken of a tensor are noted."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__getitem__ and len(args) == 2:
            x, index = args
        elif function in (Tensor.index_select, torch.index_select) and len(args) == 3 and args[1] in (0, -2):
            x, _, index = args
        else:
            return function(*args, **(kwargs or {}))
        rows = type(x) is Tensor and x.ndim == 2 and x.is_floating_point()
        if rows and type(index) is Tensor and index.ndim == 1 and index.dtype is torch.int64:
            return Note(x, index, x.shape[1])
        return function(*args, **(kwargs or {}))


def noting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a module with notes of gathered rows; as it is while it is traced, and in mixed precision."""
    forward: Callable[..., Any] = type(module).forward
    if being_traced() or torch.is_autocast_enabled(_device_of(module)):
        return forward(module, *args, **kwargs)
    try:
        with _Noting():
            found = forward(module, *args, **kwargs)
    except Exception as error:
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(
                f"{type(module).__name__} was accelerated: rows that it gathers are made when they are used. If it ran "
                "before, call accelerate with targets that leave out 'convolution'."
            )
        raise
    return settled(found)


def _device_of(module: nn.Module) -> str:
    first = next(module.parameters(), None)
    return "cpu" if first is None else first.device.type
