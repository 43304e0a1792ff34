"""TorchScript: a layer is one operator, which finds the layer from its description, a JSON text in the graph.

``torch.jit.script`` cannot read the layers' Python, so each hands it a twin (``__prepare_scriptable__``); under
``torch.jit.trace`` the layer calls the operator itself. Shapes are checked at every call; all batch shapes work.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn, TypeVar, no_type_check

import torch
from torch import Tensor
from torch.jit import is_tracing  # type: ignore[attr-defined]

from ..core.dtypes import ACCUMULATE
from ..core.errors import ConfigError, ShapeError
from ..core.torch_internals import under_autocast
from ..irreps.layout import FlatLayout

__all__ = [
    "DropoutTwin",
    "HarmonicsTwin",
    "LinearTwin",
    "ProductTwin",
    "SquareTwin",
    "TracedLayer",
    "check_own",
    "checked",
    "described",
    "is_tracing",
    "narrowed",
    "operator",
    "refuse_other_forward",
    "widened",
]
_Layer = TypeVar("_Layer")
_READABLE = ("weight_numel", "bias_numel", "internal_weights", "shared_weights")
_library = torch.library.Library("eqlayers", "FRAGMENT")


def operator(schema: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Decorator: make a function the operator ``torch.ops.eqlayers.<name>``; its parts give its derivatives."""

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        _library.define(schema)
        _library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")
        return function

    return register


def described(build: Callable[[Any], _Layer]) -> Callable[[str], _Layer]:
    """Decorator: from what a description holds to the layer of a description, built once for each text.

    The function that it makes raises ConfigError where the text describes no layer.
    """

    @lru_cache(maxsize=256)
    def layer(spec: str) -> _Layer:
        try:
            return build(json.loads(spec))
        except Exception as error:  # whatever a text makes of the many steps that build a layer
            shown = spec if len(spec) <= 40 else spec[:40] + "..."
            raise ConfigError(
                f"spec must be the description that a layer gave to TorchScript, got {shown!r}, which is none "
                f"({type(error).__name__}: {error}). Script the layer anew."
            ) from error

    return layer


