"""TorchScript: a layer is one operator, which rebuilds the layer from its description, a JSON text in the graph.

``torch.jit.script`` cannot read the Python of a layer, so a layer gives it a wrapper (`Scriptable`); under
``torch.jit.trace`` the layer calls the operator itself. Shapes are checked at every call; all batch shapes work.
"""

from __future__ import annotations

import inspect
import json
import linecache
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NoReturn, Optional, TypeVar, no_type_check

import torch
from torch import Tensor
from torch.jit import is_tracing as is_tracing  # type: ignore[attr-defined]

from ..core.dtypes import ACCUMULATE
from ..core.errors import ConfigError, ShapeError
from ..core.torch_internals import under_autocast
from ..irreps.layout import FlatLayout

_Layer = TypeVar("_Layer")
#: Attributes of layers that scripts can read.
_READABLE = (
    *("irreps", "irreps_in", "irreps_in1", "irreps_in2", "irreps_out", "weight_numel", "bias_numel"),
    *("internal_weights", "shared_weights", "p", "_muls"),
)
_library = torch.library.Library("eqlayers", "FRAGMENT")


def operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a function becomes the operator ``torch.ops.eqlayers.<name>``; autograd differentiates its calls."""
    name = schema.partition("(")[0]

    def register(function: Callable[..., Any]) -> Any:
        _library.define(schema)
        _library.impl(name, function, "CompositeImplicitAutograd")
        return getattr(torch.ops.eqlayers, name).default

    return register


def described(build: Callable[[Any], _Layer]) -> Callable[[str], _Layer]:
    """Decorator: turn a function of parsed JSON, which builds a layer, into a cached function of the JSON text.

    The decorated function raises ConfigError for a text that describes no layer.
    """

    @lru_cache(maxsize=256)
    def layer(spec: str) -> _Layer:
        try:
            return build(json.loads(spec))
        except Exception as error:  # an invalid text can fail in any step of the build
            shown = spec if len(spec) <= 40 else spec[:40] + "..."
            raise ConfigError(
                f"spec must be the description that a layer gave to TorchScript, got {shown!r}, which is none "
                f"({type(error).__name__}: {error}). Script the layer anew."
            ) from error

    return layer


def check_stored(layer: Any, name: str, weight: Tensor | None, stored: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ShapeError unless the weights that a wrapper stores fit its layer, if a call uses them."""
    used = weight is None and layer.internal_weights and 0 not in shape
    if used and stored.shape != shape:
        raise ShapeError(
            f"{name} of the scripted layer must be {list(shape)}, got {list(stored.shape)}. Load the state of this "
            f"layer."
        )


@operator("checked_width(Tensor(a) x, int width) -> Tensor(a)")
def _checked_width(x: Tensor, width: int) -> Tensor:
    if x.ndim < 1 or x.shape[-1] != width:
        raise ShapeError(f"features must be [..., {width}] for this layer, got {list(x.shape)}. Build one for this.")
    return x


def checked(flat: FlatLayout, name: str, x: Tensor) -> Tensor:
    """The features, after a check of their width; a traced graph repeats it at every call."""
    if is_tracing():
        return _checked_width(x, flat.dim)
    flat.check(name, x)
    return x


@operator("widened(Tensor(a) x) -> Tensor(a)")
def widened(x: Tensor) -> Tensor:
    """Cast to the dtype of sums, by the dtype of each call: a traced `Tensor.to` keeps the example's dtype."""
    return x.to(ACCUMULATE[x.dtype]).view_as(x)  # a new tensor: the tracer identifies values by tensors


@operator("narrowed(Tensor(a) found, Tensor given) -> Tensor(a)")
def narrowed(result: Tensor, argument: Tensor) -> Tensor:
    """Cast a result back to the dtype of the argument."""
    return result if under_autocast(argument.device.type) else result.to(argument.dtype)


def refuse_torchscript(module: torch.nn.Module) -> NoReturn:
    """Raise ConfigError: TorchScript cannot hold the layer."""
    raise ConfigError(
        f"a layer must have a TorchScript wrapper to be scripted or traced, got {type(module).__name__}, which has "
        f"none. Use torch.compile or torch.export."
    )


class Scriptable(torch.nn.Module):
    """Base of all layers: ``torch.jit.script`` takes a wrapper in place of the layer, if the layer has one."""

    #: For each method of the wrapper the operator that it calls; 'traced' for a wrapper that holds the graph of one
    #: call, in which :func:`checked` checks the width; None for layers that TorchScript cannot hold.
    _torchscript: tuple[tuple[str, str], ...] | str | None = None

    def _spec(self) -> str:
        """A JSON text, without weights, from which operators rebuild the layer."""
        return ""

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """The module that ``torch.jit.script`` takes in place of the layer; ConfigError for another ``forward``."""
        if self._torchscript is None:
            refuse_torchscript(self)
        if isinstance(self._torchscript, str):
            return _Graph(self)
        base = next(base for base in type(self).__mro__ if "_torchscript" in vars(base))
        if type(self).forward is not base.forward:  # type: ignore[attr-defined]
            raise ConfigError(
                f"a layer must have the forward of {base.__name__} to be scripted, got {type(self).__name__} with "
                f"another. Use torch.compile or torch.export, or trace it with torch.jit.trace."
            )
        return _wrapper_of(base)(self)


class _Graph(torch.nn.Module):
    """The wrapper of a layer of plain torch and of layers with wrappers: the graph of one call."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        stored = (t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point())
        like = next(stored, torch.zeros((), device="cpu"))
        example = torch.zeros(2, layer.irreps_in.dim, dtype=like.dtype, device=like.device)
        self.traced = torch.jit.trace(layer, (example,), check_trace=False)
        self.train(layer.training)

    @no_type_check  # it returns one tensor or several, as the layer does; TorchScript finds out
    def forward(self, x: Tensor):
        """``[..., irreps_in.dim]`` to the results of the layer."""
        return self.traced(x)


class _Operators(torch.nn.Module):
    """The wrapper of a layer with operators: its weights, hooks, description and readable attributes."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.spec = layer._spec()
        for name in _READABLE:
            if hasattr(layer, name):
                setattr(self, name, getattr(layer, name))
        for name, parameter in layer.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in layer.named_buffers(recurse=False):
            self.register_buffer(name, buffer, persistent=name not in layer._non_persistent_buffers_set)
        for handle in ("_forward_hooks", "_forward_pre_hooks"):
            getattr(self, handle).update(getattr(layer, handle))
        self.train(layer.training)


@cache
def _wrapper_of(base: Any) -> type[_Operators]:
    """The class of the wrappers of a class of layers; TorchScript reads the source of each method."""
    methods: dict[str, Any] = {}
    for method, call in base._torchscript:
        arguments = ["self"]
        for name, parameter in list(inspect.signature(getattr(base, method)).parameters.items())[1:]:
            needed = parameter.default is inspect.Parameter.empty
            arguments.append(f"{name}: Tensor" if needed else f"{name}: Optional[Tensor] = None")
        source = f"def {method}({', '.join(arguments)}) -> Tensor:\n    return torch.ops.eqlayers.{call}\n"
        path = f"<TorchScript of {base.__name__}.{method}>"
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        scope: dict[str, Any] = {"torch": torch, "Tensor": Tensor, "Optional": Optional}
        exec(compile(source, path, "exec"), scope)
        methods[method] = scope[method] if method == "forward" else torch.jit.export(scope[method])
    return type(f"Scripted{base.__name__}", (_Operators,), methods)
