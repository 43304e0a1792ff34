"""Programs of attention with several heads: each head has an equal share of the copies of every irrep."""

from __future__ import annotations

from e3nn import o3

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ...core.errors import IrrepsError
from ...irreps.layout import slots_of


def check_heads(name: str, irreps: o3.Irreps, heads: int) -> o3.Irreps:
    """The irreps, if every multiplicity is divisible by the number of heads; else IrrepsError.

    Example:
        >>> check_heads("irreps", o3.Irreps("8x0e + 4x1o"), 4)
        8x0e+4x1o
    """
    if any(mul % heads for mul, _ in irreps):
        raise IrrepsError(
            f"{name} must have multiplicities that {heads} heads divide, got {irreps}. Change the number of heads, or "
            f"the multiplicities."
        )
    return irreps


def heads_program(irreps: o3.Irreps, heads: int, layout: str) -> Program:
    """Features times a number for each head: x the features, y ``[heads]``, no weights."""
    paths = []
    for slot in slots_of(irreps):
        if slot.mul and slot.dim:
            each = slot.mul // heads
            axes = _axes(Axis(heads, x=each, y=1, z=each), Axis(each, x=1, z=1))
            terms = tuple((m, 0, m, 1.0) for m in range(slot.dim))
            paths.append(Path(slot, Slot(0, heads, 1), slot, None, axes, terms))
    return Program(tuple(paths), (irreps.dim, heads, 0, irreps.dim), layout)


def dots_program(irreps: o3.Irreps, heads: int, layout: str) -> Program:
    """Scalar products of two features, copy by copy times a weight, summed over the copies of a head: z ``[heads]``.

    The factor is :math:`d^{-1/2}` for d components of a head, without a further :math:`(2l + 1)^{-1/2}`: products of
    normal numbers have unit variance for weights of 1.
    """
    paths, weight = [], 0
    factor = (irreps.dim / heads) ** -0.5 if irreps.dim else 0.0
    for slot in slots_of(irreps):
        if slot.mul and slot.dim:
            each = slot.mul // heads
            axes = _axes(Axis(heads, each, each, each, 1), Axis(each, 1, 1, 1, 0))
            terms = tuple((m, m, 0, factor) for m in range(slot.dim))
            paths.append(Path(slot, slot, Slot(0, heads, 1), weight, axes, terms))
        weight += slot.mul
    return Program(tuple(paths), (irreps.dim, irreps.dim, weight, heads), layout)


def _axes(*axes: Axis) -> tuple[Axis, ...]:
    return tuple(axis for axis in axes if axis.extent > 1)
