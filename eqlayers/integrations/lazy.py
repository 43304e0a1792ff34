"""Lazy tensors that fuse gather, product and scatter of an unmodified forward into one convolution.

While a forward runs, `x[src]` returns a lazy tensor, which stores x and src and gathers at its first use. An
accelerated product of lazy rows returns lazy messages; their sum by receivers calls the convolution. Any other use
computes the lazy tensor first, and keeps the values, so that results do not change.
"""

from __future__ import annotations

import copyreg
import functools
import types
import weakref
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import ConfigError, IndexRangeError
from ..core.torch_internals import as_base_tensors, being_traced, inside_function, tensor_without_numbers
from ..functional import TabledWeights
from .structure import adds_up

if TYPE_CHECKING:
    from .kinds.convolution import AcceleratedMessages

CURE = "Accelerate the model with targets that leave out 'convolution'."


class LazyRows(Tensor):
    """A tensor ``x[index]`` of shape ``[E, columns]`` that is computed at its first use, and kept.

    Values of subclasses depend on ``others`` too. ``tracked`` says whether gradients were enabled at creation: values
    are computed in the same mode.
    """

    @staticmethod
    def __new__(cls, x: Tensor, index: Tensor, columns: int, *others: Tensor) -> LazyRows:
        """Create a tensor of the shape, dtype and device, without storage."""
        return tensor_without_numbers(cls, (len(index), columns), x)

    def __init__(self, x: Tensor, index: Tensor, columns: int, *others: Tensor) -> None:
        self.x, self.taken, self.tracked = x, index, torch.is_grad_enabled()
        self._sources = (x, index, *others)
        self._source_versions = _versions(self._sources)
        self._computed: Tensor | None = None
        self._computed_version: tuple[int, ...] = ()
        #: Weak references to this tensor and to lazy messages that depend on it.
        self.dependents: list[weakref.ref[LazyRows]] = [weakref.ref(self)]

    @property
    def is_computed(self) -> bool:
        """Whether the values were computed, so that other code may hold or change them."""
        return self._computed is not None

    def computed(self) -> Tensor:
        """The values, computed at the first call; raises if a source tensor was changed in place."""
        if self.tracked and not torch.is_grad_enabled() and inside_function():
            raise ConfigError(f"rows that a forward gathers must not go to an autograd function, got some. {CURE}")
        if self._computed is None:
            self.check()
            with torch.set_grad_enabled(self.tracked):
                self._computed = self._compute()
            self._computed_version = _versions((self._computed,))
        return self._computed

    def check(self) -> None:
        """Raise if a source tensor was changed in place since creation."""
        if _versions(self._sources) != self._source_versions:
            raise ConfigError(
                "a forward must not change features or edges in place between the gather and the sum, got one that "
                f"does. {CURE}"
            )

    def _compute(self) -> Tensor:
        """Gather the rows."""
        return torch.ops.aten.index.Tensor(self.x, [self.taken])  # x[index] would be lazy again

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer shape queries and sums without values; compute the values for any other function."""
        kwargs, name = kwargs or {}, str(getattr(function, "__name__", None) or getattr(function, "name", ""))
        if function in _QUERIES:
            with as_base_tensors():
                return function(*args, **kwargs)
        if name.startswith("new_") and isinstance(args[0], LazyRows):  # only dtype and device are used
            like = torch.empty(0, dtype=args[0].dtype, device=args[0].device)
            return function(like, *all_computed(args[1:]), **all_computed(kwargs))
        if name == "expand_as" and not isinstance(args[0], LazyRows):
            return args[0].expand(args[1].shape)
        if name in SUMS and (total := _torch_sum(name, *args, **kwargs)) is not None:
            return total
        return function(*all_computed(args), **all_computed(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Compute values for callers that bypass ``__torch_function__``; raise if they would lose gradients."""
        lazy = [value for value in args if isinstance(value, LazyRows)]
        if any(rows.tracked and any(t.requires_grad for t in rows._sources) for rows in lazy):
            raise ConfigError(f"rows that a forward gathers must not go to {func}, got some. {CURE}")
        return func(*all_computed(args), **all_computed(kwargs or {}))


