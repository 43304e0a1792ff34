"""Which modules can be replaced, by what, and why some of them are not: one row per kind of module.

Kinds are told by structure (names in the class's line of ancestors, attributes, arguments of ``forward``), so that
neither NequIP nor MACE is imported, and e3nn's layers of any version and in any package are found.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import nn

from ..nn._common.base import EquivariantModule
from ..nn._common.linear_paths import has_channel_axes
from .modules import (
    AcceleratedConvolution,
    AcceleratedLinear,
    AcceleratedScatter,
    AcceleratedTensorProduct,
    AcceleratedTensorSquare,
    Replacement,
)

COMMON_ATTRIBUTES = ("irreps_out", "instructions", "weight_numel", "shared_weights", "internal_weights", "output_mask")
PRODUCT_ATTRIBUTES = ("irreps_in1", "irreps_in2", *COMMON_ATTRIBUTES, "_compiled_main_left_right")
LINEAR_ATTRIBUTES = ("irreps_in", *COMMON_ATTRIBUTES, "_compiled_main")
PRODUCT_NAMES = (
    "TensorProduct",
    "FullyConnectedTensorProduct",
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "TensorSquare",
)
#: Copies in the second input of 'uvw' paths up to which one kernel is faster than e3nn's matrix products: measured on a
#: CPU, from 3 to 10 times at 2 to 8 copies, about equal at 16, half as fast at 32.
DENSE = 16
#: What a class may define of its own and still compute what the class below it does.
HARMLESS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__init__", "__orig_bases__"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__parameters__"),
    *("__firstlineno__", "__static_attributes__", "__type_params__", "__abstractmethods__", "_abc_impl"),
    *("__repr__", "__str__", "extra_repr", "__e3nn_compile_mode__"),
}


@dataclass(frozen=True)
class Rule:
    """One kind of module.

    Attributes:
        target: 'convolution', 'product' or 'linear'.
        part: Name of the submodule that is replaced; empty for the module itself.
        inner: Name of the product inside of what is replaced; empty if it is that.
        matches: Whether a module is of this kind.
        refuse: Why this one cannot be replaced, a phrase that follows the name of the module; None if it can.
        build: Makes the replacement, with a backend.
    """

    target: str
    part: str
    inner: str
    matches: Callable[[nn.Module], bool]
    refuse: Callable[[nn.Module], str | None]
    build: Callable[[nn.Module, str | None], Replacement]


def is_product(module: Any) -> bool:
    """Whether it is an e3nn tensor product, or of a class derived from one."""
    return _is_theirs(module, "TensorProduct", PRODUCT_ATTRIBUTES)


def is_linear(module: Any) -> bool:
    """Whether it is an e3nn linear map, or of a class derived from one."""
    return _is_theirs(module, "Linear", LINEAR_ATTRIBUTES)


def is_layer(module: Any) -> bool:
    """Whether it is an e3nn product or linear map."""
    return is_product(module) or is_linear(module)


def _is_theirs(module: Any, name: str, attributes: tuple[str, ...]) -> bool:
    if isinstance(module, (EquivariantModule, torch.jit.ScriptModule)):
        return False
    return _base(module, name) is not None and all(hasattr(module, attribute) for attribute in attributes)


def _base(module: nn.Module, name: str) -> type | None:
    """The oldest ancestor of that name, torch's own aside."""
    named = [c for c in type(module).__mro__ if c.__name__ == name and not c.__module__.startswith("torch.")]
    return named[-1] if named else None


def is_scatter(module: Any) -> bool:
    """Whether it is NequIP's ``TensorProductScatter``: a product ``tp`` between a gather and a scatter."""
    if isinstance(module, Replacement) or not is_product(_child(module, "tp")):
        return False
    code = _code(type(module).forward)
    return (
        code is not None
        and code.co_varnames[: code.co_argcount] == ("self", "x", "edge_attr", "edge_weight", "edge_dst", "edge_src")
        and {"tp", "scatter"} <= set(code.co_names)
    )


def is_block(module: Any) -> bool:
    """Whether it is a MACE interaction block: its forward asks for ``conv_fusion`` before it calls ``conv_tp``."""
    if not is_product(_child(module, "conv_tp")):
        return False
    return any(_has_branch(code) for code in _forwards(type(module)))


def _child(module: nn.Module, name: str) -> nn.Module | None:
    """A submodule of a module in Python; TorchScript has none that can be taken out."""
    return None if isinstance(module, torch.jit.ScriptModule) else module._modules.get(name)


def _forwards(cls: type) -> Iterator[CodeType]:
    for ancestor in cls.__mro__:
        code = _code(vars(ancestor).get("forward"))
        if code is not None and not ancestor.__module__.startswith("torch."):
            yield code


def _code(function: Any) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) else None


def _has_branch(code: CodeType) -> bool:
    asks = "conv_fusion" in code.co_consts or "conv_fusion" in code.co_names
    return asks and "conv_tp" in code.co_names and "edge_index" in code.co_varnames


def refuse_layer(module: nn.Module) -> str | None:
    """Why an e3nn layer must stay, or None."""
    cls = type(module)
    product = is_product(module)
    base = _base(module, "TensorProduct" if product else "Linear")
    assert base is not None
    if (reason := _refuse_object(module)) is not None:
        return reason
    return _refuse_class(cls, base) or _refuse_contents(module, product) or _refuse_dense(module)


