"""Instructions of a tensor product: connection modes, checks and normalisation as in e3nn, and lists of all paths.

A mode is described by the letters of its channel axes: u are the channels of in1, v of in2, w of out; q are the pairs
u < v of one multiplicity. Weight shape, fan-in, multiplicity rule and the axes of the path follow from the letters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from e3nn import o3

from ..core.checks import check_choice, check_flag, check_items, check_number, check_type, got, is_integer
from ..core.errors import IndexRangeError, IrrepsError
from ..hints.names import named_arguments
from .algebra import as_irreps, read_filter, tensor_product_paths


class Mode(NamedTuple):
    """A connection mode of tensor products, by the letters of the channel axes of operands, output and weight."""

    name: str
    first: str
    second: str
    out: str
    weight: str
    fan: str  # the letters summed over: their extents multiply to the fan-in
    must_weight: bool  # the output has channels that only weights connect to the inputs

    @property
    def pairs(self) -> bool:
        """Whether channels of the operands are multiplied in pairs u < v."""
        return "q" in self.first

    def extents(self, mul1: int, mul2: int, mul_out: int) -> dict[str, int]:
        """Number of channels of each letter, for the multiplicities of both inputs and the output."""
        if self.pairs:
            return {"q": mul1 * (mul1 - 1) // 2, "w": mul_out}
        return {"u": mul1, "v": mul2, "w": mul_out}

    def weight_shape(self, mul1: int, mul2: int, mul_out: int) -> tuple[int, ...]:
        """Shape of the weight of a path, e3nn's ``path_shape``."""
        extents = self.extents(mul1, mul2, mul_out)
        return tuple(extents[c] for c in self.weight)

    def fan_in(self, mul1: int, mul2: int, mul_out: int) -> int:
        """Number of products summed into one output channel."""
        extents = self.extents(mul1, mul2, mul_out)
        return math.prod(extents[letter] for letter in self.fan)

    def check(self, where: str, mul1: int, mul2: int, mul_out: int, has_weight: bool) -> None:
        """Raise unless the multiplicities obey the mode."""
        if (self.pairs or self.first == self.second) and mul1 != mul2:
            raise IrrepsError(
                f"{where}: mode {self.name!r} needs equal multiplicities of in1 and in2, got {mul1} and {mul2}. "
                f"Use 'uvw' or 'uvu', or make them equal."
            )
        if self.must_weight and not has_weight:
            raise IrrepsError(
                f"{where}: mode {self.name!r} needs has_weight=True, its weight makes the output channels, got False. "
                f"Give it a weight, or use 'uvuv' or 'uvu<v'."
            )
        extents = self.extents(mul1, mul2, mul_out)
        # uuw without a weight sums u into one channel
        want = 1 if self.out == "w" and not has_weight else math.prod(extents[letter] for letter in self.out)
        if mul_out != want:
            rule = "*".join(self.out) if self.out != "w" else "1 without a weight"
            raise IrrepsError(
                f"{where}: mode {self.name!r} needs the multiplicity {want} of out ({rule}), got {mul_out}. "
                f"Change irreps_out or the mode."
            )


#      name      in1  in2  out   weight fan   must_weight
_MODES = (
    Mode("uvw",   "u", "v", "w",  "uvw", "uv", True),
    Mode("uvu",   "u", "v", "u",  "uv",  "v",  False),
    Mode("uvv",   "u", "v", "v",  "uv",  "u",  False),
    Mode("uuw",   "u", "u", "w",  "uw",  "u",  False),
    Mode("uuu",   "u", "u", "u",  "u",   "",   False),
    Mode("uvuv",  "u", "v", "uv", "uv",  "",   False),
    Mode("uvu<v", "q", "q", "q",  "q",   "",   False),
    Mode("u<vw",  "q", "q", "w",  "qw",  "q",  True),
)  # fmt: skip

MODES: dict[str, Mode] = {mode.name: mode for mode in _MODES}


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
    """Check that all items are of class :class:`Instruction`, whose coefficients are final; else ConfigError."""
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


