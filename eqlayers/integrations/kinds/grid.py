"""Activations on grids of e3nn: on the sphere, and on rotations."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ...layers.base.module import EquivariantModule
from ...layers.gate.activation import NormalizedFunction
from ...layers.gate.grid_activation import sphere_constants
from ...nn import S2Activation, SO3Activation
from ..probes import Operands, Probe, call, draw
from ..replacement import FusedReplacement, Rule, part_if
from ..structure import base_of, is_theirs, refuse_changed
from .gate import factor_of, refuse_parts

#: Parts of activations on grids, and what these are.
_PARTS = {
    "S2Activation": {"to_s2": "ToS2Grid", "from_s2": "FromS2Grid", "act": "normalize2mom"},
    "SO3Activation": {"grid_in": "SO3Grid", "grid_out": "SO3Grid", "act": "normalize2mom"},
}
_S2, _SO3 = ((*_PARTS["S2Activation"], "random_rot"), tuple(_PARTS["SO3Activation"]))
#: Whether a module is e3nn's, or of a class derived from that.
is_s2_activation = partial(is_theirs, name="S2Activation", attributes=_S2, uses=_S2)
is_so3_activation = partial(is_theirs, name="SO3Activation", attributes=(*_SO3, "lmax_in", "lmax_out"), uses=_SO3)


def _refuse(module: Any) -> str | None:
    """Why an activation on a grid must stay, or None."""
    name = next(name for name in _PARTS if base_of(module, name) is not None)
    reason = refuse_changed(module, name, (), _PARTS[name])
    reason = reason or refuse_parts((path, kind, module._modules[path]) for path, kind in _PARTS[name].items())
    if reason is None and name == "S2Activation" and len(module.to_s2.alphas) % 2 == 0:
        return (
            f"has {len(module.to_s2.alphas)} points about the axis: of an even number e3nn makes matrix products, too"
        )
    return reason


class _GridReplacement(FusedReplacement):
    """Mixin: an activation on the grids of the original, which are what counts in a state dict."""

    act: NormalizedFunction

    def _take(self, theirs: Any, grids: tuple[str, str]) -> None:
        for name in grids:
            self._modules[name] = theirs._modules[name]
        self.act = NormalizedFunction(theirs.act.f)
        self.act.cst = factor_of(theirs.act)

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Inputs for the comparison with the original."""
        operands = {"x": draw("x", rows, as_irreps(self.irreps_in).dim)}
        return [Probe(operands, lambda module, o: _replayed(module, o["x"]))]


class AcceleratedS2Activation(_GridReplacement, S2Activation):
    """Replacement of an ``e3nn.nn.S2Activation``, with the same grid objects."""

    _settings = ("random_rot",)

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        EquivariantModule.__init__(self, backend=backend)
        theirs: Any = original
        self._take(theirs, ("to_s2", "from_s2"))
        self.irreps_in, self.irreps_out = as_irreps(theirs.irreps_in), as_irreps(theirs.irreps_out)
        self.random_rot = theirs.random_rot
        self._flat = FlatLayout(self.irreps_in, "mul_ir")
        self._set_rotations()

    def exact_constants(self, original: Any) -> Operands:
        """The functions of alpha: e3nn makes Fourier transforms in place of their products."""
        shapes = {name: original.get_buffer(name).shape for name in ("to_s2.sha", "from_s2.sha")}
        exact = {name: sphere_constants(n // 2, 2, points, "integral", None) for name, (points, n) in shapes.items()}
        return {name: torch.from_numpy(constants["sha"]) for name, constants in exact.items()}


class AcceleratedSO3Activation(_GridReplacement, SO3Activation):
    """Replacement of an ``e3nn.nn.SO3Activation``, with the same grid objects."""

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        EquivariantModule.__init__(self, backend=backend)
        theirs: Any = original
        self._take(theirs, ("grid_in", "grid_out"))
        self._set_degrees(theirs.lmax_in, theirs.lmax_out)
        self.resolution = theirs.grid_in.res_beta // 2


RULES = (
    Rule("grid", part_if(is_s2_activation), _refuse, AcceleratedS2Activation.of),
    Rule("grid", part_if(is_so3_activation), _refuse, AcceleratedSO3Activation.of),
)


def _replayed(module: nn.Module, x: Tensor) -> Tensor:
    """A call of a module that draws random numbers: torch's generator is reset to the same numbers."""
    kind = x.device.type
    with torch.random.fork_rng([] if kind == "cpu" else [x.device], device_type="cuda" if kind == "cpu" else kind):
        return call(module, x)