#: Queries that need no values.
_QUERIES = {
    *(Tensor.size, Tensor.dim, Tensor.__len__, Tensor.numel, Tensor.is_floating_point, Tensor.is_complex),
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "is_cuda", "is_sparse")),
}


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Version counters of tensors, which in-place changes increase."""
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)


class LazyMessages(LazyRows):
    """The result of a product of lazy rows, not computed yet."""

    @staticmethod
    def __new__(cls, product: AcceleratedMessages, rows: LazyRows, y: Tensor, weight: Any) -> LazyMessages:
        """Create a tensor without storage, as :class:`LazyRows`."""
        return tensor_without_numbers(cls, (len(rows.taken), product.irreps_out.dim), rows.x)

    def __init__(self, product: AcceleratedMessages, rows: LazyRows, y: Tensor, weight: Any) -> None:
        parts = weight[:3] if isinstance(weight, TabledWeights) else (weight,)
        tensors = [tensor for tensor in (y, *parts) if isinstance(tensor, Tensor)]
        super().__init__(rows.x, rows.taken, product.irreps_out.dim, *tensors)
        self.product, self.rows, self.y, self.weight = product, rows, y, weight
        rows.dependents.append(weakref.ref(self))

    def check(self) -> None:
        """Raise if a source tensor, or computed rows, were changed in place."""
        super().check()
        rows = self.rows
        if rows._computed is not None and _versions((rows._computed,)) != rows._computed_version:
            raise ConfigError(
                f"a forward must not change rows in place behind their product, got one that does. {CURE}"
            )

    def _compute(self) -> Tensor:
        """Compute the product of the rows."""
        return self.product.rows(self.rows.computed(), self.y, self.weight)

    def sums(self, index: Any, num_nodes: int) -> Tensor | None:
        """Sums ``[num_nodes, columns]`` by receivers ``index [E]``, as one convolution.

        None if the index is not of this form, if values were computed already, or if a node number is negative or out
        of range; the caller then sums the values.
        """
        if not isinstance(index, Tensor) or index.dtype is not torch.int64 or index.shape != self.taken.shape:
            return None
        if self.is_computed or self.rows.is_computed or index.device != self.device:
            return None
        if self.tracked != torch.is_grad_enabled():
            return None
        self.check()
        src = self.taken
        if src.device.type != "cpu":  # the convolution does not check values on a GPU
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
    """Arguments of torch's scatter_add, index_add or scatter_reduce to a convolution; None if not a sum of messages."""
    messages, out = (source if src is None else src), (input if out is None else out)
    plain = reduce == "sum" and include_self and alpha == 1 and isinstance(out, Tensor) and out.ndim == 2
    if not isinstance(messages, LazyMessages) or isinstance(out, LazyRows) or not plain or dim not in (0, -2):
        return None
    if out.shape[1] != messages.shape[1] or out.dtype != messages.dtype:
        return None
    if name.startswith("scatter"):  # a column of receivers, expanded
        if not isinstance(index, Tensor) or index.shape != messages.shape or index.stride(1) != 0:
            return None
        index = index[:, 0]
    sums = messages.sums(index, out.shape[0])
    if sums is None:
        return None
    return out.add_(sums) if name.endswith("_") else out + sums


#: Names of functions of torch, or of another package, that sum rows by receivers.
SUMS = {"scatter_add", "scatter_add_", "index_add", "index_add_", "scatter_reduce", "scatter_reduce_"}


def all_computed(value: Any) -> Any:
    """A value with lazy tensors replaced by their values, also in tuples, lists and dicts, which are copied."""
    if isinstance(value, LazyRows):
        return value.computed()
    if type(value) in (tuple, list):
        return type(value)(map(all_computed, value))
    return {key: all_computed(item) for key, item in value.items()} if type(value) is dict else value


# ---- forwards with lazy rows -----------------------------------------------------------------------------------------


def _computed_results(value: Any) -> Any:
    """Replace lazy tensors in the result of a forward by their values; lists and mappings are changed in place."""
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


#: Attribute of a class derived by :func:`make_lazy`: the original class.
_BASE = "_eqlayers_base"


class _LazyGathers(TorchFunctionMode):
    """Mode in which indexing rows of a tensor gives lazy rows, except of inference tensors without version counter."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[list[Any]] = []

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
            self.created.append(lazy.dependents)
            return lazy
        return function(*args, **(kwargs or {}))


def run_lazily(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a forward in which gathered rows are lazy tensors; eagerly under tracing, autocast and inference mode."""
    if being_traced() or torch.is_inference_mode_enabled():  # torch.compile of torch 2.6 cannot trace the next line
        return forward(module, *args, **kwargs)
    if torch.is_autocast_enabled(next((parameter.device.type for parameter in module.parameters()), "cpu")):
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
    for lazy in (reference() for dependents in mode.created for reference in dependents):
        if lazy is not None:
            lazy.computed()
    return result


def is_lazy(module: nn.Module) -> bool:
    """Whether a module was changed by :func:`make_lazy`."""
    return _BASE in vars(type(module))


def make_lazy(module: nn.Module) -> None:
    """Make a module run its forward with lazy rows, by a derived class, if the forward is its class's and sums rows."""
    if adds_up(module) and "forward" not in vars(module) and not is_lazy(module):
        base: Any = type(module)
        module.__class__ = _lazy_class(base)


def make_eager(module: nn.Module) -> None:
    """Undo :func:`make_lazy`."""
    if is_lazy(module):
        module.__class__ = vars(type(module))[_BASE]


@functools.cache
def _lazy_class(base: Any) -> Any:
    """A class derived from ``base`` whose forward runs with lazy rows."""

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run_lazily(self, base.forward, *args, **kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced = super(derived, self).__reduce_ex__(protocol)
        if reduced[0] is not getattr(copyreg, "__newobj__") or reduced[1] != (derived,):  # noqa: B009 its stub lacks it
            return reduced  # a custom pickle, of the base class
        return (_new, (base,), *reduced[2:])

    names = {"forward": forward, "__reduce_ex__": __reduce_ex__, _BASE: base}
    names |= {name: getattr(base, name) for name in ("__module__", "__doc__", "__qualname__")}
    derived: Any = types.new_class(base.__name__, (base,), {}, lambda body: body.update(names))
    return derived


def _new(base: Any) -> Any:
    """Unpickle an instance of the derived class of ``base``."""
    derived = _lazy_class(base)
    return derived.__new__(derived)
