"""Random inputs for spherical harmonics and contractions; see :mod:`.probes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.contraction.basis import from_dense
from ..layers.contraction.lower import polynomials_of
from ..layers.harmonics.lower import leading_factor, recursion_factor
from .contracter import AcceleratedContracter
from .layer_probes import batch_norm_probes, gate_probe, grid_probe
from .nonlinear import (
    AcceleratedBatchNorm,
    AcceleratedGate,
    AcceleratedS2Activation,
    AcceleratedSO3Activation,
)
from .polynomials import AcceleratedSphericalHarmonics, AcceleratedSymmetricContraction
from .probes import NODES, Operands, Probe, call, draw, make_probe

#: Relative errors of coupling tensors above so many roundings of their dtype belong to another one.
_NOTICED = 1000
#: Entries that may be off by as much as the largest one, beside each that counts.
_SPREAD = 8


def make_probes(original: nn.Module, replacement: nn.Module, rows: int) -> list[Probe]:
    """All probes of a pair; the first makes the same call as models do."""
    if isinstance(replacement, AcceleratedSphericalHarmonics):
        return [_harmonics(original, replacement, rows)]
    if isinstance(replacement, AcceleratedSymmetricContraction):
        return [_contraction(original, replacement, rows, mixed) for mixed in (False, True)]
    if isinstance(replacement, AcceleratedContracter):
        return [_contracter(original, replacement, rows)]
    if isinstance(replacement, AcceleratedGate):
        return [gate_probe(original, replacement, rows)]
    if isinstance(replacement, AcceleratedBatchNorm):
        return batch_norm_probes(original, replacement, rows)
    if isinstance(replacement, (AcceleratedS2Activation, AcceleratedSO3Activation)):
        return [grid_probe(original, replacement, rows)]
    return [make_probe(original, replacement, rows)]


def _harmonics(original: Any, replacement: AcceleratedSphericalHarmonics, rows: int) -> Probe:
    def run(module: nn.Module) -> Callable[[Operands], Tensor]:
        return lambda o: call(module, o["x"])

    options = (original._ls_list, original.normalize, original.normalization)
    size, count = (_harmonics_magnitude(*options, count) for count in (False, True))
    return Probe({"x": draw("x", rows, 3)}, run(original), run(replacement), size, count)


def _harmonics_magnitude(
    degrees: Sequence[int], normalize: bool, normalization: str, count: bool
) -> Callable[[Operands], Tensor]:
    """The recursion of :mod:`eqlayers.layers.harmonics.lower` with plus signs throughout, or with 1 for every factor.

    Given absolute values (or ones), it and its derivatives are the sums (or numbers) of the terms. The inverse length
    is a function of the same value whose derivatives of every order are those with plus signs.
    """

    def factor(value: float) -> float:
        return 1.0 if count else abs(value)

    def magnitude(o: Operands) -> Tensor:
        x, y, z = o["x"].unbind(-1)
        if normalize:
            square = x * x + y * y + z * z
            here = square.detach()
            inverse = (square - here).exp() if count else (2 * here - square).rsqrt()
            x, y, z = (part * inverse for part in (x, y, z))
        square = x * x + y * y + z * z
        powers = [(x + z) ** m for m in range(max(degrees) + 1)]
        blocks = []
        for l in degrees:
            parts = []
            for m in range(l + 1):
                last, now = torch.zeros_like(y), torch.ones_like(y)
                for degree in range(m + 1, l + 1):
                    last, now = now, y * now + factor(recursion_factor(degree, m)) * square * last
                parts.append(factor(leading_factor(l, m, normalization)) * now * powers[m])
            blocks += [*reversed(parts[1:]), *parts]
        return torch.stack(blocks, -1)

    return magnitude


class _Past(nn.Module):
    """Calls a module past its hooks, so that it can be called with other parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Tensor:
        return call(self.module, *args)


def _contraction(original: Any, replacement: AcceleratedSymmetricContraction, rows: int, mixed: bool) -> Probe:
    """Operands with one species for each row, or with mixed ones, which are an operand too."""
    count = replacement.num_elements
    operands = {"x": draw("x", rows, replacement.channels, replacement.dim)}
    if mixed:
        operands["y"] = draw("y", rows, count)
    weights = {name: f"weights {name}" for name, _ in original.named_parameters()}
    operands |= {operand: draw(operand, *original.get_parameter(name).shape) for name, operand in weights.items()}
    species = torch.nn.functional.one_hot(torch.arange(rows, device="cpu") % count, count)

    def run(module: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Callable[[Operands], Tensor]:
        tensors = {} if change is None else {name: change(t.double().cpu()) for name, t in _couplings(original).items()}

        def fn(o: Operands) -> Tensor:
            given = {f"module.{name}": t for name, t in (tensors | {n: o[w] for n, w in weights.items()}).items()}
            result: Tensor = torch.func.functional_call(_Past(module), given, (o["x"], o.get("y", species.to(o["x"]))))
            return result

        return fn

    return Probe(
        operands,
        run(original),
        run(replacement),
        run(original, torch.abs),  # the sums that MACE makes, of absolute values
        run(original, lambda t: (t != 0).to(t.dtype)),
        _coefficient_error(original, replacement),
    )


def _contracter(original: Any, replacement: AcceleratedContracter, rows: int) -> Probe:
    """Rows are edges of four atoms; the sizes of terms come from Allegro's own sums."""
    irreps = (replacement.irreps_in1, replacement.irreps_in2)
    lead = {"x": rows, "y": NODES}
    operands = {
        name: draw(name, lead[name], replacement.mul, part.dim) for name, part in zip("xy", irreps, strict=True)
    }
    operands["weights"] = draw("weights", *original.weights.shape)
    atoms = torch.arange(rows, device="cpu") % NODES

    def run(module: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Callable[[Operands], Tensor]:
        changed = {} if change is None else {"module.w3j": change(original.w3j.detach().double().cpu())}

        def fn(o: Operands) -> Tensor:
            given = {"module.weights": o["weights"], **changed}
            arguments = (o["x"], o["y"], atoms.to(o["x"].device))
            result: Tensor = torch.func.functional_call(_Past(module), given, arguments)
            return result

        return fn

    eps = torch.finfo(original.w3j.dtype).eps
    rounded = replacement.coefficient_error if replacement.coefficient_error > _NOTICED * eps else 0.0
    sizes = run(original, torch.abs), run(original, lambda t: (t != 0).to(t.dtype))
    return Probe(operands, run(original), run(replacement), *sizes, rounded)


def _couplings(original: Any) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in original.named_buffers() if "U_matrix" in name}


def _coefficient_error(original: Any, replacement: AcceleratedSymmetricContraction) -> float:
    """Relative error of the coupling tensors that they brought from a smaller dtype than float64; 0 if none."""
    worst = 0.0
    for part, one, (_, ir) in zip(original.contractions, replacement.parts, replacement.irreps_out, strict=True):
        for degree, mixed in enumerate(one.mixings, 1):
            shape = (2 * ir.l + 1, *[replacement.dim] * degree, mixed.shape[1])
            tensor = part.get_buffer(f"U_matrix_{degree}").detach().double().cpu().reshape(shape).numpy()
            given = from_dense(tensor, replacement.dim, degree)
            rest = abs(given - polynomials_of(one.text, (ir.l, ir.p), degree, mixed)).max(initial=0.0)
            worst = max(worst, float(rest / max(abs(given).max(initial=0.0), 1e-30)))
    eps = torch.finfo(next(iter(_couplings(original).values())).dtype).eps
    return _SPREAD * worst if worst > _NOTICED * eps else 0.0
