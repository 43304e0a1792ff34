"""Kinds of modules: how they are recognised by their structure, and why one of a known kind must stay.

Kinds are recognised by names in the class's line of ancestors, attributes, and names in the code of ``forward``, so
that neither NequIP nor MACE is imported, and e3nn's layers of any version and in any package are recognised.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..layers.base.module import EquivariantModule
from ..nn import Norm, SphericalHarmonics

if TYPE_CHECKING:
    from .replacement import Replacement

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
    """Why a module does other things than its class says, or None.

    Args:
        module: Of a class of that name, or derived from one.
        name: Of the class.
        needed: Parameters, buffers and submodules that it must have.
        optional: Those that it may have.
        whose: Package of the class, for the reason.
        what: What the class is, for the reason.
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


@dataclass(frozen=True)
class Rule:
    """One kind of module.

    Attributes:
        target: What users call this kind, see :func:`eqlayers.accelerate`.
        parts: Names of the submodules that are replaced if a module is of this kind, '' for itself; none if not.
        refuse: Why this one cannot be replaced, a phrase that follows the name of the module; None if it can.
        build: Makes the replacement, with a backend.
        inner: Name of the product inside of the replaced module; empty if it is that.
        anywhere: Whether the replacement does what the original does in other places, too.
    """

    target: str
    parts: Callable[[nn.Module], Sequence[str]]
    refuse: Callable[[nn.Module], str | None]
    build: Callable[[nn.Module, str | None], Replacement]
    inner: str = ""
    anywhere: bool = False


def part_if(test: Callable[[nn.Module], bool], part: str = "") -> Callable[[nn.Module], Sequence[str]]:
    """The parts of a rule with one part: that part of modules that pass a test."""
    return lambda module: (part,) if test(module) else ()
