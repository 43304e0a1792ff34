"""Which modules can be replaced, by what, and why some of them are not: one row per kind of module.

Kinds are told by structure (names in the class's line of ancestors, attributes, arguments of ``forward``), so that
neither NequIP nor MACE is imported, and e3nn's layers of any version and in any package are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import nn

from ..layers.linear.instructions import has_channel_axes
from .contracter import AcceleratedContracter, is_contracter, refuse_contracter
from .layer_rules import (
    KEPT,
    SIMPLE,
    is_batch_norm,
    is_gate,
    is_s2_activation,
    is_so3_activation,
    kept_kind,
    refuse_batch_norm,
    refuse_gate,
    refuse_grid,
)
from .modules import (
    AcceleratedConvolution,
    AcceleratedLinear,
    AcceleratedMessages,
    AcceleratedScatter,
    AcceleratedTensorProduct,
    AcceleratedTensorSquare,
    Replacement,
)
from .nonlinear import (
    AcceleratedBatchNorm,
    AcceleratedGate,
    AcceleratedS2Activation,
    AcceleratedSO3Activation,
)
from .polynomial_rules import (
    is_angular,
    is_contraction,
    is_harmonics,
    is_other_contraction,
    refuse_angular,
    refuse_contraction,
    refuse_harmonics,
    refuse_other_contraction,
)
from .polynomials import AcceleratedSphericalHarmonics, AcceleratedSymmetricContraction
from .structure import (
    PRODUCT_NAMES,
    adds_up,
    base_of,
    child_of,
    code_of,
    has_hooks,
    is_plain,
    is_theirs,
    refuse_class,
    refuse_object,
)

COMMON_ATTRIBUTES = ("irreps_out", "instructions", "weight_numel", "shared_weights", "internal_weights", "output_mask")
PRODUCT_ATTRIBUTES = ("irreps_in1", "irreps_in2", *COMMON_ATTRIBUTES, "_compiled_main_left_right")
LINEAR_ATTRIBUTES = ("irreps_in", *COMMON_ATTRIBUTES, "_compiled_main")
#: Copies in the second input of 'uvw' paths up to which one kernel is faster than e3nn's matrix products: measured on a
#: CPU, from 3 to 10 times at 2 to 8 copies, about equal at 16, half as fast at 32.
DENSE = 16


@dataclass(frozen=True)
class Rule:
    """One kind of module.

    Attributes:
        target: What users call this kind, see :func:`eqlayers.accelerate`.
        parts: Names of the submodules that are replaced if a module is of this kind, '' for itself; none if not.
        inner: Name of the product inside of the replaced module; empty if it is that.
        refuse: Why this one cannot be replaced, a phrase that follows the name of the module; None if it can.
        build: Makes the replacement, with a backend.
        anywhere: Whether the replacement does what the original does in other places, too.
    """

    target: str
    parts: Callable[[nn.Module], Sequence[str]]
    inner: str
    refuse: Callable[[nn.Module], str | None]
    build: Callable[[nn.Module, str | None], Replacement]
    anywhere: bool = False


def _if(test: Callable[[nn.Module], bool], part: str = "") -> Callable[[nn.Module], Sequence[str]]:
    return lambda module: (part,) if test(module) else ()


def is_product(module: Any) -> bool:
    """Whether it is an e3nn tensor product, or of a class derived from one."""
    return is_theirs(module, "TensorProduct", PRODUCT_ATTRIBUTES)


def is_linear(module: Any) -> bool:
    """Whether it is an e3nn linear map, or of a class derived from one."""
    return is_theirs(module, "Linear", LINEAR_ATTRIBUTES)


def is_layer(module: Any) -> bool:
    """Whether it is a layer of e3nn's without layers inside, or a contraction of MACE's or Allegro's."""
    tests = (
        *(is_product, is_linear, is_harmonics, is_contraction, is_contracter),
        *(is_batch_norm, is_s2_activation, is_so3_activation),
    )
    return any(test(module) for test in tests) or kept_kind(module) in SIMPLE


def is_whole(module: Any) -> bool:
    """Whether it is a layer of e3nn's with layers inside, which may be replaced in place of it."""
    return is_gate(module) or kept_kind(module) in set(KEPT) - SIMPLE


