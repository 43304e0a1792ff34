"""What stands in for e3nn's gates and batch normalizations; see :mod:`.modules`."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..algebra import as_irreps
from ..errors import ConfigError
from ..nn import BatchNorm, Gate
from ..nn._common.functions import known
from .layer_rules import BATCH_NORM_OPTIONS
from .modules import AcceleratedTensorProduct, FusedReplacement


class AcceleratedGate(FusedReplacement, Gate):
    """In place of an ``e3nn.nn.Gate``: its functions, the very objects, with the very factors.

    Args:
        original: The module.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        ConfigError: Irreps of the result that our layer does not have.
    """

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        theirs: Any = original
        layers = theirs.act_scalars, theirs.act_gates
        vars(self)["_theirs"] = [[None if act is None else float(act.cst) for act in layer.acts] for layer in layers]
        functions = [[None if act is None else act.f for act in layer.acts] for layer in layers]
        irreps = [layer.irreps_in for layer in layers]
        super().__init__(irreps[0], functions[0], irreps[1], functions[1], theirs.irreps_gated, backend=backend)
        for name in ("irreps_in", "irreps_out"):
            mine, given = getattr(self, name), getattr(theirs, name)
            if str(mine) != str(given):
                raise ConfigError(
                    f"{name} must be those of the parts of the gate, {mine}, got {given}. Build the module anew."
                )
        product = AcceleratedTensorProduct.from_e3nn(theirs.mul, backend=backend)
        product.stand_in_for(theirs.mul)
        self._modules["mul"] = product  # which writes the keys of this very product

    def _make(self, scalars: Any, gates: Any, gated: Any) -> None:
        """Make the formula with e3nn's factors; those within 1e-4 of 1 it does not apply.

        They are estimates of when the gate was built: weights of a function may have changed since.
        """
        for layer, factors in zip((self.act_scalars, self.act_gates), vars(self).pop("_theirs"), strict=True):
            acts: Any = list(layer.acts)
            for act, factor in zip(acts, factors, strict=True):
                if act is not None:
                    act.cst = 1.0 if abs(factor - 1) < 1e-4 else factor
            layer.known = known(acts)
        super()._make(scalars, gates, gated)

    def restore(self) -> nn.Module:
        """The original; its product too has the place of now."""
        product: Any = self.mul
        product.restore()
        return self._give_back()


class AcceleratedBatchNorm(FusedReplacement, BatchNorm):
    """In place of an ``e3nn.nn.BatchNorm``: its weights and running statistics, the very objects.

    Args:
        original: The module.
        backend: Name of a backend, or None for the first that accepts.
    """

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

    def _give_back(self) -> nn.Module:
        """The original; schedules of the momentum reach it."""
        original: Any = super()._give_back()
        original.eps, original.momentum = self.eps, self.momentum
        module: nn.Module = original
        return module
