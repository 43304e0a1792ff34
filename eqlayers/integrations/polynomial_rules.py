"""Which spherical harmonics and which symmetric contractions can be replaced, and why others are not."""

from __future__ import annotations

from typing import Any

from torch import nn

from .structure import base_of, child_of, code_of, is_plain, is_theirs, refuse_class, refuse_object

HARMONICS_ATTRIBUTES = ("normalize", "normalization", "irreps_in", "irreps_out", "_ls_list", "_lmax", "_is_range_lmax")
CONTRACTION_ATTRIBUTES = ("irreps_in", "irreps_out", "contractions")
#: What one irrep of MACE's contraction holds beside its weights: code, without numbers of its own.
_CODE = {"contractions_weighting", "contractions_features", "graph_opt_main"}


def is_harmonics(module: Any) -> bool:
    """Whether it is e3nn's ``SphericalHarmonics``, or of a class derived from it."""
    return is_theirs(module, "SphericalHarmonics", HARMONICS_ATTRIBUTES)


def is_contraction(module: Any) -> bool:
    """Whether it is MACE's ``SymmetricContraction``, or of a class derived from it."""
    if not is_theirs(module, "SymmetricContraction", CONTRACTION_ATTRIBUTES):
        return False
    base: Any = base_of(module, "SymmetricContraction")
    code = code_of(base.forward)
    return code is not None and {"contractions", "cat"} <= set(code.co_names) and len(module.contractions) > 0


def is_angular(module: Any) -> bool:
    """Whether it is e3nn's ``SphericalHarmonicsAlphaBeta``."""
    return is_theirs(module, "SphericalHarmonicsAlphaBeta", ("_ls_list", "normalization"))


def is_other_contraction(module: Any) -> bool:
    """Whether it is the symmetric contraction of another package than MACE, as cuequivariance's."""
    return is_theirs(module, "SymmetricContraction", ("irreps_in", "irreps_out")) and not is_contraction(module)


def refuse_harmonics(module: nn.Module) -> str | None:
    """Why spherical harmonics must stay, or None."""
    base = base_of(module, "SphericalHarmonics")
    assert base is not None
    if (reason := refuse_object(module) or refuse_class(type(module), base)) is not None:
        return reason
    strange = sorted({*module._parameters, *module._buffers, *module._modules})
    return f"does not hold what e3nn's layer holds: {', '.join(strange)}" if strange else None


def refuse_angular(module: nn.Module) -> str:
    """Why harmonics of angles must stay."""
    return "takes angles, for which there is no layer here"


def refuse_other_contraction(module: nn.Module) -> str:
    """Why the contraction of another package must stay."""
    return f"belongs to {type(module).__module__.partition('.')[0]}, not to MACE, and has weights of its own kind"


def refuse_contraction(module: nn.Module) -> str | None:
    """Why a symmetric contraction must stay, or None."""
    base = base_of(module, "SymmetricContraction")
    assert base is not None
    if (reason := refuse_object(module) or refuse_class(type(module), base, "MACE's")) is not None:
        return reason
    strange = {*module._parameters, *module._buffers, *(set(module._modules) - {"contractions"})}
    parts: Any = module.contractions
    correlations = {getattr(part, "correlation", None) for part in parts}
    if strange or len(correlations) != 1 or None in correlations:
        what = ", ".join(sorted(strange)) or f"correlations {sorted(map(str, correlations))}"
        return f"does not hold what MACE's contraction holds: {what}"
    for k, part in enumerate(parts):
        if (reason := refuse_object(part) or _refuse_part(part)) is not None:
            return f"holds contractions.{k}, which {reason}"
    inner = [m for m in module.modules() if m is not module and is_plain(m)]
    if any(vars(m).get("_forward_hooks") or vars(m).get("_forward_pre_hooks") for m in inner):
        return "has hooks on its parts"
    return None


def _refuse_part(part: Any) -> str | None:
    """Why one irrep of the result is not what MACE computes, or None."""
    base = base_of(part, "Contraction")
    if base is None:
        return f"is a {type(part).__name__}, not MACE's Contraction"
    if (reason := refuse_class(type(part), base, "MACE's")) is not None:
        return reason
    degrees = range(1, part.correlation + 1)
    tensors = {f"U_matrix_{degree}" for degree in degrees}
    flags = {f"weights_{'max' if degree == part.correlation else degree - 1}_zeroed" for degree in degrees}
    weights = child_of(part, "weights")
    wrong = (set(part._buffers) - flags) ^ tensors | set(part._parameters) ^ {"weights_max"}
    wrong |= (set(part._modules) - _CODE) ^ {"weights"}
    if wrong or not isinstance(weights, nn.ParameterList) or len(weights) != part.correlation - 1:
        return f"does not hold what MACE's holds: {', '.join(sorted(wrong)) or 'weights of each degree'}"
    if len({p.shape[::2] for p in part.parameters()}) != 1:
        return "has weights of several numbers of species or channels"
    return None