def check_own(layer: Any, name: str, given: Tensor | None, own: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The weights of a twin; raise ShapeError unless they have the shapes of its layer's, if they are used."""
    used = given is None and layer.internal_weights and 0 not in shape
    if used and own.shape != shape:
        raise ShapeError(
            f"{name} of the scripted layer must be {list(shape)}, got {list(own.shape)}. Load the state of this layer."
        )
    return own


@operator("checked_width(Tensor(a) x, int width) -> Tensor(a)")
def _checked_width(x: Tensor, width: int) -> Tensor:
    if x.ndim < 1 or x.shape[-1] != width:
        raise ShapeError(f"features must be [..., {width}] for this layer, got {list(x.shape)}. Build one for this.")
    return x


def checked(flat: FlatLayout, name: str, x: Tensor) -> Tensor:
    """The features, checked now, and at every call of a layer that is being traced."""
    if is_tracing():
        found: Tensor = torch.ops.eqlayers.checked_width(x, flat.dim)
        return found
    flat.check(name, x)
    return x


@operator("widened(Tensor(a) x) -> Tensor(a)")
def _widened(x: Tensor) -> Tensor:
    return x.to(ACCUMULATE[x.dtype]).view_as(x)  # the tracer takes what is the same tensor for the same value


@operator("narrowed(Tensor(a) found, Tensor given) -> Tensor(a)")
def _narrowed(found: Tensor, given: Tensor) -> Tensor:
    return found if under_autocast(given.device.type) else found.to(given.dtype)


def widened(x: Tensor) -> Tensor:
    """Cast as ``functional.norms.in_float32``, by the dtype of the call: ``Tensor.to`` would keep the traced dtype."""
    found: Tensor = torch.ops.eqlayers.widened(x)
    return found


def narrowed(found: Tensor, given: Tensor) -> Tensor:
    """Cast back to the dtype of the argument."""
    out: Tensor = torch.ops.eqlayers.narrowed(found, given)
    return out


def refuse_other_forward(module: torch.nn.Module, own: type[torch.nn.Module]) -> None:
    """Raise if a subclass changed ``forward``, which the twin would leave out.

    Raises:
        ConfigError: It did.
    """
    if type(module).forward is not own.forward:
        raise ConfigError(
            f"a layer must have the forward of {own.__name__} to be scripted, got {type(module).__name__} with its "
            f"own. Use torch.compile or torch.export, or trace it with torch.jit.trace."
        )


def refuse_torchscript(module: torch.nn.Module) -> NoReturn:
    """Raise for a layer that TorchScript cannot hold.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"a layer must have a TorchScript twin to be scripted or traced, got {type(module).__name__}, which has none. "
        f"Use torch.compile or torch.export."
    )


class _TracedTwin(torch.nn.Module):
    """The twin of a layer of plain torch and of layers with twins: the graph of one call."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        own = next((t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()), None)
        like = torch.zeros((), device="cpu") if own is None else own
        example = torch.zeros(2, layer.irreps_in.dim, dtype=like.dtype, device=like.device)
        self.traced = torch.jit.trace(layer, (example,), check_trace=False)
        self.train(layer.training)

    @no_type_check  # it returns one tensor or several, as the layer does; TorchScript finds out
    def forward(self, x: Tensor):
        """``[..., irreps_in.dim]`` to what the layer returns."""
        return self.traced(x)


class TracedLayer(torch.nn.Module):
    """Mixin: ``torch.jit.script`` takes the graph of one call, in which :func:`checked` looks at the width."""

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """The module that ``torch.jit.script`` takes in its place."""
        return _TracedTwin(self)


class _Twin(torch.nn.Module):
    """Weights, hooks, description and readable attributes of a layer; in eager mode it computes the same."""

    def __init__(self, layer: Any, spec: str) -> None:
        super().__init__()
        self.spec = spec
        for name in ("irreps_in", "irreps_in1", "irreps_in2", "irreps_out", *_READABLE):
            if hasattr(layer, name):
                setattr(self, name, getattr(layer, name))
        for name in ("weight", "bias", "output_mask"):
            value = getattr(layer, name, None)
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(name, value)
            elif value is not None:
                self.register_buffer(name, value)
        for handle in ("_forward_hooks", "_forward_pre_hooks"):
            getattr(self, handle).update(getattr(layer, handle))
        self.train(layer.training)


class ProductTwin(_Twin):
    """The twin of a tensor product."""

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """``[..., irreps_in1.dim] x [..., irreps_in2.dim]`` to ``[..., irreps_out.dim]``."""
        return torch.ops.eqlayers.layer_product(self.spec, x, y, weight, self.weight)

    @torch.jit.export
    def right(self, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """``[..., irreps_in1.dim, irreps_out.dim]``."""
        return torch.ops.eqlayers.layer_right(self.spec, y, weight, self.weight)


class SquareTwin(_Twin):
    """The twin of the product of a feature with itself."""

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``."""
        return torch.ops.eqlayers.layer_product(self.spec, x, x, weight, self.weight)


class LinearTwin(_Twin):
    """The twin of a linear map."""

    def forward(self, features: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``."""
        return torch.ops.eqlayers.layer_linear(self.spec, features, weight, bias, self.weight, self.bias)


class HarmonicsTwin(_Twin):
    """The twin of spherical harmonics."""

    def forward(self, x: Tensor) -> Tensor:
        """``[..., 3]`` to ``[..., irreps_out.dim]``."""
        return torch.ops.eqlayers.layer_harmonics(self.spec, x)


class DropoutTwin(torch.nn.Module):
    """The twin of the dropout of irrep copies, which heeds ``train`` and ``eval``."""

    def __init__(self, layer: Any, copies: Tensor, muls: list[int]) -> None:
        super().__init__()
        self.muls, self.p, self.irreps = muls, layer.p, layer.irreps
        self.register_buffer("copies", copies, persistent=False)
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, ..., irreps.dim]`` to the same."""
        return torch.ops.eqlayers.layer_dropout(x, self.muls, self.copies, self.p, self.training)
