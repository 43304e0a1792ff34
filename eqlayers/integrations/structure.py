"""Modules of a model: their places, how kinds are recognised by their structure, and why one of a kind must stay.

Kinds are recognised by names in the class's line of ancestors, attributes, and names in the code of ``forward``, so
that neither NequIP nor MACE is imported, and e3nn's layers of any version and in any package are recognised.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType, MethodType
from typing import Any

import torch
from torch import nn

from ..layers.base.module import EquivariantModule
from ..nn import Norm, SphericalHarmonics

#: Layers of this package.
OURS = (EquivariantModule, Norm, SphericalHarmonics)
PRODUCT_NAMES = (
    "TensorProduct",
    "FullyConnectedTensorProduct",
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "TensorSquare",
)
#: Names that a class may define and still compute the same as the class that it derives from.
HARMLESS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__init__", "__orig_bases__"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__parameters__"),
    *("__firstlineno__", "__static_attributes__", "__type_params__", "__abstractmethods__", "_abc_impl"),
    *("__repr__", "__str__", "extra_repr", "__e3nn_compile_mode__"),
}

#: Words in names of functions that add up the messages of edges.
_SUMS = re.compile("scatter|index_add|gather|segment|aggregate")


def is_theirs(module: Any, name: str, attributes: Collection[str], uses: Collection[str] = ()) -> bool:
    """Whether a module of others has a class of that name or derived from one, whose forward ``uses`` some names."""
    if not isinstance(module, nn.Module) or isinstance(module, (*OURS, torch.jit.ScriptModule)):
        return False
    base: Any = base_of(module, name)
    if base is None or not all(hasattr(module, attribute) for attribute in attributes):
        return False
    code = code_of(base.forward) if uses else None
    return not uses or (code is not None and set(uses) <= set(code.co_names))


def base_of(module: nn.Module, name: str) -> type | None:
    """The oldest ancestor of that name, torch's own aside."""
    named = [c for c in type(module).__mro__ if c.__name__ == name and not c.__module__.startswith("torch.")]
    return named[-1] if named else None


def child_of(module: nn.Module, name: str) -> nn.Module | None:
    """A submodule of a module in Python; TorchScript has none that can be taken out."""
    return None if isinstance(module, torch.jit.ScriptModule) else module._modules.get(name)


def code_of(function: Any) -> CodeType | None:
    """The code of a function in Python, past its decorators."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) else None


def refuse_class(cls: type, base: type, whose: str = "e3nn's") -> str | None:
    """Why a class does more than the one that we know, or None; mixins count."""
    family = base.__module__.split(".")[0]
    for ancestor in cls.__mro__:
        theirs = ancestor.__module__.split(".")[0] == family and ancestor.__name__ in PRODUCT_NAMES
        if theirs or ancestor in base.__mro__:
            continue
        further = sorted(set(vars(ancestor)) - HARMLESS)
        if further:
            return f"is of a class {cls.__name__} that defines {', '.join(further)} beside what {whose} does"
    return None


def refuse_object(module: nn.Module) -> str | None:
    """Why this very object does not do what its class says, or None."""
    if hasattr(module, "parametrizations"):
        return "is parametrized: remove the parametrization first"
    if "forward" in vars(module):
        return "has had its forward replaced on the object"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "was compiled by itself: call .compile() after accelerate"
    if any(t.is_meta for t in [*module.parameters(), *module.buffers()]):
        return "is on the meta device, where there are no numbers: call accelerate after to_empty and load_state_dict"
    return None


def refuse_changed(
    module: nn.Module,
    name: str,
    needed: Collection[str] = (),
    optional: Collection[str] = (),
    whose: str = "e3nn's",
    what: str = " layer",
) -> str | None:
    """Why a module does other things than the class of that name, or None.

    The class says which parameters, buffers and submodules a module must have, and which it may have.
    """
    base = base_of(module, name)
    assert base is not None
    held = {*module._parameters, *module._buffers, *module._modules}
    strange = sorted((set(needed) - held) | (held - {*needed, *optional}))
    reason = refuse_object(module) or refuse_class(type(module), base, whose)
    if reason is None and strange:
        reason = f"does not hold what {whose}{what} holds: {', '.join(strange)}"
    return reason


def hooks_inside(module: nn.Module) -> bool:
    """Whether submodules in Python have hooks on their inputs or results."""
    inner = [m for m in module.modules() if m is not module and is_plain(m)]
    return any(vars(m).get("_forward_hooks") or vars(m).get("_forward_pre_hooks") for m in inner)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks on its inputs or outputs, forward or backward."""
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(kinds)


def adds_up(module: nn.Module) -> bool:
    """Whether a module's own forward adds rows up by an index, as far as the names of the called functions tell."""
    code = code_of(type(module).forward)
    names = set() if code is None else set(code.co_names) - set(vars(module)["_modules"])
    return any(_SUMS.search(name) for name in names)


def is_plain(module: nn.Module) -> bool:
    """Whether it is a module in Python."""
    return not isinstance(module, torch.jit.ScriptModule)


# ---- places ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A name under which a module is registered in another; the model itself has no parent."""

    parent: nn.Module | None
    name: str
    path: str

    def put(self, module: nn.Module) -> None:
        """Register ``module`` here; containers and graph modules find it like any other."""
        assert self.parent is not None
        self.parent._modules[self.name] = module


def find_places(model: nn.Module, closed: Callable[[nn.Module], bool]) -> dict[nn.Module, list[Place]]:
    """Every module from ``model`` down to closed ones, with all its places, in the order of ``named_modules``."""
    places: dict[nn.Module, list[Place]] = {}

    def visit(module: nn.Module, place: Place) -> None:
        known = module in places
        places.setdefault(module, []).append(place)
        if known or closed(module):
            return
        for name, child in vars(module)["_modules"].items():
            if child is not None:
                visit(child, Place(module, name, f"{place.path}.{name}" if place.path else name))

    visit(model, Place(None, "", ""))
    return places


def find_aliases(modules: Iterator[tuple[str, nn.Module]], wanted: set[nn.Module]) -> dict[nn.Module, str]:
    """Attributes, outside the registered submodules, that hold one of the wanted modules or a method of it.

    Such an attribute would go on to the original, which no longer follows the model to another device or dtype.
    """
    aliases: dict[nn.Module, str] = {}
    for path, module in modules:
        for name, value in vars(module).items():
            if name in ("_modules", "_parameters", "_buffers", "_original") or "hook" in name:
                continue
            for held in _held(value, 3):
                if held in wanted and held is not module:
                    aliases.setdefault(held, f"{path}.{name}" if path else name)
    return aliases


def _held(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
        yield value.__self__
    elif depth and isinstance(value, partial):
        yield from _held((value.func, value.args, value.keywords), depth)
    elif depth and isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _held(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _held(item, depth - 1)


def compiled_here(place: Place) -> bool:
    """Whether the place is in ``torch.compile(module)``, which goes on to call the module that it was given."""
    return any(c.__name__ == "OptimizedModule" for c in type(place.parent).__mro__)
