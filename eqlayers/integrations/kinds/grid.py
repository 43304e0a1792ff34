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
from ...nn import S2Activation, SO3Activation
from ..probes import Operands, Probe, call, draw
from ..replacement import FusedReplacement
from ..structure import Rule, base_of, is_theirs, part_if, refuse_changed
from .gate import PER_FUNCTION, derivatives, factor_of, refuse_parts

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
        irreps = as_irreps(self.irreps_in), as_irreps(self.irreps_out)
        there, back = _grid_matrices(original)
        turned = bool(getattr(original, "random_rot", False))
        spread = [torch.block_diag(*(torch.ones(ir.dim, ir.dim).to(there) for _, ir in one)) for one in irreps]

        def size(o: Operands, count: bool) -> Tensor:
            # a rotation spreads what there is over the components
            at, out = (one != 0 if count else one for one in (there, back))
            signal = (o["x"] @ spread[0] if turned else o["x"]) @ at.to(there)
            values = _bound_within(original.act, signal, count) @ out.to(back)
            return values @ spread[1] if turned else values

        # rotations are rounded to the default dtype, with the grid or without
        wide = next(original.buffers()).dtype == torch.float64
        rounded = _in_float32(*original.buffers()) or (turned and wide and torch.get_default_dtype() == torch.float32)
        error = PER_FUNCTION * torch.finfo(torch.float32).eps if rounded else 0.0
        return [Probe({"x": draw("x", rows, irreps[0].dim)}, lambda module, o: _replayed(module, o["x"]), size, error)]


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
        self._set_turns()


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


# ---- inputs ---------------------------------------------------------------------------------------------------------


def _in_float32(*constants: Tensor) -> bool:
    """Whether some in float64 were rounded to float32 before; e3nn's Fourier transforms, which use none, were not."""
    wide = [t.detach() for t in constants if t.dtype == torch.float64]
    return any(torch.equal(t, t.float().double()) and bool(t.frac().any()) for t in wide)


def _grid_matrices(layer: Any) -> tuple[Tensor, Tensor]:
    """Absolute factors of coefficients at points, and of points in coefficients: float64 on the CPU."""

    def constants(grid: Any, *names: str) -> list[Tensor]:
        return [grid.get_buffer(name).detach().double().cpu().abs() for name in names]

    if hasattr(layer, "to_s2"):
        there, back = (
            torch.einsum("am,mbi->bai", *constants(grid, "sha", "shb")).flatten(0, 1)
            for grid in (layer.to_s2, layer.from_s2)
        )
    else:
        there, back, weights = *constants(layer.grid_in, "D"), *constants(layer.grid_out, "D", "qw")
        there = (there / there.shape[-1] ** 0.5).flatten(0, 2)
        back = (back * weights[:, None, None] * back.shape[-1] ** 0.5).flatten(0, 2)
    return there.T, back


#: Points where a function is evaluated, in parts of the largest argument.
_WITHIN = (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)


def _bound_within(act: Any, x: Tensor, count: bool) -> Tensor:
    """A function whose value and first two derivatives have the sizes of f(v)'s, v a sum of terms of size x."""
    step, most = x - x.detach(), x.detach()
    if count:  # of all points together the roundings of one argument and one function, for these are of each
        return (1 + (PER_FUNCTION + most) / x.shape[-1]) * step.exp()
    each = [derivatives(act.f, part * most, 3) for part in _WITHIN]
    largest = [torch.stack(values).amax(0) for values in zip(*each, strict=True)]
    factor = abs(float(act.cst))
    value, first, second = (factor * (largest[k] + (k > 0) + largest[k + 1] * most) for k in range(3))
    return value + first * step + second * step.square() / 2


def _replayed(module: nn.Module, x: Tensor) -> Tensor:
    """A call of a module that draws random numbers: torch's generator is reset to the same numbers."""
    kind = x.device.type
    with torch.random.fork_rng([] if kind == "cpu" else [x.device], device_type="cuda" if kind == "cpu" else kind):
        return call(module, x)
