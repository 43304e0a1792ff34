"""Compare a replacement with its original: value, first and second derivatives, by their norms.

Copies of both in float64 must agree to :data:`EXACT`; there the replacement runs in torch. Constants that the original
keeps in a shorter dtype, such as the Wigner 3j symbols of a float32 layer, are exact in the copies
(:meth:`.Replacement.exact_constants`), so that their rounding hides no wrong number; if there are constants in float32
whose exact values are unknown, as in e3nn's own copies of large products, the tolerance of float32 holds. Then both
run as they are, with the model's dtype, device and kernels, and must agree to :func:`tolerance_of` that dtype. Random
numbers come from a generator of our own, the modules are called past their hooks, and only one layer has copies at a
time: the model does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO

import torch
from torch import Tensor, nn

from ..core.dtypes import default_dtype
from ..core.errors import BackendError, EqlayersError, MismatchError
from ..testing.derivatives import gradients
from .replacement import Operands, Probe, Replacement, Where, draw, dtype_and_device, in_float64

#: Rows of the operands: few, but more than one, and not as many as anything else.
ROWS = 5
#: Largest difference in float64, relative to the norm.
EXACT = 1e-10
#: Least norm that the difference of a derivative is relative to, in norms of the value: derivatives may vanish.
SMALL = 1e-2
#: Rounding of float32 matrix products where the user allows a coarser one (TF32, bfloat16).
MATMUL_EPS = {"highest": 0.0, "high": 2.0**-10, "medium": 2.0**-7}


@dataclass(frozen=True)
class Comparison:
    """How far a replacement is from its original; see :class:`.report.Row`."""

    error: float  # relative to its tolerance; infinite where a result is not finite
    saved_bytes: float = 0.0
    note: str = ""
    failure: str = ""  # what the original itself raised, so that nothing was compared


def tolerance_of(dtype: torch.dtype) -> float:
    """Largest difference in a dtype, relative to the norm: 5e-5 in float32, 0.2 in bfloat16."""
    coarse = MATMUL_EPS[torch.get_float32_matmul_precision()] if dtype == torch.float32 else 0.0
    return float(8 * max(torch.finfo(dtype).eps, coarse) ** 0.75)


def compare(original: nn.Module, replacement: Replacement, path: str = "", default: Where | None = None) -> Comparison:
    """Run both on random inputs, and compare.

    A module without tensors is compared on the default device in float32 and in float64, as it computes in the dtype of
    its operands.
    """
    dtype, device = dtype_and_device(original, default)
    has_numbers = any(t.is_floating_point() for t in [*original.parameters(), *original.buffers()])
    name = f"{path or 'the model'} ({type(original).__name__})"
    each = []
    # whatever the caller has set
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        probes, (constants, others) = replacement.probes(original, ROWS), _rounded(original, replacement)
        for kind in (dtype,) if has_numbers else (torch.float32, torch.float64):
            exact = kind == torch.float64 and not constants and not others
            tolerance = EXACT if exact else max(tolerance_of(kind), tolerance_of(torch.float32))
            each += [_compare(original, replacement, probe, name, (kind, device), tolerance) for probe in probes]
        if failed := next((one for one in each if one.failure), None):
            return failed
        try:
            theirs, mine = in_float64((original, replacement), constants)
        except Exception as error:
            each.append(Comparison(0.0, failure=_in_words(error)))
        else:
            call = partial(_compare, theirs, mine, name=name, where=(torch.float64, torch.device("cpu")))
            tolerance = tolerance_of(torch.float32) if others else EXACT
            each += [replace(call(probe, tolerance=tolerance), note="") for probe in probes]
        worst = max(each, key=lambda one: 0.0 if one.failure else one.error)
        saved = [_saved_bytes(module, original, replacement, (dtype, device)) for module in (original, replacement)]
    notes = dict.fromkeys(one.note for one in each if one.note)
    failures = [one.failure for one in each if one.failure]
    notes |= dict.fromkeys(f"compared in {dtype} alone, as a copy in float64 raises {text}" for text in failures)
    return replace(worst, saved_bytes=saved[0] - saved[1], note="; ".join(notes))


def _compare(
    original: nn.Module, replacement: nn.Module, probe: Probe, name: str, where: Where, tolerance: float
) -> Comparison:
    """Compare both modules on one set of operands; MismatchError if they differ by more than the tolerance."""
    dtype, device = where
    try:
        theirs = results(partial(probe.run, original), probe, where)
    except Exception as error:  # whatever the original raises is its answer
        return Comparison(float("inf"), failure=_in_words(error))
    try:
        mine = results(partial(probe.run, replacement), probe, where)
    except BackendError:
        raise
    except Exception as error:
        raise _mismatch(name, dtype, tolerance, f"{type(error).__name__}: {error}") from error
    if probe.misfit is not None:
        operands = {name: value.to(device, dtype) for name, value in probe.misfit.items()}
        if reason := _other_width(partial(probe.run, original), partial(probe.run, replacement), operands):
            raise _mismatch(name, dtype, tolerance, reason)
    smallest = max(SMALL * float(theirs["the value"].norm()), torch.finfo(dtype).tiny)
    errors = {
        result: _distance(value, mine[result], max(float(value.norm()), smallest)) for result, value in theirs.items()
    }
    result, worst = max(errors.items(), key=lambda entry: entry[1])
    if not worst <= tolerance:
        raise _mismatch(name, dtype, tolerance, f"a difference of {worst:.2g} in {probe.prefix}{result}")
    notes = []
    if dtype == torch.float64 and worst > EXACT:
        notes.append(
            f"some of e3nn's coefficients keep the rounding of float32: in {dtype} results differ by {worst:.0e} of "
            f"their norm"
        )
    if not any(result.startswith("second") for result in theirs):
        notes.append("the original has no second derivatives, so none were compared")
    return Comparison(worst / tolerance, note="; ".join(notes))


def _rounded(original: nn.Module, replacement: Replacement) -> tuple[Operands, bool]:
    """Exact values of rounded buffers that the original alone has, by name; whether others are rounded to float32."""
    exact, shared = replacement.exact_constants(original), {buffer.data_ptr() for buffer in replacement.buffers()}
    constants, others = {}, False
    for name, buffer in original.named_buffers():
        stored = buffer.detach().double().cpu()
        if name in exact:
            if _distance(exact[name], stored) > 1e-13 * float(stored.norm()):
                constants[name] = exact[name]
        elif buffer.data_ptr() not in shared and not torch.equal(stored, stored.bfloat16().double()):
            others = others or torch.equal(stored, stored.float().double())
    return constants, others


def _distance(value: Tensor, other: Tensor, unit: float = 1.0) -> float:
    """Norm of the difference in units; infinite if shapes differ, or if a number of either tensor is not finite."""
    if value.shape != other.shape:
        return float("inf")
    return float(((value - other).norm() / unit).nan_to_num(nan=torch.inf, posinf=torch.inf))


def _in_words(error: Exception) -> str:
    """Class and first 200 characters of the message of an error, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def results(fn: Callable[[Operands], Tensor], probe: Probe, where: Where) -> dict[str, Tensor]:
    """Value, first and second derivatives of a function of operands, contracted with random cotangents, by name.

    They are computed in a dtype on a device, and returned in float64 on the CPU. Second derivatives that torch cannot
    compute are left out.
    """
    dtype, device = where

    def leaf(value: Tensor) -> Tensor:
        return value.to(device, dtype, copy=True).requires_grad_()

    live = {name: leaf(value) for name, value in probe.operands.items()}
    names = list(live)
    with default_dtype(dtype) if dtype == torch.float64 else nullcontext():  # e3nn rounds random rotations to it
        value = fn(live)
    derivatives = {"the value": value}
    cotangent = leaf(draw("z", *value.shape))
    first = gradients((value * cotangent).sum(), [live[name] for name in names])
    derivatives.update({f"first derivative, {name}": g for name, g in zip(names, first, strict=True)})
    drawn = [leaf(draw(f"g{name}", *g.shape)).detach() for name, g in zip(names, first, strict=True)]
    total = torch.stack([(g * c).sum() for g, c in zip(first, drawn, strict=True)]).sum()
    try:
        second = gradients(total, [*(live[name] for name in names), cotangent], create_graph=False)
    except RuntimeError:  # torch.compile's code cannot be differentiated twice
        second = []
    if second:
        derivatives.update({f"second derivative, {n}": g for n, g in zip([*names, "cotangent"], second, strict=True)})
    return {name: t.detach().double().cpu() for name, t in derivatives.items()}


