"""Gates of e3nn, and its activations on grids of the sphere and of rotations: layers with functions of one number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ...layers.base.module import EquivariantModule
from ...layers.gate.activation import NormalizedFunction, known
from ...layers.gate.grid_activation import sphere_constants
from ...nn import Gate, S2Activation, SO3Activation
from ..replacement import FusedReplacement, Operands, Probe, Rule, call, part_if
from ..structure import base_of, child_of, has_hooks, is_theirs, refuse_changed
from .product import AcceleratedTensorProduct, ProductReplacement, is_product, refuse_product

_ACTIVATIONS = ("act_scalars", "act_gates")
_OF_GATE = ("sc", *_ACTIVATIONS, "mul")
#: Class of a submodule of e3nn's layers -> its submodules and buffers, beside code that e3nn generates.
_HELD = {
    "normalize2mom": {"f"},
    "Activation": {"acts"},
    "_Sortcut": {"cut"},
    "Extract": {"_compiled_forward"},
    "ToS2Grid": {"alphas", "betas", "sha", "shb"},
    "FromS2Grid": {"alphas", "betas", "sha", "shb"},
    "SO3Grid": {"D", "qw", "alpha", "beta", "gamma"},
}
#: Submodules of e3nn's activations on grids, and their classes.
_GRID_PARTS = {
    "S2Activation": {"to_s2": "ToS2Grid", "from_s2": "FromS2Grid", "act": "normalize2mom"},
    "SO3Activation": {"grid_in": "SO3Grid", "grid_out": "SO3Grid", "act": "normalize2mom"},
}
_S2, _SO3 = ((*_GRID_PARTS["S2Activation"], "random_rot"), tuple(_GRID_PARTS["SO3Activation"]))
#: Whether a module is of e3nn's class of that name, or of a class derived from it.
is_gate = partial(is_theirs, name="Gate", attributes=(*_OF_GATE, "irreps_in", "irreps_out"), uses=(*_OF_GATE, "cat"))
is_s2_activation = partial(is_theirs, name="S2Activation", attributes=_S2, uses=_S2)
is_so3_activation = partial(is_theirs, name="SO3Activation", attributes=(*_SO3, "lmax_in", "lmax_out"), uses=_SO3)


def _refuse(module: nn.Module) -> str | None:
    """Why a gate cannot be replaced, or None."""
    reason = refuse_changed(module, "Gate", _OF_GATE) or _refuse_parts(_parts_of(module))
    if reason is not None:
        return reason
    product: Any = module.get_submodule("mul")
    reason = refuse_product(product) if is_product(product) else "is no product of e3nn's"
    if reason is None and has_hooks(product):
        reason = "has hooks"
    return None if reason is None else f"holds mul, which {reason}"


def _parts_of(gate: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Submodules of a gate beside its product: path, name of e3nn's class, module."""
    yield "sc", "_Sortcut", gate._modules["sc"]
    yield "sc.cut", "Extract", child_of(gate.get_submodule("sc"), "cut")
    for name in _ACTIVATIONS:
        yield name, "Activation", gate._modules[name]
        acts = child_of(gate.get_submodule(name), "acts")
        for number, act in enumerate(acts._modules.values() if isinstance(acts, nn.ModuleList) else ()):
            if act is not None:
                yield f"{name}.acts.{number}", "normalize2mom", act


def _refuse_parts(parts: Iterable[tuple[str, str, Any]]) -> str | None:
    """Why one of the submodules (path, name of e3nn's class, module) may compute other things than e3nn's, or None."""
    for path, name, part in parts:
        if (reason := _refuse_part(part, name)) is not None:
            return f"holds {path}, which {reason}"
    return None


def _refuse_part(part: Any, name: str) -> str | None:
    """Why a submodule may compute other things than e3nn's class of this name, or None."""
    if not isinstance(part, nn.Module) or isinstance(part, torch.jit.ScriptModule):
        return "is TorchScript or no module"
    if base_of(part, name) is None:
        return f"is a {type(part).__name__}, not e3nn's {name}"
    if (reason := refuse_changed(part, name, (), _HELD[name], what="")) is not None:
        return reason
    inner = (m for m in part.modules() if not isinstance(m, torch.jit.ScriptModule))
    return "has hooks" if any(map(has_hooks, inner)) else None


def _factor_of(act: Any) -> float:
    """The factor by which an e3nn activation scales its function, stored when it was built; 1 if within 1e-4 of 1."""
    factor = float(act.cst)
    return 1.0 if abs(factor - 1) < 1e-4 else factor


