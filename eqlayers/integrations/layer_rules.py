"""Which gates and batch normalizations of e3nn's can be replaced, and why others are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ..algebra import as_irreps
from .structure import base_of, child_of, code_of, has_hooks, is_plain, is_theirs, refuse_class, refuse_object

GATE_PARTS = ("sc", "act_scalars", "act_gates", "mul")
ACTIVATIONS = ("act_scalars", "act_gates")
#: Newer versions of e3nn also have ``include_bias``, and ``irs``, which says what has means.
BATCH_NORM_OPTIONS = ("eps", "momentum", "affine", "reduce", "instance", "normalization")
BATCH_NORM_STATE = {"weight", "bias", "running_mean", "running_var"}


def is_gate(module: Any) -> bool:
    """Whether it is e3nn's ``Gate``, or of a class derived from it."""
    if not is_theirs(module, "Gate", (*GATE_PARTS, "irreps_in", "irreps_out")):
        return False
    base: Any = base_of(module, "Gate")
    code = code_of(base.forward)
    return code is not None and {*GATE_PARTS, "cat"} <= set(code.co_names)


def refuse_gate(module: Any) -> str | None:
    """Why a gate must stay, or None; its product is not looked at."""
    base = base_of(module, "Gate")
    assert base is not None
    if (reason := refuse_object(module) or refuse_class(type(module), base)) is not None:
        return reason
    strange = sorted({*module._parameters, *module._buffers} | set(module._modules) ^ set(GATE_PARTS))
    if strange:
        return f"does not hold what e3nn's layer holds: {', '.join(strange)}"
    for path, part in _parts(module):
        if (reason := _refuse_part(part, path)) is not None:
            return f"holds {path}, which {reason}"
    return None


def _parts(gate: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a gate calls beside its product; not the code that e3nn generates, nor what a function is made of."""
    yield "sc", gate._modules["sc"]
    yield "sc.cut", child_of(gate.get_submodule("sc"), "cut")
    for name in ACTIVATIONS:
        yield name, gate._modules[name]
        acts = child_of(gate.get_submodule(name), "acts")
        for number, act in enumerate(acts._modules.values() if isinstance(acts, nn.ModuleList) else ()):
            if act is not None:
                yield f"{name}.acts.{number}", act


def _refuse_part(part: Any, path: str) -> str | None:
    """Why a part does not do what e3nn's does, or None."""
    name = "normalize2mom" if ".acts." in path else {"sc": "_Sortcut", "sc.cut": "Extract"}.get(path, "Activation")
    if not isinstance(part, nn.Module) or not is_plain(part):
        return "is TorchScript or no module"
    base = base_of(part, name)
    if base is None:
        return f"is a {type(part).__name__}, not e3nn's {name}"
    if (reason := refuse_object(part) or refuse_class(type(part), base)) is not None:
        return reason
    held = {"normalize2mom": {"f"}, "Activation": {"acts"}, "_Sortcut": {"cut"}}.get(name)
    strange = {*part._parameters, *part._buffers} | (set() if held is None else set(part._modules) - held)
    if strange:
        return f"does not hold what e3nn's holds: {', '.join(sorted(strange))}"
    inner = [part, *(m for m in part.modules() if is_plain(m))]
    return "has hooks" if any(has_hooks(m) for m in inner) else None


def is_batch_norm(module: Any) -> bool:
    """Whether it is e3nn's ``BatchNorm``, or of a class derived from it."""
    if not is_theirs(module, "BatchNorm", ("irreps", *BATCH_NORM_OPTIONS, "running_mean", "running_var")):
        return False
    base: Any = base_of(module, "BatchNorm")
    code = code_of(base.forward)
    names = set() if code is None else set(code.co_names)
    return {"running_var", "eps", "cat"} <= names and bool({"irs" if hasattr(module, "irs") else "is_scalar"} & names)


def refuse_batch_norm(module: Any) -> str | None:
    """Why a batch normalization must stay, or None."""
    base = base_of(module, "BatchNorm")
    assert base is not None
    if (reason := refuse_object(module) or refuse_class(type(module), base)) is not None:
        return reason
    strange = sorted({*module._parameters, *module._buffers, *module._modules} - BATCH_NORM_STATE)
    if strange:
        return f"does not hold what e3nn's layer holds: {', '.join(strange)}"
    groups = [(mul, ir.dim, ir.is_scalar()) for mul, ir in as_irreps(module.irreps)]
    if [tuple(one) for one in getattr(module, "irs", groups)] != groups:
        return "takes means of other irreps than the even scalars"
    return None
