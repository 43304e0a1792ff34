"""How a kind of module is told by its structure, and why one of a known kind does more than it says."""

from __future__ import annotations

import inspect
import re
from types import CodeType
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
#: What a class may define of its own and still compute what the class below it does.
HARMLESS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__init__", "__orig_bases__"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__parameters__"),
    *("__firstlineno__", "__static_attributes__", "__type_params__", "__abstractmethods__", "_abc_impl"),
    *("__repr__", "__str__", "extra_repr", "__e3nn_compile_mode__"),
}

#: In names of functions that add up the messages of edges.
_SUMS = re.compile("scatter|index_add|gather|segment|aggregate")


def is_theirs(module: Any, name: str, attributes: tuple[str, ...]) -> bool:
    """Whether a module, in Python and not ours, is of a class of that name or derived from one, with attributes."""
    if not isinstance(module, nn.Module) or isinstance(module, (*OURS, torch.jit.ScriptModule)):
        return False
    return base_of(module, name) is not None and all(hasattr(module, attribute) for attribute in attributes)


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
        own = sorted(set(vars(ancestor)) - HARMLESS)
        if own:
            return f"is of a class {cls.__name__} that defines {', '.join(own)} beside what {whose} does"
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
