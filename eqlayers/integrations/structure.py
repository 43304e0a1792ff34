"""Modules of a model: where they are registered, of which kind they are, and why one cannot be replaced.

Kinds are recognised by names in the class's line of ancestors, attributes, and names in the code of ``forward``, so
that neither NequIP nor MACE is imported, and e3nn's layers of any version and in any package are recognised.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator
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
    *("TensorProduct", "FullyConnectedTensorProduct", "ElementwiseTensorProduct", "FullTensorProduct"),
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
    """Whether an object is a module of a class of this name, or of a class derived from it, in another package.

    It must have the ``attributes``, and the code of the class's ``forward`` the names in ``uses``.
    """
    if not isinstance(module, nn.Module) or isinstance(module, (*OURS, torch.jit.ScriptModule)):
        return False
    base: Any = base_of(module, name)
    if base is None or not all(hasattr(module, attribute) for attribute in attributes):
        return False
    code = code_of(base.forward) if uses else None
    return not uses or (code is not None and set(uses) <= set(code.co_names))


def base_of(module: nn.Module, name: str) -> type | None:
    """The most basic class of this name that the module's class derives from, classes of torch left out."""
    named = [c for c in type(module).__mro__ if c.__name__ == name and not c.__module__.startswith("torch.")]
    return named[-1] if named else None


def child_of(module: nn.Module, name: str) -> nn.Module | None:
    """The submodule of this name; None if there is none, or if the module is TorchScript."""
    return None if isinstance(module, torch.jit.ScriptModule) else module._modules.get(name)


def code_of(function: Any) -> CodeType | None:
    """The code object of a Python function without its decorators; None if the function is not in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) else None


def refuse_class(cls: type, base: type, whose: str = "e3nn's") -> str | None:
    """Why ``cls`` may compute other things than its base class ``base``: attributes defined between them; or None."""
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
    """Why this object may compute other things than its class (parametrized, patched, compiled, meta), or None."""
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
    """Why a module may compute other things than the known class of this name, or None.

    ``needed`` and ``optional`` are names of parameters, buffers and submodules that it must have, and may have;
    ``whose`` and ``what`` are words of the reason: the owner of the class, and what it is.
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
    inner = [m for m in module.modules() if m is not module and not isinstance(m, torch.jit.ScriptModule)]
    return any(vars(m).get("_forward_hooks") or vars(m).get("_forward_pre_hooks") for m in inner)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks on its inputs or outputs, forward or backward."""
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(kinds)


def adds_up(module: nn.Module) -> bool:
    """Whether a module's forward sums rows by an index, judged by the names of the functions that it calls."""
    code = code_of(type(module).forward)
    names = set() if code is None else set(code.co_names) - set(vars(module)["_modules"])
    return any(_SUMS.search(name) for name in names)


# ---- where modules are registered -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Registration:
    """The name of a module in its parent, and its path in the model; the model itself has no parent."""

    parent: nn.Module | None
    name: str
    path: str

    def set(self, module: nn.Module) -> None:
        """Register ``module`` in the parent under this name; the module that had the name is registered no more."""
        assert self.parent is not None
        self.parent._modules[self.name] = module


#: Modules of a model, in the order of ``named_modules``, with the registrations of each.
Registered = dict[nn.Module, list[Registration]]


def find_modules(model: nn.Module, closed: Callable[[nn.Module], bool]) -> Registered:
    """The modules of a model and their registrations; submodules of ``closed`` modules are left out."""
    registered: Registered = {}

    def visit(module: nn.Module, registration: Registration) -> None:
        known = module in registered
        registered.setdefault(module, []).append(registration)
        if known or closed(module):
            return
        for name, child in vars(module)["_modules"].items():
            if child is not None:
                path = f"{registration.path}.{name}" if registration.path else name
                visit(child, Registration(module, name, path))

    visit(model, Registration(None, "", ""))
    return registered


def find_aliases(modules: Iterable[tuple[str, nn.Module]], layers: set[nn.Module]) -> dict[nn.Module, str]:
    """Layer -> path of an attribute, outside the registered submodules, that holds the layer or a method of it.

    Such an attribute would still hold the original after a replacement, without the model's device and dtype.
    """
    aliases: dict[nn.Module, str] = {}
    for path, module in modules:
        for name, value in vars(module).items():
            if name in ("_modules", "_parameters", "_buffers", "_original") or "hook" in name:
                continue
            for held in _held(value, 3):
                if held in layers and held is not module:
                    aliases.setdefault(held, f"{path}.{name}" if path else name)
    return aliases


def _held(value: Any, depth: int) -> Iterator[nn.Module]:
    """Modules in a value: itself, the owner of a method, entries of containers nested up to ``depth`` deep."""
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


def is_compiled(registration: Registration) -> bool:
    """Whether the parent is ``torch.compile(module)``, which calls the module it was given, not a registered one."""
    return any(c.__name__ == "OptimizedModule" for c in type(registration.parent).__mro__)