class AcceleratedGate(FusedReplacement, ProductReplacement, Gate):
    """Replacement of an ``e3nn.nn.Gate``, with the same function objects and factors."""

    _product = "mul"

    def __init__(self, original: Any, backend: str | None = None) -> None:
        layers = original.act_scalars, original.act_gates
        vars(self)["_theirs"] = [[None if act is None else _factor_of(act) for act in layer.acts] for layer in layers]
        functions = [[None if act is None else act.f for act in layer.acts] for layer in layers]
        irreps = [layer.irreps_in for layer in layers]
        super().__init__(irreps[0], functions[0], irreps[1], functions[1], original.irreps_gated, backend=backend)
        for name in ("irreps_in", "irreps_out"):
            mine, other = getattr(self, name), getattr(original, name)
            if str(mine) != str(other):
                raise ConfigError(
                    f"{name} must be the irreps of the parts of the gate, {mine}, got {other}. Build the module anew."
                )
        # which writes the keys of this very product
        self._modules["mul"] = AcceleratedTensorProduct.of(original.mul, backend)

    def _make(self, scalars: Any, gates: Any, gated: Any) -> None:
        """Make the formula of the gate with the factors of e3nn's activations."""
        for layer, factors in zip((self.act_scalars, self.act_gates), vars(self).pop("_theirs"), strict=True):
            acts: Any = list(layer.acts)
            for act, factor in zip(acts, factors, strict=True):
                if act is not None:
                    act.cst = factor
            layer.known = known(acts)
        super()._make(scalars, gates, gated)


def _refuse_grid(module: Any) -> str | None:
    """Why an activation on a grid cannot be replaced, or None."""
    name = next(name for name in _GRID_PARTS if base_of(module, name) is not None)
    reason = refuse_changed(module, name, (), _GRID_PARTS[name])
    reason = reason or _refuse_parts((path, kind, module._modules[path]) for path, kind in _GRID_PARTS[name].items())
    if reason is None and name == "S2Activation" and len(module.to_s2.alphas) % 2 == 0:
        return (
            f"has {len(module.to_s2.alphas)} points about the axis: of an even number e3nn makes matrix products, too"
        )
    return reason


class _GridReplacement(FusedReplacement):
    """Mixin of activations on grids with the grid modules of the original, whose buffers are in the state dict."""

    act: NormalizedFunction

    def _take(self, theirs: Any, grids: tuple[str, str]) -> None:
        """Register the grid modules of the original, and its activation."""
        for name in grids:
            self._modules[name] = theirs._modules[name]
        self.act = NormalizedFunction(theirs.act.f)
        self.act.cst = _factor_of(theirs.act)

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Random operands; both modules draw the same random rotation."""
        return [replace(one, run=lambda module, o: _replayed(module, o["x"])) for one in super().probes(self, rows)]


class AcceleratedS2Activation(_GridReplacement, S2Activation):
    """Replacement of an ``e3nn.nn.S2Activation``, with the same grid objects."""

    _settings = ("random_rot",)

    def __init__(self, original: Any, backend: str | None = None) -> None:
        EquivariantModule.__init__(self, backend=backend)
        self._take(original, ("to_s2", "from_s2"))
        self.irreps_in, self.irreps_out = as_irreps(original.irreps_in), as_irreps(original.irreps_out)
        self.random_rot = original.random_rot
        self._flat = FlatLayout(self.irreps_in, "mul_ir")
        self._set_rotations()

    def exact_constants(self, original: Any) -> Operands:
        """The functions of alpha on both grids, which e3nn rounds."""
        shapes = {name: original.get_buffer(name).shape for name in ("to_s2.sha", "from_s2.sha")}
        exact = {name: sphere_constants(n // 2, 2, points, "integral", None) for name, (points, n) in shapes.items()}
        return {name: torch.from_numpy(constants["sha"]) for name, constants in exact.items()}


class AcceleratedSO3Activation(_GridReplacement, SO3Activation):
    """Replacement of an ``e3nn.nn.SO3Activation``, with the same grid objects."""

    def __init__(self, original: Any, backend: str | None = None) -> None:
        EquivariantModule.__init__(self, backend=backend)
        self._take(original, ("grid_in", "grid_out"))
        self._set_degrees(original.lmax_in, original.lmax_out)
        self.resolution = original.grid_in.res_beta // 2


def _replayed(module: nn.Module, x: Tensor) -> Tensor:
    """Call a module that draws random numbers, and restore the state of torch's generator afterwards."""
    kind = x.device.type
    with torch.random.fork_rng([] if kind == "cpu" else [x.device], device_type="cuda" if kind == "cpu" else kind):
        return call(module, x)


RULES = (
    Rule("gate", part_if(is_gate), _refuse, AcceleratedGate.of, inner="mul"),
    Rule("grid", part_if(is_s2_activation), _refuse_grid, AcceleratedS2Activation.of),
    Rule("grid", part_if(is_so3_activation), _refuse_grid, AcceleratedSO3Activation.of),
)