def _refuse_dense(module: Any) -> str | None:
    """Why a product gains nothing here, or None: the more copies it contracts, the more it is a matrix product."""
    copies = [ins.path_shape[1] for ins in module.instructions if getattr(ins, "connection_mode", "") == "uvw"]
    if max(copies, default=0) <= DENSE:
        return None
    return f"contracts {max(copies)} copies in its second input, which e3nn's matrix products do faster"


def _refuse_class(cls: type, base: type) -> str | None:
    """Why a class does more than e3nn's, or None; mixins count."""
    family = base.__module__.split(".")[0]
    for ancestor in cls.__mro__:
        theirs = ancestor.__module__.split(".")[0] == family and ancestor.__name__ in PRODUCT_NAMES
        if theirs or ancestor in base.__mro__:
            continue
        own = sorted(set(vars(ancestor)) - HARMLESS)
        if own:
            return f"is of a class {cls.__name__} that defines {', '.join(own)} beside what e3nn's does"
    return None


def _refuse_object(module: nn.Module) -> str | None:
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


def _refuse_contents(module: nn.Module, product: bool) -> str | None:
    expected = {"weight", "output_mask"} if product else {"weight", "bias", "output_mask"}
    own = {**vars(module)["_parameters"], **vars(module)["_buffers"]}
    children = {name for name in vars(module)["_modules"] if not name.startswith("_compiled_main")}
    strange = sorted((set(own) ^ expected) | children)
    if strange:
        return f"does not hold what e3nn's layer holds: {', '.join(strange)}"
    inner = [m for m in module.modules() if m is not module]
    if any(vars(m).get("_forward_hooks") or vars(m).get("_forward_pre_hooks") for m in inner if _plain(m)):
        return "has hooks on its generated code"
    if not product and has_channel_axes(module):
        return "has channel axes (f_in, f_out), whose lengths e3nn does not keep"
    return None


def _plain(module: nn.Module) -> bool:
    return not isinstance(module, torch.jit.ScriptModule)


def refuse_scatter(module: nn.Module) -> str | None:
    """Why NequIP's scatter cannot be one call, or None."""
    if (reason := _refuse_object(module)) is not None:
        return reason
    if set(vars(module)["_modules"]) != {"tp"} or vars(module)["_parameters"] or vars(module)["_buffers"]:
        return "holds more than its product"
    return _refuse_fusion(module, "tp")


def refuse_block(module: nn.Module) -> str | None:
    """Why the convolution of a MACE block cannot be one call, or None."""
    if hasattr(module, "conv_fusion"):
        return "has a fused convolution already"
    if "forward" in vars(module):
        return "has had its forward replaced on the object"
    if not all(_has_branch(code) for code in _forwards(type(module)) if "conv_tp" in code.co_names):
        return f"is of a class {type(module).__name__} whose forward knows one way only to call conv_tp"
    return _refuse_fusion(module, "conv_tp")


def _refuse_fusion(module: nn.Module, name: str) -> str | None:
    product: Any = getattr(module, name)
    reason = refuse_layer(product)
    if reason is None and _base(product, "TensorSquare") is not None:
        reason = "is a square, not a product of two features"
    hooks = (product._forward_hooks, product._forward_pre_hooks, product._backward_hooks, product._backward_pre_hooks)
    if reason is None and any(hooks):
        reason = "has hooks that would not see the edges"
    return None if reason is None else f"holds {name}, which {reason}"


def _built(new: Any, original: nn.Module) -> Replacement:
    replacement: Replacement = new
    replacement.stand_in_for(original)
    return replacement


def build_product(module: nn.Module, backend: str | None) -> Replacement:
    """Our product or square in place of e3nn's."""
    square = _base(module, "TensorSquare") is not None
    kind = AcceleratedTensorSquare if square else AcceleratedTensorProduct
    return _built(kind.from_e3nn(module, backend=backend), module)


def build_linear(module: nn.Module, backend: str | None) -> Replacement:
    """Our linear map in place of e3nn's."""
    return _built(AcceleratedLinear.from_e3nn(module, backend=backend), module)


def build_scatter(module: nn.Module, backend: str | None) -> Replacement:
    """Our convolution in place of NequIP's scatter."""
    return _built(AcceleratedScatter(module, backend), module)


def build_convolution(module: nn.Module, backend: str | None) -> Replacement:
    """Our convolution in place of the product of a MACE block."""
    return _built(AcceleratedConvolution.from_e3nn(module, backend=backend), module)


#: In the order in which they are tried.
RULES = (
    Rule("convolution", "", "tp", is_scatter, refuse_scatter, build_scatter),
    Rule("convolution", "conv_tp", "", is_block, refuse_block, build_convolution),
    Rule("product", "", "", is_product, refuse_layer, build_product),
    Rule("linear", "", "", is_linear, refuse_layer, build_linear),
)
TARGETS = tuple(dict.fromkeys(rule.target for rule in RULES))


def is_scripted_layer(module: nn.Module) -> bool:
    """Whether it is TorchScript that holds an e3nn layer, which cannot be taken out of it."""
    if not isinstance(module, torch.jit.ScriptModule):
        return False
    for inner in module.modules():
        name = getattr(inner, "original_name", "")
        if name in PRODUCT_NAMES or (name == "Linear" and "_compiled_main" in dict(inner.named_children())):
            return True
    return False
