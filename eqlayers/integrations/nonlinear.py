"""Replacements of e3nn's nonlinear layers; see :mod:`.modules`."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..core.errors import ConfigError
from ..irreps.algebra import as_irreps
from ..irreps.layout import FlatLayout
from ..layers.base.module import EquivariantModule
from ..layers.gate.functions import NormalizedFunction, known
from ..nn import BatchNorm, Gate, S2Activation, SO3Activation
from .layer_rules import BATCH_NORM_OPTIONS
from .modules import AcceleratedTensorProduct, FusedReplacement


def _factor(act: Any) -> float:
    """The factor by which e3nn scales a function; e3nn leaves out factors within 1e-4 of 1.

    It is the estimate of when the layer was built: weights of a function may have changed since.
    """
    found = float(act.cst)
    return 1.0 if abs(found - 1) < 1e-4 else found


class AcceleratedGate(FusedReplacement, Gate):
    """Replacement of an ``e3nn.nn.Gate``, with the same function objects and factors.

    Args:
        original: The module.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        ConfigError: Irreps of the result that our layer does not have.
    """

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        theirs: Any = original
        layers = theirs.act_scalars, theirs.act_gates
        vars(self)["_theirs"] = [[None if act is None else _factor(act) for act in layer.acts] for layer in layers]
        functions = [[None if act is None else act.f for act in layer.acts] for layer in layers]
        irreps = [layer.irreps_in for layer in layers]
        super().__init__(irreps[0], functions[0], irreps[1], functions[1], theirs.irreps_gated, backend=backend)
        for name in ("irreps_in", "irreps_out"):
            mine, given = getattr(self, name), getattr(theirs, name)
            if str(mine) != str(given):
                raise ConfigError(
                    f"{name} must be the irreps of the parts of the gate, {mine}, got {given}. Build the module anew."
                )
        product = AcceleratedTensorProduct.from_e3nn(theirs.mul, backend=backend)
        product.stand_in_for(theirs.mul)
        self._modules["mul"] = product  # which writes the keys of this very product

    def _make(self, scalars: Any, gates: Any, gated: Any) -> None:
        """Make the formula with e3nn's factors."""
        for layer, factors in zip((self.act_scalars, self.act_gates), vars(self).pop("_theirs"), strict=True):
            acts: Any = list(layer.acts)
            for act, factor in zip(acts, factors, strict=True):
                if act is not None:
                    act.cst = factor
            layer.known = known(acts)
        super()._make(scalars, gates, gated)

    def restore(self) -> nn.Module:
        """The original; its product too has the place of now."""
        product: Any = self.mul
        product.restore()
        return self._give_back()


class AcceleratedBatchNorm(FusedReplacement, BatchNorm):
    """Replacement of an ``e3nn.nn.BatchNorm``, with the same weight and running statistics objects.

    Args:
        original: The module.
        backend: Name of a backend, or None for the first that accepts.
    """

    _settings = ("eps", "momentum")

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        theirs: Any = original
        super().__init__(
            as_irreps(theirs.irreps),
            **{name: getattr(theirs, name) for name in BATCH_NORM_OPTIONS},
            include_bias=getattr(theirs, "include_bias", True),
            backend=backend,
        )
        self._parameters.update(theirs._parameters)
        self._buffers.update(theirs._buffers)


class _GridReplacement(FusedReplacement):
    """Mixin: an activation on the grids of the original, which are what counts in a state dict."""

    act: NormalizedFunction

    def _take(self, theirs: Any, grids: tuple[str, str]) -> None:
        for name in grids:
            self._modules[name] = theirs._modules[name]
        self.act = NormalizedFunction(theirs.act.f)
        self.act.cst = _factor(theirs.act)


class AcceleratedS2Activation(_GridReplacement, S2Activation):
    """Replacement of an ``e3nn.nn.S2Activation``, with the same grid objects.

    Args:
        original: The module.
        backend: For the signature of all replacements.
    """

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
    """Replacement of an ``e3nn.nn.SO3Activation``, with the same grid objects.

    Args:
        original: The module.
        backend: For the signature of all replacements.
    """

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        EquivariantModule.__init__(self, backend=backend)
        theirs: Any = original
        self._take(theirs, ("grid_in", "grid_out"))
        self._set_degrees(theirs.lmax_in, theirs.lmax_out)
        self.resolution = theirs.grid_in.res_beta // 2