def is_scatter(module: Any) -> bool:
    """Whether it is NequIP's ``TensorProductScatter``: a product ``tp`` between a gather and a scatter."""
    if isinstance(module, Replacement) or not is_product(child_of(module, "tp")):
        return False
    code = code_of(type(module).forward)
    return (
        code is not None
        and code.co_varnames[: code.co_argcount] == ("self", "x", "edge_attr", "edge_weight", "edge_dst", "edge_src")
        and {"tp", "scatter"} <= set(code.co_names)
    )


def is_block(module: Any) -> bool:
    """Whether it is a MACE interaction block: its forward asks for ``conv_fusion`` before it calls ``conv_tp``."""
    if not is_product(child_of(module, "conv_tp")):
        return False
    calls = [code for code in _forwards(type(module)) if "conv_tp" in code.co_names]
    return bool(calls) and all(_has_branch(code) for code in calls)


def messages_in(module: nn.Module) -> Sequence[str]:
    """Products that a module's forward calls and whose results it adds up, if they can be convolutions."""
    if isinstance(module, (Replacement, torch.jit.ScriptModule)) or not adds_up(module):
        return ()
    code = code_of(type(module).forward)
    if code is None or refuse_object(module) is not None or hasattr(module, "conv_fusion") or is_block(module):
        return ()  # a block of MACE's adds up the results of one product, which has a rule of its own
    called = [name for name, child in module._modules.items() if name in code.co_names and is_product(child)]
    return [name for name in called if _refuse_fusion(module, name) is None]


def _forwards(cls: type) -> Iterator[CodeType]:
    for ancestor in cls.__mro__:
        code = code_of(vars(ancestor).get("forward"))
        if code is not None and not ancestor.__module__.startswith("torch."):
            yield code


def _has_branch(code: CodeType) -> bool:
    asks = "conv_fusion" in code.co_consts or "conv_fusion" in code.co_names
    return asks and "conv_tp" in code.co_names and "edge_index" in code.co_varnames


def refuse_layer(module: nn.Module) -> str | None:
    """Why an e3nn layer must stay, or None."""
    cls = type(module)
    product = is_product(module)
    base = base_of(module, "TensorProduct" if product else "Linear")
    assert base is not None
    if (reason := refuse_object(module)) is not None:
        return reason
    return refuse_class(cls, base) or _refuse_contents(module, product) or _refuse_dense(module)


def _refuse_dense(module: Any) -> str | None:
    """Why a product gains nothing here, or None: the more copies it contracts, the more it is a matrix product."""
    copies = [ins.path_shape[1] for ins in module.instructions if getattr(ins, "connection_mode", "") == "uvw"]
    if max(copies, default=0) <= DENSE:
        return None
    return f"contracts {max(copies)} copies in its second input, which e3nn's matrix products do faster"


def _refuse_contents(module: nn.Module, product: bool) -> str | None:
    expected = {"weight", "output_mask"} if product else {"weight", "bias", "output_mask"}
    own = {**vars(module)["_parameters"], **vars(module)["_buffers"]}
    children = {name for name in vars(module)["_modules"] if not name.startswith("_compiled_main")}
    strange = sorted((set(own) ^ expected) | children)
    if strange:
        return f"does not hold what e3nn's layer holds: {', '.join(strange)}"
    inner = [m for m in module.modules() if m is not module]
    if any(vars(m).get("_forward_hooks") or vars(m).get("_forward_pre_hooks") for m in inner if is_plain(m)):
        return "has hooks on its generated code"
    if not product and has_channel_axes(module):
        return "has channel axes (f_in, f_out), whose lengths e3nn does not keep"
    return None


def refuse_scatter(module: nn.Module) -> str | None:
    """Why NequIP's scatter cannot be one call, or None."""
    if (reason := refuse_object(module)) is not None:
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
    return _refuse_fusion(module, "conv_tp")


def _refuse_fusion(module: nn.Module, name: str) -> str | None:
    product: Any = getattr(module, name)
    reason = refuse_layer(product)
    if reason is None and base_of(product, "TensorSquare") is not None:
        reason = "is a square, not a product of two features"
    if reason is None and has_hooks(product):
        reason = "has hooks that would not see the edges"
    return None if reason is None else f"holds {name}, which {reason}"