def _other_width(theirs: Callable[[Operands], Tensor], mine: Callable[[Operands], Tensor], operands: Operands) -> str:
    """How results differ in bits on operands wider than the irreps; empty if the original refuses them or none do."""
    try:
        with redirect_stderr(StringIO()):  # torch.fx prints what generated code raises
            expected = theirs(operands)
    except Exception:
        return ""
    width = operands["x"].shape[-1]
    try:
        result = mine(operands)
    except EqlayersError as error:
        return f"another answer to features [..., {width}], which the original takes: {error}"
    same = result.shape == expected.shape and result.dtype == expected.dtype and torch.equal(result, expected)
    return "" if same else f"another result for features [..., {width}]"


def _saved_bytes(module: nn.Module, original: nn.Module, replacement: Replacement, where: Where) -> float:
    """Bytes per row that autograd saves for backward in a call of ``module``, from calls with n and with 2 n rows."""
    kept, (dtype, device) = [], where
    for rows in (ROWS, 2 * ROWS):
        probe = replacement.probes(original, rows)[0]
        live = {name: value.to(device, dtype, copy=True).requires_grad_() for name, value in probe.operands.items()}
        operands = {t.untyped_storage().data_ptr() for t in live.values()}
        held: list[Tensor] = []  # keeps them alive, so that no two have the same address

        def pack(tensor: Tensor, held: list[Tensor] = held) -> Tensor:
            held.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            probe.run(module, live)
        storages = [t.untyped_storage() for t in held if t.layout == torch.strided]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        kept.append(sum(size for address, size in sizes.items() if address not in operands))
    return (kept[1] - kept[0]) / ROWS


def _mismatch(name: str, dtype: torch.dtype, tolerance: float, got: str) -> MismatchError:
    return MismatchError(
        f"the replacement of {name} must agree with it in {dtype} to {tolerance:.2g} of the norm, got {got}. The model "
        f"was not changed. Leave this kind out with targets=, and report it."
    )
