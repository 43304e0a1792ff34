"""Lazy rows: gather, product and sum as one call, in forwards that were written without one.

While such a forward runs, rows that it takes of a tensor are lazy: `x[src]` holds x and src, and gathers when it is
read. A product of lazy rows returns lazy messages, and where these are added up by receivers, all three are one
convolution. A lazy tensor that is used in any other way is computed first, and stays computed, so that every forward
gives what it gave.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import types
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import ConfigError, IndexRangeError
from ..core.torch_internals import as_base_tensors, being_traced, tensor_without_numbers
from ..functional import TabledWeights
from .structure import adds_up

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


class LazyRows(Tensor):
    """Numbers ``[E, columns]`` that are computed at their first use, and kept.

    Args:
        x: What they are made of, which says their dtype and device.
        index: ``[E]``, the rows of it.
        columns: Number of columns.
        others: Further tensors that they are made of.

    Attributes:
        tracked: Whether gradients were tracked where they were taken; they are computed in the same way.
    """

    @staticmethod
    def __new__(cls, x: Tensor, index: Tensor, columns: int, *others: Tensor) -> LazyRows:
        """Make a tensor with shape, dtype and device, and no memory."""
        return tensor_without_numbers(cls, (len(index), columns), x)

    def __init__(self, x: Tensor, index: Tensor, columns: int, *others: Tensor) -> None:
        self.x, self.taken, self.tracked = x, index, torch.is_grad_enabled()
        self._sources = (x, index, *others)
        self._source_versions = _versions(self._sources)
        self._computed: Tensor | None = None
        self._computed_version: tuple[int, ...] = ()
        #: Weak references to itself and to lazy tensors made of it: all that a forward may leave behind.
        self.known: list[weakref.ref[LazyRows]] = [weakref.ref(self)]

    @property
    def is_computed(self) -> bool:
        """Whether the numbers were used, so that they may have been changed or their gradient may be read."""
        return self._computed is not None

    def computed(self) -> Tensor:
        """The numbers, made at the first call; an error where tensors that they are made of were changed since."""
        if self.tracked and not torch.is_grad_enabled() and _inside_function():
            raise ConfigError(f"rows that a forward gathers must not go to an autograd function, got some. {CURE}")
        if self._computed is None:
            self.check()
            with torch.set_grad_enabled(self.tracked):
                self._computed = self._make()
            self._computed_version = _versions((self._computed,))
        return self._computed

    def check(self) -> None:
        """Raise if what the numbers are made of was changed."""
        if _versions(self._sources) != self._source_versions:
            raise ConfigError(
                "a forward must not change features or edges in place between the gather and the sum, got one that "
                f"does. {CURE}"
            )

    def _make(self) -> Tensor:
        rows: Tensor = torch.ops.aten.index.Tensor(self.x, [self.taken])  # not lazy, as x[index] would be
        return rows

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Shape and sums are known without the numbers; all else gets them."""
        kwargs, name = kwargs or {}, str(getattr(function, "__name__", None) or getattr(function, "name", ""))
        if function in _WITHOUT_NUMBERS:
            with as_base_tensors():
                return function(*args, **kwargs)
        if name.startswith("new_") and isinstance(args[0], LazyRows):  # takes dtype and device from it
            like = torch.empty(0, dtype=args[0].dtype, device=args[0].device)
            return function(like, *all_computed(args[1:]), **all_computed(kwargs))
        if name == "expand_as" and not isinstance(args[0], LazyRows):
            return args[0].expand(args[1].shape)
        if name in SUMS and (total := SUMS[name](name, *args, **kwargs)) is not None:
            return total
        return function(*all_computed(args), **all_computed(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Raise: callers that bypass ``__torch_function__``, such as TorchScript, would lose gradients."""
        lazy = [value for value in args if isinstance(value, LazyRows)]
        if any(one.tracked and any(t.requires_grad for t in one._sources) for one in lazy):
            raise ConfigError(f"rows that a forward gathers must not go to {func}, got some. {CURE}")
        return func(*all_computed(args), **all_computed(kwargs or {}))


#: Questions to a tensor that a lazy one answers without its numbers.
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


class LazyMessages(LazyRows):
    """The result of a product of lazy rows."""

    @staticmethod
    def __new__(cls, product: Fused, rows: LazyRows, y: Tensor, weight: Any) -> LazyMessages:
        """Make it as :class:`LazyRows` does."""
        return tensor_without_numbers(cls, (len(rows.taken), product.irreps_out.dim), rows.x)

    def __init__(self, product: Fused, rows: LazyRows, y: Tensor, weight: Any) -> None:
        made_of = weight[:3] if isinstance(weight, TabledWeights) else (weight,)
        tensors = [tensor for tensor in (y, *made_of) if isinstance(tensor, Tensor)]
        super().__init__(rows.x, rows.taken, product.irreps_out.dim, *tensors)
        self.product, self.rows, self.y, self.weight = product, rows, y, weight
        rows.known.append(weakref.ref(self))

    def check(self) -> None:
        """See :class:`LazyRows`; the rows are part of it, once they are numbers."""
        super().check()
        rows = self.rows
        if rows._computed is not None and _versions((rows._computed,)) != rows._computed_version:
            raise ConfigError(
                f"a forward must not change rows in place behind their product, got one that does. {CURE}"
            )

    def _make(self) -> Tensor:
        return self.product.rows(self.rows.computed(), self.y, self.weight)

    def sums(self, index: Any, num_nodes: int) -> Tensor | None:
        """Sums ``[num_nodes, columns]`` by receivers ``[E]``.

        None where the index is none of receivers; where the numbers were used; and where some node is counted from
        the end, or is none, which torch deals with.
        """
        if not isinstance(index, Tensor) or index.dtype is not torch.int64 or index.shape != self.taken.shape:
            return None
        if self.is_computed or self.rows.is_computed or index.device != self.device:
            return None
        if self.tracked != torch.is_grad_enabled():
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
    if not isinstance(messages, LazyMessages) or isinstance(out, LazyRows) or not plain or dim not in (0, -2):
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


def all_computed(value: Any) -> Any:
    """Numbers in place of lazy tensors, also inside of tuples, lists and dicts, which are made anew."""
    if isinstance(value, LazyRows):
        return value.computed()
    if type(value) in (tuple, list):
        return type(value)(map(all_computed, value))
    return {key: all_computed(item) for key, item in value.items()} if type(value) is dict else value


# ---- forwards with lazy rows -----------------------------------------------------------------------------------------


def _computed_results(value: Any) -> Any:
    """Compute the lazy tensors in the result of a forward; its lists and mappings stay the same objects."""
    if isinstance(value, LazyRows):
        return value.computed()
    if isinstance(value, tuple):
        items = [_computed_results(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, (list, MutableMapping)):
        for key in range(len(value)) if isinstance(value, list) else list(value):
            if (new := _computed_results(value[key])) is not value[key]:
                value[key] = new
    return value


#: The class that a module had before :func:`make_lazy`, among the names of the one that it has since.
_BASE = "_eqlayers_base"


class _LazyGathers(TorchFunctionMode):
    """Makes rows lazy that are taken of a tensor, except of inference tensors, which have no version counter."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[list[Any]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__getitem__ and len(args) == 2:
            x, index = args
        elif function in (Tensor.index_select, torch.index_select) and len(args) == 3 and args[1] in (0, -2):
            x, _, index = args
        else:
            return function(*args, **(kwargs or {}))
        rows = type(x) is Tensor and x.ndim == 2 and x.is_floating_point() and not x.is_inference()
        if rows and type(index) is Tensor and index.ndim == 1 and index.dtype is torch.int64:
            lazy = LazyRows(x, index, x.shape[1])
            self.alive.append(lazy.known)
            return lazy
        return function(*args, **(kwargs or {}))


def run_lazily(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A forward with lazy rows; as it is while it is traced, in mixed precision, and in inference mode.

    Inference mode counts no changes in place. Lazy tensors that outlive the forward, wherever they were put, are
    computed at its end.
    """
    if being_traced() or torch.is_inference_mode_enabled() or torch.is_autocast_enabled(_device_of(module)):
        return forward(module, *args, **kwargs)
    try:
        with _LazyGathers() as mode:
            result = forward(module, *args, **kwargs)
    except Exception as error:
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(
                f"{type(module).__name__} was accelerated: rows that it gathers are made when they are used. If it ran "
                f"before: {CURE}"
            )
        raise
    result = _computed_results(result)
    for lazy in (one() for known in mode.alive for one in known):
        if lazy is not None:
            lazy.computed()
    return result


def _device_of(module: nn.Module) -> str:
    first = next(module.parameters(), None)
    return "cpu" if first is None else first.device.type


def is_lazy(module: nn.Module) -> bool:
    """Whether :func:`make_lazy` changed a module."""
    return _BASE in vars(type(module))


def make_lazy(module: nn.Module) -> None:
    """Make the rows of a module's forward lazy, if it adds anything up and is its class's.

    The module gets a class derived from its own, as torch's parametrizations do it: so copies and replicas of the
    module run their own forward.
    """
    if adds_up(module) and "forward" not in vars(module) and not is_lazy(module):
        base: Any = type(module)
        module.__class__ = _lazy_class(base)


def make_eager(module: nn.Module) -> None:
    """Take back what :func:`make_lazy` did."""
    if is_lazy(module):
        module.__class__ = vars(type(module))[_BASE]


@functools.cache
def _lazy_class(base: Any) -> Any:
    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run_lazily(self, base.forward, *args, **kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced = super(made, self).__reduce_ex__(protocol)
        if reduced[0] is not getattr(copyreg, "__newobj__") or reduced[1] != (made,):  # noqa: B009 its stub lacks it
            return reduced  # its own way, to a module whose rows are not lazy
        return (_new, (base,), *reduced[2:])

    names = {"forward": forward, "__reduce_ex__": __reduce_ex__, _BASE: base}
    names |= {name: getattr(base, name) for name in ("__module__", "__doc__", "__qualname__")}
    made: Any = types.new_class(base.__name__, (base,), {}, lambda body: body.update(names))
    return made


def _new(base: Any) -> Any:
    made = _lazy_class(base)
    return made.__new__(made)
