"""Layers of e3nn, NequIP, MACE and Allegro that can be replaced: how they are recognised, replaced and compared.

:data:`RULES` lists their rules, in the order in which they are tried.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..replacement import Rule
from ..structure import PRODUCT_NAMES, is_theirs
from . import batch_norm, contracter, contraction, convolution, gate, harmonics, product

#: Rules that replace a product with what is around it come first.
_KINDS: tuple[Any, ...] = (convolution, gate, product, harmonics, contraction, contracter, batch_norm)
RULES: tuple[Rule, ...] = tuple(rule for kind in _KINDS for rule in kind.RULES)
TARGETS = ("convolution", "product", "linear", "harmonics", "contraction", "gate", "norm", "grid")
#: Names of e3nn layers that are never replaced -> their attributes, and the reason.
KEPT = {
    "Norm": (("tp", "squared"), "is fastest as it is, with our product inside"),
    "NormActivation": (
        ("norm", "scalar_nonlinearity", "scalar_multiplier"),
        "is fastest as it is, with our products inside",
    ),
    "Activation": (("acts", "paths"), "calls functions of torch alone, as ours does"),
    "Dropout": (("irreps", "p"), "draws the same copies as ours, in the same time"),
    "Extract": (
        ("instructions", "irreps_outs"),
        "makes copies, where ours gives views that changes in place go through",
    ),
}
#: Layers of :data:`KEPT` without submodules that are layers.
SIMPLE = {"Activation", "Dropout", "Extract"}
_LAYERS = (
    *(product.is_product, product.is_linear, harmonics.is_harmonics),
    *(contraction.is_contraction, contracter.is_contracter),
    *(batch_norm.is_batch_norm, gate.is_s2_activation, gate.is_so3_activation),
)
_SCRIPTED_NAMES = (*PRODUCT_NAMES, "SphericalHarmonics", "SymmetricContraction")


def is_layer(module: Any) -> bool:
    """Whether a module is an e3nn layer without submodules that are layers, or a contraction of MACE or Allegro."""
    return any(test(module) for test in _LAYERS) or kept_kind(module) in SIMPLE


def is_whole(module: Any) -> bool:
    """Whether a module is an e3nn layer with submodules that are layers, such as the product in a gate."""
    return gate.is_gate(module) or kept_kind(module) in set(KEPT) - SIMPLE


def is_scripted_layer(module: nn.Module) -> bool:
    """Whether a module is TorchScript that contains an e3nn layer."""
    if not isinstance(module, torch.jit.ScriptModule):
        return False
    for inner in module.modules():
        name = getattr(inner, "original_name", "")
        if name in _SCRIPTED_NAMES or (name == "Linear" and "_compiled_main" in dict(inner.named_children())):
            return True
    return False


def kept_kind(module: Any) -> str:
    """Name of the e3nn layer if the module is one that is never replaced (:data:`KEPT`), else empty."""
    return next((name for name, (held, _) in KEPT.items() if is_theirs(module, name, held)), "")
