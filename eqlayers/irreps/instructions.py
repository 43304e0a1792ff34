"""Instructions of a tensor product: reading, checking and normalising them, exactly as e3nn does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from e3nn import o3

from ..core.checks import check_choice, check_flag, check_items, check_number, check_type, got, is_integer
from ..core.errors import IndexRangeError, IrrepsError
from .modes import MODES


class Instruction(NamedTuple):
    """A path of a tensor product, with e3nn's fields; ``path_weight`` is the final coefficient."""

    i_in1: int
    i_in2: int
    i_out: int
    connection_mode: str
    has_weight: bool
    path_weight: float
    path_shape: tuple[int, ...]


#: The factor that makes the path's output have the named normalisation, from the dimensions of the three irreps.
IRREP_NORMALIZATION = {
    "component": lambda d1, d2, d3: d3,
    "norm": lambda d1, d2, d3: d1 * d2,
    "none": lambda d1, d2, d3: 1,
}
PATH_NORMALIZATION = ("element", "path", "none")
#: Allowed values of each argument; the first is the default.
NORMALIZATIONS = {"irrep_normalization": tuple(IRREP_NORMALIZATION), "path_normalization": PATH_NORMALIZATION}


def read_instructions(
    irreps_in1: o3.Irreps, irreps_in2: o3.Irreps, irreps_out: o3.Irreps, instructions: Iterable[Sequence[Any]]
) -> list[Instruction]:
    """Check instructions ``(i_in1, i_in2, i_out, mode, has_weight[, path_weight])``; coefficients are not final yet.

    IrrepsError for modes, parities, degrees or multiplicities that do not fit; IndexRangeError for a missing group.
    """
    out = []
    what = "a list of tuples (i_in1, i_in2, i_out, mode, has_weight[, path_weight])"
    fix = "Use FullyConnectedTensorProduct for all paths."
    for number, entries in enumerate(check_items("instructions", instructions, what, fix, IrrepsError)):
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise IrrepsError(
                f"instruction {number} must be a tuple (i_in1, i_in2, i_out, mode, has_weight[, path_weight]), "
                f"got {got(entries)}. Pass a list of such tuples."
            )
        where = f"instruction {number} {tuple(entries)}"
        if len(entries) not in (5, 6):
            raise IrrepsError(
                f"{where}: must be (i_in1, i_in2, i_out, mode, has_weight) or the same with path_weight, "
                f"got {len(entries)} entries. Add or drop entries."
            )
        i1, i2, io, mode_name, has_weight = entries[:5]
        has_weight = check_flag(f"{where}: has_weight", has_weight, IrrepsError)
        path_weight = 1.0
        if len(entries) == 6:
            fix = "It stands under a root: use its square."
            path_weight = check_number(f"{where}: path_weight", entries[5], at_least=0, fix=fix, error=IrrepsError)
        groups = []
        for name, index, irreps in (("i_in1", i1, irreps_in1), ("i_in2", i2, irreps_in2), ("i_out", io, irreps_out)):
            if not is_integer(index) or not 0 <= index < len(irreps):
                raise IndexRangeError(
                    f"{where}: {name} must lie in [0, {len(irreps)}), the groups of {irreps}, got {index}. "
                    f"Count irreps groups, not single irreps."
                )
            groups.append(irreps[int(index)])
        if not isinstance(mode_name, str) or mode_name not in MODES:
            raise IrrepsError(f"{where}: mode must be one of {', '.join(MODES)}, got {mode_name!r}. Pick one of these.")
        (m1, ir1), (m2, ir2), (mo, iro) = groups
        if ir1.p * ir2.p != iro.p:
            want = "e" if ir1.p * ir2.p == 1 else "o"
            raise IrrepsError(
                f"{where}: the parity of {ir1} x {ir2} is {want!r}, got the output {iro}. "
                f"Use {iro.l}{want} in irreps_out."
            )
        if not abs(ir1.l - ir2.l) <= iro.l <= ir1.l + ir2.l:
            raise IrrepsError(
                f"{where}: {ir1} x {ir2} holds degrees {abs(ir1.l - ir2.l)} to {ir1.l + ir2.l}, got the output {iro}. "
                f"Drop the instruction or change irreps_out."
            )
        mode = MODES[mode_name]
        mode.check(where, m1, m2, mo, has_weight)
        shape = mode.weight_shape(m1, m2, mo)
        out.append(Instruction(int(i1), int(i2), int(io), mode_name, has_weight, path_weight, shape))
    return out


def read_final(instructions: Any) -> list[Instruction]:
    """Check that instructions have final coefficients; ConfigError if not."""
    fix = "Take the instructions of a layer."
    items = check_items("instructions", instructions, "a list of instructions", fix)
    return [check_type(f"instructions[{i}]", ins, Instruction, "an Instruction", fix) for i, ins in enumerate(items)]


def variances(name: str, values: Any, irreps: o3.Irreps) -> list[float]:
    """One variance per irreps group; None means 1."""
    if values is None:
        return [1.0] * len(irreps)
    fix = f"Give one for each group of {irreps}."
    items = check_items(name, values, "a list of numbers", fix, count=len(irreps))
    fix = "Use 1.0 where in doubt."
    return [check_number(f"{name}[{i}]", v, at_least=0, fix=fix) for i, v in enumerate(items)]


def check_normalization(name: str, value: str | None) -> str:
    """The value of 'irrep_normalization' or 'path_normalization', checked, or ConfigError; the default for None."""
    return NORMALIZATIONS[name][0] if value is None else check_choice(name, value, NORMALIZATIONS[name])


def normalise(
    instructions: Sequence[Instruction],
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps],
    variance: tuple[list[float], list[float], list[float]],
    irrep_normalization: str | None = None,
    path_normalization: str | None = None,
) -> list[Instruction]:
    r"""Replace path weights by the final coefficients :math:`c = \sqrt{\alpha\,\sigma^2_{out}\,w_{path} / x}`.

    alpha: 2 l_out + 1 (component), (2 l1 + 1)(2 l2 + 1) (norm), 1 (none). x: the sum of variances of all paths into the
    output group (element), this path's variance times the number of paths (path), 1 (none). Else ConfigError.
    """
    irrep_normalization = check_normalization("irrep_normalization", irrep_normalization)
    path_normalization = check_normalization("path_normalization", path_normalization)
    in1_var, in2_var, out_var = variance

    def variance_of(ins: Instruction) -> float:
        muls = [r[i].mul for r, i in zip(irreps, ins[:3], strict=True)]
        return in1_var[ins.i_in1] * in2_var[ins.i_in2] * MODES[ins.connection_mode].fan_in(*muls)

    total: dict[int, float] = {}
    count: dict[int, int] = {}
    for ins in instructions:
        total[ins.i_out] = total.get(ins.i_out, 0.0) + variance_of(ins)
        count[ins.i_out] = count.get(ins.i_out, 0) + 1
    out = []
    for ins in instructions:
        dims = [r[i].ir.dim for r, i in zip(irreps, ins[:3], strict=True)]
        x = {"element": total[ins.i_out], "path": variance_of(ins) * count[ins.i_out], "none": 1.0}[path_normalization]
        alpha = IRREP_NORMALIZATION[irrep_normalization](*dims) * out_var[ins.i_out] * ins.path_weight
        out.append(ins._replace(path_weight=math.sqrt(alpha / x if x > 0 else alpha)))
    return out
