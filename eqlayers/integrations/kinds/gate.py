"""Gates of e3nn, and the functions of one number in gates and in activations on grids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import nn

from ...core.errors import ConfigError
from ...irreps.algebra import as_irreps
from ...layers.gate.activation import known
from ...nn import Gate
from ..probes import Probe, call, draw
from ..replacement import FusedReplacement, Rule, part_if
from ..structure import base_of, child_of, has_hooks, is_plain, is_theirs, refuse_changed
from .product import AcceleratedTensorProduct, ProductReplacement, is_product, refuse_product

_ACTIVATIONS = ("act_scalars", "act_gates")
_PARTS = ("sc", *_ACTIVATIONS, "mul")
#: Parts of e3nn's layers: what else they hold than code that e3nn generates.
_HELD = {
    "normalize2mom": {"f"},
    "Activation": {"acts"},
    "_Sortcut": {"cut"},
    "Extract": {"_compiled_forward"},
    "ToS2Grid": {"alphas", "betas", "sha", "shb"},
    "FromS2Grid": {"alphas", "betas", "sha", "shb"},
    "SO3Grid": {"D", "qw", "alpha", "beta", "gamma"},
}
#: Whether a module is e3nn's, or of a class derived from that.
is_gate = partial(is_theirs, name="Gate", attributes=(*_PARTS, "irreps_in", "irreps_out"), uses=(*_PARTS, "cat"))


def _refuse(module: nn.Module) -> str | None:
    """Why a gate cannot be one call, or None."""
    reason = refuse_changed(module, "Gate", _PARTS) or refuse_parts(_parts_of(module))
    if reason is not None:
        return reason
    product: Any = module.get_submodule("mul")
    reason = refuse_product(product) if is_product(product) else "is no product of e3nn's"
    if reason is None and has_hooks(product):
        reason = "has hooks"
    return None if reason is None else f"holds mul, which {reason}"


def _parts_of(gate: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """The modules that a gate calls beside its product: path, class, module; without the parts of functions."""
    yield "sc", "_Sortcut", gate._modules["sc"]
    yield "sc.cut", "Extract", child_of(gate.get_submodule("sc"), "cut")
    for name in _ACTIVATIONS:
        yield name, "Activation", gate._modules[name]
        acts = child_of(gate.get_submodule(name), "acts")
        for number, act in enumerate(acts._modules.values() if isinstance(acts, nn.ModuleList) else ()):
            if act is not None:
                yield f"{name}.acts.{number}", "normalize2mom", act


def refuse_parts(parts: Iterable[tuple[str, str, Any]]) -> str | None:
    """Why one of the parts (path, class, module) does not do what e3nn's does, or None."""
    for path, name, part in parts:
        if (reason := _refuse_part(part, name)) is not None:
            return f"holds {path}, which {reason}"
    return None


def _refuse_part(part: Any, name: str) -> str | None:
    if not isinstance(part, nn.Module) or not is_plain(part):
        return "is TorchScript or no module"
    if base_of(part, name) is None:
        return f"is a {type(part).__name__}, not e3nn's {name}"
    if (reason := refuse_changed(part, name, (), _HELD[name], what="")) is not None:
        return reason
    return "has hooks" if any(has_hooks(m) for m in part.modules() if is_plain(m)) else None


def factor_of(act: Any) -> float:
    """The factor by which e3nn scales a function; e3nn leaves out factors within 1e-4 of 1.

    It is the estimate of when the layer was built: weights of a function may have changed since.
    """
    factor = float(act.cst)
    return 1.0 if abs(factor - 1) < 1e-4 else factor


class AcceleratedGate(FusedReplacement, ProductReplacement, Gate):
    """Replacement of an ``e3nn.nn.Gate``, with the same function objects and factors."""

    _product = "mul"

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        theirs: Any = original
        layers = theirs.act_scalars, theirs.act_gates
        vars(self)["_theirs"] = [[None if act is None else factor_of(act) for act in layer.acts] for layer in layers]
        functions = [[None if act is None else act.f for act in layer.acts] for layer in layers]
        irreps = [layer.irreps_in for layer in layers]
        super().__init__(irreps[0], functions[0], irreps[1], functions[1], theirs.irreps_gated, backend=backend)
        for name in ("irreps_in", "irreps_out"):
            mine, other = getattr(self, name), getattr(theirs, name)
            if str(mine) != str(other):
                raise ConfigError(
                    f"{name} must be the irreps of the parts of the gate, {mine}, got {other}. Build the module anew."
                )
        # which writes the keys of this very product
        self._modules["mul"] = AcceleratedTensorProduct.of(theirs.mul, backend)

    def _make(self, scalars: Any, gates: Any, gated: Any) -> None:
        """Make the formula with e3nn's factors."""
        for layer, factors in zip((self.act_scalars, self.act_gates), vars(self).pop("_theirs"), strict=True):
            acts: Any = list(layer.acts)
            for act, factor in zip(acts, factors, strict=True):
                if act is not None:
                    act.cst = factor
            layer.known = known(acts)
        super()._make(scalars, gates, gated)

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Inputs for the comparison with the original."""
        operands = {"x": draw("x", rows, as_irreps(original.irreps_in).dim)}
        return [Probe(operands, lambda module, o: call(module, o["x"]))]


RULE = Rule("gate", part_if(is_gate), _refuse, AcceleratedGate.of, inner="mul")