def refuse_whole_gate(module: nn.Module) -> str | None:
    """Why a gate cannot be one call, or None."""
    reason = refuse_gate(module)
    if reason is not None:
        return reason
    product: Any = module.get_submodule("mul")
    reason = refuse_layer(product) if is_product(product) else "is no product of e3nn's"
    if reason is None and has_hooks(product):
        reason = "has hooks"
    return None if reason is None else f"holds mul, which {reason}"


def _built(new: Any, original: nn.Module) -> Replacement:
    replacement: Replacement = new
    replacement.stand_in_for(original)
    return replacement


def _by(kind: Callable[[nn.Module, str | None], Any]) -> Callable[[nn.Module, str | None], Replacement]:
    """Makes a replacement of the original alone."""
    return lambda module, backend: _built(kind(module, backend), module)


def build_product(module: nn.Module, backend: str | None) -> Replacement:
    """Our product or square in place of e3nn's."""
    square = base_of(module, "TensorSquare") is not None
    kind = AcceleratedTensorSquare if square else AcceleratedTensorProduct
    return _built(kind.from_e3nn(module, backend=backend), module)


def build_linear(module: nn.Module, backend: str | None) -> Replacement:
    """Our linear map in place of e3nn's."""
    return _built(AcceleratedLinear.from_e3nn(module, backend=backend), module)


def build_convolution(module: nn.Module, backend: str | None) -> Replacement:
    """Our convolution in place of the product of a MACE block."""
    return _built(AcceleratedConvolution.from_e3nn(module, backend=backend), module)


def build_messages(module: nn.Module, backend: str | None) -> Replacement:
    """Our product, which is a convolution too, in place of e3nn's."""
    return _built(AcceleratedMessages.from_e3nn(module, backend=backend), module)


#: In the order in which they are tried: those that replace a product with what is around it come first.
RULES = (
    Rule("convolution", _if(is_scatter), "tp", refuse_scatter, _by(AcceleratedScatter)),
    Rule("convolution", _if(is_block, "conv_tp"), "", refuse_block, build_convolution),
    Rule("convolution", messages_in, "", lambda module: None, build_messages, anywhere=True),
    Rule("gate", _if(is_gate), "mul", refuse_whole_gate, _by(AcceleratedGate)),
    Rule("product", _if(is_product), "", refuse_layer, build_product),
    Rule("linear", _if(is_linear), "", refuse_layer, build_linear),
    Rule("harmonics", _if(is_harmonics), "", refuse_harmonics, _by(AcceleratedSphericalHarmonics)),
    Rule("harmonics", _if(is_angular), "", refuse_angular, _by(AcceleratedSphericalHarmonics)),
    Rule("contraction", _if(is_contraction), "", refuse_contraction, _by(AcceleratedSymmetricContraction)),
    Rule("contraction", _if(is_contracter), "", refuse_contracter, _by(AcceleratedContracter)),
    Rule("contraction", _if(is_other_contraction), "", refuse_other_contraction, _by(AcceleratedSymmetricContraction)),
    Rule("norm", _if(is_batch_norm), "", refuse_batch_norm, _by(AcceleratedBatchNorm)),
    Rule("grid", _if(is_s2_activation), "", refuse_grid, _by(AcceleratedS2Activation)),
    Rule("grid", _if(is_so3_activation), "", refuse_grid, _by(AcceleratedSO3Activation)),
)
TARGETS = ("convolution", "product", "linear", "harmonics", "contraction", "gate", "norm", "grid")


SCRIPTED_NAMES = (*PRODUCT_NAMES, "SphericalHarmonics", "SymmetricContraction")


def is_scripted_layer(module: nn.Module) -> bool:
    """Whether it is TorchScript that holds an e3nn layer, which cannot be taken out of it."""
    if not isinstance(module, torch.jit.ScriptModule):
        return False
    for inner in module.modules():
        name = getattr(inner, "original_name", "")
        if name in SCRIPTED_NAMES or (name == "Linear" and "_compiled_main" in dict(inner.named_children())):
            return True
    return False
