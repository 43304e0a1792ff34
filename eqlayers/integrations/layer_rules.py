"""Which nonlinear layers of e3nn's can be replaced, and why others are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from ..irreps.algebra import as_irreps
from .structure import base_of, child_of, code_of, has_hooks, is_plain, is_theirs, refuse_class, refuse_object

GATE_PARTS = ("sc", "act_scalars", "act_gates", "mul")
ACTIVATIONS = ("act_scalars", "act_gates")
#: Newer versions of e3nn also have ``include_bias``, and ``irs``, which says what has means.
BATCH_NORM_OPTIONS = ("eps", "momentum", "affine", "reduce", "instance", "normalization")
BATCH_NORM_STATE = {"weight", "bias", "running_mean", "running_var"}
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
#: Parts of activations on grids, and what these are.
SPHERE_PARTS = {"to_s2": "ToS2Grid", "from_s2": "FromS2Grid", "act": "normalize2mom"}
ROTATION_PARTS = {"grid_in": "SO3Grid", "grid_out": "SO3Grid", "act": "normalize2mom"}
#: Layers that stay as they are: how they are told, and why.
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
#: Those without layers inside.
SIMPLE = {"Activation", "Dropout", "Extract"}


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
    return _refuse_parts(_parts(module))


def _parts(gate: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """The modules that a gate calls beside its product: path, class, module; without the parts of functions."""
    yield "sc", "_Sortcut", gate._modules["sc"]
    yield "sc.cut", "Extract", child_of(gate.get_submodule("sc"), "cut")
    for name in ACTIVATIONS:
        yield name, "Activation", gate._modules[name]
        acts = child_of(gate.get_submodule(name), "acts")
        for number, act in enumerate(acts._modules.values() if isinstance(acts, nn.ModuleList) else ()):
            if act is not None:
                yield f"{name}.acts.{number}", "normalize2mom", act


def _refuse_parts(parts: Iterable[tuple[str, str, Any]]) -> str | None:
    """Why one of the parts does not do what e3nn's does, or None."""
    for path, name, part in parts:
        if (reason := _refuse_part(part, name)) is not None:
            return f"holds {path}, which {reason}"
    return None


def _refuse_part(part: Any, name: str) -> str | None:
    if not isinstance(part, nn.Module) or not is_plain(part):
        return "is TorchScript or no module"
    base = base_of(part, name)
    if base is None:
        return f"is a {type(part).__name__}, not e3nn's {name}"
    if (reason := refuse_object(part) or refuse_class(type(part), base)) is not None:
        return reason
    strange = sorted({*part._parameters, *part._buffers, *part._modules} - _HELD[name])
    if strange:
        return f"does not hold what e3nn's holds: {', '.join(strange)}"
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
    if (reason := _refuse_simple(module, base_of(module, "BatchNorm"), BATCH_NORM_STATE)) is not None:
        return reason
    groups = [(mul, ir.dim, ir.is_scalar()) for mul, ir in as_irreps(module.irreps)]
    if [tuple(one) for one in getattr(module, "irs", groups)] != groups:
        return "takes means of other irreps than the even scalars"
    return None


def is_s2_activation(module: Any) -> bool:
    """Whether it is e3nn's ``S2Activation``, or of a class derived from it."""
    return _calls(module, "S2Activation", (*SPHERE_PARTS, "random_rot"))


def is_so3_activation(module: Any) -> bool:
    """Whether it is e3nn's ``SO3Activation``, or of a class derived from it."""
    return _calls(module, "SO3Activation", (*ROTATION_PARTS,), ("lmax_in", "lmax_out"))


def kept_kind(module: Any) -> str:
    """Which layer of e3nn's it is that stays as it is; empty if none."""
    return next((name for name, (held, _) in KEPT.items() if is_theirs(module, name, held)), "")


def _calls(module: Any, name: str, used: tuple[str, ...], further: tuple[str, ...] = ()) -> bool:
    """Whether it is of that class of e3nn's: it has these attributes, and its forward uses the first."""
    if not is_theirs(module, name, (*used, *further)):
        return False
    base: Any = base_of(module, name)
    code = code_of(base.forward)
    return code is not None and set(used) <= set(code.co_names)


def refuse_grid(module: Any) -> str | None:
    """Why an activation on a grid must stay, or None."""
    sphere = base_of(module, "S2Activation")
    parts = ROTATION_PARTS if sphere is None else SPHERE_PARTS
    reason = _refuse_simple(module, sphere or base_of(module, "SO3Activation"), set(parts))
    reason = reason or _refuse_parts((path, name, module._modules[path]) for path, name in parts.items())
    if reason is None and sphere is not None and len(module.to_s2.alphas) % 2 == 0:
        return (
            f"has {len(module.to_s2.alphas)} points about the axis: of an even number e3nn makes matrix products, too"
        )
    return reason


def _refuse_simple(module: Any, base: type | None, held: set[str]) -> str | None:
    """Why a layer does more than its class says, or None; a complete one holds these and nothing else."""
    assert base is not None
    if (reason := refuse_object(module) or refuse_class(type(module), base)) is not None:
        return reason
    strange = sorted({*module._parameters, *module._buffers, *module._modules} - held)
    return f"does not hold what e3nn's layer holds: {', '.join(strange)}" if strange else None