@named_arguments
def paths(
    irreps_in1: Any,
    irreps_in2: Any,
    filter_ir_out: Any = None,
    *,
    irreps_out: Any = None,
    mode: str = "uvu",
    has_weight: bool = True,
) -> tuple[o3.Irreps, list[tuple[int, int, int, str, bool]]]:
    """All paths of a tensor product, as the arguments ``irreps_out`` and ``instructions`` of a layer.

    Without ``irreps_out`` every path has one output group, as in the convolutions of NequIP and MACE. The
    groups are sorted by irrep, so that a :class:`eqlayers.Linear` behind the product mixes groups that lie together.
    With ``irreps_out`` every path leads to every group of its irrep.

    Args:
        irreps_in1, irreps_in2: Irreps of the two inputs.
        filter_ir_out: Irreps of the outputs that are kept, as ``"0e + 1o"`` or a list; multiplicities do not count.
            None keeps all.
        irreps_out: Irreps of the output, or None to derive them.
        mode: Connection mode of all paths, see :class:`eqlayers.TensorProduct`. Modes with channels of the output
            alone ('uvw', 'uuw', 'u<vw') need ``irreps_out``.
        has_weight: Whether paths have weights.

    Returns:
        The irreps of the output, and ``(i_in1, i_in2, i_out, mode, has_weight)`` for each path. A product with them
        maps ``[..., irreps_in1.dim]`` and ``[..., irreps_in2.dim]`` to ``[..., irreps_out.dim]``.

    Raises:
        IrrepsError: Irreps that cannot be read, no path is left, or the multiplicities of a pair do not fit the mode.
        ConfigError: Another mode, or a mode that needs ``irreps_out``.

    Example:
        >>> paths("8x0e + 8x1o", "0e + 1o", "0e + 1o")
        (8x0e+8x0e+8x1o+8x1o,
         [(0, 0, 0, 'uvu', True), (0, 1, 2, 'uvu', True), (1, 0, 3, 'uvu', True), (1, 1, 1, 'uvu', True)])
        >>> from eqlayers import TensorProductConv
        >>> conv = TensorProductConv("8x0e + 8x1o", "0e + 1o", *paths("8x0e + 8x1o", "0e + 1o"), shared_weights=False)
        >>> conv.num_paths, conv.irreps_out
        (6, 8x0e+8x0e+8x1o+8x1o+8x1e+8x2e)
        >>> paths("8x0e", "1o", irreps_out="4x0e + 4x1o", mode="uvw")
        (4x0e+4x1o, [(0, 0, 1, 'uvw', True)])
    """
    first, second = as_irreps(irreps_in1, "irreps_in1"), as_irreps(irreps_in2, "irreps_in2")
    row, has_weight = MODES[check_choice("mode", mode, MODES)], check_flag("has_weight", has_weight)
    filtered = filter_ir_out
    if isinstance(filtered, (str, o3.Irreps)):
        filtered = as_irreps(filtered, "filter_ir_out")
        keep: list[o3.Irrep] | None = [ir for _, ir in filtered]
    else:
        filtered = keep = read_filter(filtered)
    pairs = tensor_product_paths(first, second, keep)
    if irreps_out is not None:
        out = as_irreps(irreps_out, "irreps_out")
        triples = sorted((i, j, k) for i, j, ir in pairs for k, (_, to) in enumerate(out) if to == ir)
    elif "w" in row.out:
        raise IrrepsError(
            f"irreps_out must be given for mode {mode!r}, whose outputs have channels of their own, got None. Pass "
            f"irreps_out=, or use 'uvu'."
        )
    else:
        muls = [math.prod(row.extents(first[i].mul, second[j].mul, 0)[c] for c in row.out) for i, j, _ in pairs]
        out, position, _ = o3.Irreps([(mul, ir) for mul, (*_, ir) in zip(muls, pairs, strict=True)]).sort()
        triples = [(i, j, position[k]) for k, (i, j, _) in enumerate(pairs)]
    if not triples:
        allowed = out if irreps_out is not None else "any irrep" if keep is None else filtered
        raise IrrepsError(
            f"some irrep of irreps_out must lie in irreps_in1 x irreps_in2, got {first} x {second} for {allowed}. "
            f"Add degrees, or check parities (spherical harmonics of degree l have parity (-1)^l)."
        )
    for i, j, k in triples:
        where = f"path {i} x {j} -> {k}"
        row.check(where, first[i].mul, second[j].mul, out[k].mul, has_weight)
    return out, [(i, j, k, mode, has_weight) for i, j, k in triples]
