"""Compare a replacement with its original: value, first and second derivatives, element by element.

Both compute in the model's dtype, so each may be off by the rounding bound of :mod:`eqlayers.testing.magnitude`; their
difference is held against twice that. Random numbers come from a generator of our own, and the modules are called
past their hooks: neither the model nor any global state changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO

import torch
from torch import Tensor, nn

from ..core.errors import BackendError, EqlayersError, MismatchError
from ..testing import excess
from .probes import Operands, Probe, dtype_and_device
from .replacement import Replacement

#: Rows of the operands: few, but more than one, and not as many as anything else.
ROWS = 5
#: Rounding of float32 matrix products where the user allows a coarser one (TF32, bfloat16).
MATMUL_EPS = {"highest": None, "high": 2.0**-10, "medium": 2.0**-7}


@dataclass(frozen=True)
class Comparison:
    """How far a replacement is from its original; see :class:`.report.Row`."""

    error: float  # infinite where a result is not finite
    where: str  # the result with that error
    saved_bytes: float = 0.0
    note: str = ""
    failure: str = ""  # what the original itself raised, so that nothing was compared


def compare(
    original: nn.Module,
    replacement: Replacement,
    path: str = "",
    default: tuple[torch.dtype, torch.device] | None = None,
) -> Comparison:
    """Run both on random inputs, and compare.

    A module without tensors is compared on the default device in float32 and in float64, as it computes in the dtype of
    its operands.
    """
    dtype, device = dtype_and_device(original, default)
    has_numbers = any(t.is_floating_point() for t in [*original.parameters(), *original.buffers()])
    # whatever the caller has set
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        each = []
        for probe in replacement.probes(original, ROWS):
            for kind in (dtype,) if has_numbers else (torch.float32, torch.float64):
                each.append(_compare(original, replacement, probe, path, kind, device))
                if each[-1].failure:
                    return each[-1]
        worst = max(each, key=lambda one: one.error)
        theirs, mine = (_kept_bytes(module, original, replacement, dtype, device) for module in (original, replacement))
    notes = dict.fromkeys(one.note for one in each if one.note)
    return replace(worst, saved_bytes=theirs - mine, note="; ".join(notes))


def _compare(
    original: nn.Module, replacement: nn.Module, probe: Probe, path: str, dtype: torch.dtype, device: torch.device
) -> Comparison:
    """Compare on one set of operands."""
    try:
        theirs = results(partial(probe.run, original), probe, dtype, device)
    except Exception as error:  # whatever the original raises is its answer
        text = " ".join(str(error).split())[:200]
        return Comparison(float("inf"), "", failure=f"{type(error).__name__}: {text}")
    try:
        mine = results(partial(probe.run, replacement), probe, dtype, device)
    except BackendError:
        raise
    except Exception as error:
        raise _mismatch(path, original, dtype, f"{type(error).__name__}: {error}") from error
    if probe.misfit is not None:
        operands = {name: value.to(device, dtype) for name, value in probe.misfit.items()}
        if reason := _other_width(partial(probe.run, original), partial(probe.run, replacement), operands):
            raise _mismatch(path, original, dtype, reason)
    exact = (probe, torch.float64, torch.device("cpu"))
    sizes = results(lambda o: probe.size(o, False), *exact, torch.abs)
    terms = results(lambda o: probe.size(o, True), *exact, torch.ones_like)
    eps = MATMUL_EPS[torch.get_float32_matmul_precision()] if dtype == torch.float32 else None
    errors = {
        name: excess(mine[name], value, sizes[name], terms[name], dtype, eps, probe.coefficient_error) / 2
        for name, value in theirs.items()
    }
    if probe.right is not None:
        errors["right()"] = excess(*probe.right(dtype, device), dtype, eps, probe.coefficient_error) / 2
    where, worst = max(errors.items(), key=lambda entry: entry[1])
    if not worst <= 1:
        raise _mismatch(path, original, dtype, f"an error {worst:.3g} times the bound in {where}")
    notes = []
    if probe.coefficient_error:
        notes.append(
            f"some of e3nn's coefficients keep the rounding of float32: in {dtype} results differ by about "
            f"{probe.coefficient_error / 2:.0e} of their terms"
        )
    if not any(name.startswith("second") for name in theirs):
        notes.append("the original has no second derivatives, so none were compared")
    return Comparison(worst, where, note="; ".join(notes))


def results(
    fn: Callable[[Operands], Tensor],
    probe: Probe,
    dtype: torch.dtype,
    device: torch.device,
    change: Callable[[Tensor], Tensor] = lambda t: t,
) -> dict[str, Tensor]:
    """Value, gradients of a random cotangent's product, and gradients of those: float64 on the CPU, by name.

    Second derivatives that fail are left out.
    """

    def leaf(value: Tensor) -> Tensor:
        return change(value).to(device, dtype, copy=True).requires_grad_()

    live = {name: leaf(value) for name, value in probe.operands.items()}
    names = list(live)
    value = fn(live)
    derivatives = {"the value": value}
    cotangent = leaf(probe.draw("z", value.shape))
    first = _gradients((value * cotangent).sum(), [live[name] for name in names], again=True)
    derivatives.update({f"first derivative, {name}": g for name, g in zip(names, first, strict=True)})
    drawn = [leaf(probe.draw(f"g{name}", g.shape)).detach() for name, g in zip(names, first, strict=True)]
    total = torch.stack([(g * c).sum() for g, c in zip(first, drawn, strict=True)]).sum()
    try:
        second = _gradients(total, [*(live[name] for name in names), cotangent], again=False)
    except RuntimeError:  # torch.compile's code cannot be differentiated twice
        second = []
    if second:
        derivatives.update({f"second derivative, {n}": g for n, g in zip([*names, "cotangent"], second, strict=True)})
    return {name: t.detach().double().cpu() for name, t in derivatives.items()}


def _other_width(theirs: Callable[[Operands], Tensor], mine: Callable[[Operands], Tensor], operands: Operands) -> str:
    """How the results differ on operands of another width than the irreps say; empty if not, or the original has none.

    What takes them does not read them: the results are equal to the last bit.
    """
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


def _gradients(total: Tensor, inputs: list[Tensor], again: bool) -> list[Tensor]:
    """Gradients; with `again` they have a graph, to be differentiated again."""
    if not total.requires_grad:
        return [torch.zeros_like(t) for t in inputs]
    return list(torch.autograd.grad(total, inputs, create_graph=again, materialize_grads=True))


def _kept_bytes(
    module: nn.Module, original: nn.Module, replacement: Replacement, dtype: torch.dtype, device: torch.device
) -> float:
    """Bytes per row that autograd keeps for backward, by the difference between twice as many rows and as many."""
    kept = []
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


def _mismatch(path: str, original: nn.Module, dtype: torch.dtype, got: str) -> MismatchError:
    return MismatchError(
        f"the replacement of {path or 'the model'} ({type(original).__name__}) must agree with it within the rounding "
        f"bound of {dtype}, got {got}. The model was not changed. Leave this kind out with targets=, and report it."
    )
