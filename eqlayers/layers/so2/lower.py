r"""Maps that commute with rotations about one axis, y: features sorted by order m, and the programs that sort them.

A rotation about y turns the components (m, -m) of every irrep by the angle m phi. Maps that commute with it mix equal
|m| alone. Those that also commute with the reflections at planes through y are, for an irrep of parity p and degree l
with the sign :math:`\eta = p (-1)^l`, multiples of the identity on (m, -m) between equal signs, and of
:math:`J = ((0, -1), (1, 0))` between different ones. Packed rows hold J times the pairs of the irreps of negative sign,
so that one matrix serves all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from e3nn import o3

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ...irreps.algebra import wigner_3j
from ...irreps.layout import slots_of
from ..rotation.blocks import blocks_dim, blocks_start

PARITIES = ("o3", "so3")
#: Component m = 0 of the harmonics of degree l at the axis y.
HARMONICS_AT_Y = {
    "component": lambda l: math.sqrt(2 * l + 1),
    "norm": lambda l: 1.0,
    "integral": lambda l: math.sqrt((2 * l + 1) / (4 * math.pi)),
}


class Piece(NamedTuple):
    """The channels of one irreps group within a block."""

    group: int
    start: int  # column within the block
    mul: int


class Block(NamedTuple):
    """The columns of a packed row that one matrix reads or writes, for m >= 0 and, behind all of these, for m < 0."""

    m: int
    pieces: tuple[Piece, ...]

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(piece.mul for piece in self.pieces)


class SO2Map(NamedTuple):
    """The blocks between which weights lie, one pair for each matrix (of two matrices for m > 0 without parity)."""

    irreps_in: o3.Irreps
    irreps_out: o3.Irreps
    blocks_in: tuple[Block, ...]
    blocks_out: tuple[Block, ...]
    parity: str

    def matrices(self, number: int) -> int:
        """Number of matrices between the pair of blocks ``number``: 1, or 2 without parity for m > 0."""
        return 2 if self.parity == "so3" and self.blocks_in[number].m else 1

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """``[matrices, in, out]`` of the weights of each pair of blocks."""
        pairs = zip(self.blocks_in, self.blocks_out, strict=True)
        return [(self.matrices(n), a.width, b.width) for n, (a, b) in enumerate(pairs)]

    def turned(self, irreps: o3.Irreps, group: int) -> bool:
        """Whether packed rows hold J times the pairs of this group."""
        return self.parity == "o3" and _sign(irreps[group].ir) < 0

    def gains(self) -> list[float]:
        """The factor of each output group that gives its components unit variance, in the mean of all 2 l + 1."""
        reached = [0] * len(self.irreps_out)
        for block in self.blocks_out:
            for piece in block.pieces:
                reached[piece.group] += 2 if block.m else 1
        return [math.sqrt(ir.dim / n) if n else 1.0 for (_, ir), n in zip(self.irreps_out, reached, strict=True)]


def _sign(ir: o3.Irrep) -> int:
    return ir.p * (-1) ** (ir.l % 2)


def so2_map(irreps_in: o3.Irreps, irreps_out: o3.Irreps, mmax: int | None, parity: str) -> SO2Map:
    """All pairs of irreps, for 0 <= m <= mmax; None is no limit.

    Example:
        >>> so2_map(o3.Irreps("4x0e + 4x1o"), o3.Irreps("3x0e + 2x1o"), None, "o3").shapes
        [(1, 8, 5), (1, 4, 2)]
        >>> so2_map(o3.Irreps("4x1o"), o3.Irreps("2x1e"), None, "so3").shapes
        [(1, 4, 2), (2, 4, 2)]
    """
    both = [[(group, mul, ir) for group, (mul, ir) in enumerate(part) if mul] for part in (irreps_in, irreps_out)]
    blocks: tuple[list[Block], list[Block]] = ([], [])
    most = min(max((ir.l for *_, ir in side), default=-1) for side in both)
    for m in range(min(most, most if mmax is None else mmax) + 1):
        for signs in ((1,), (-1,)) if m == 0 and parity == "o3" else ((1, -1),):
            pair = []
            for side in both:
                chosen = [(group, mul) for group, mul, ir in side if ir.l >= m and _sign(ir) in signs]
                starts = np.cumsum([0, *(mul for _, mul in chosen)]).tolist()
                pieces = (Piece(group, start, mul) for (group, mul), start in zip(chosen, starts, strict=False))
                pair.append(Block(m, tuple(pieces)))
            if all(block.pieces for block in pair):
                blocks[0].append(pair[0])
                blocks[1].append(pair[1])
    return SO2Map(irreps_in, irreps_out, tuple(blocks[0]), tuple(blocks[1]), parity)


def packed_widths(blocks: Sequence[Block]) -> tuple[int, int]:
    """Number of columns of a packed row for m >= 0, and for m < 0."""
    return sum(block.width for block in blocks), sum(block.width for block in blocks if block.m)


class _Component(NamedTuple):
    """The channels of one component of one group, and their columns in a packed row."""

    group: int
    mul: int
    column: int
    component: int
    factor: float


def _components(kind: SO2Map, irreps: o3.Irreps, blocks: Sequence[Block]) -> list[_Component]:
    """All of a packed row in its order: m >= 0, then m < 0. J takes (x_m, x_-m) to (-x_-m, x_m)."""
    out, column = [], 0
    for half in (1, -1):
        for block in blocks:
            if half < 0 and not block.m:
                continue
            for piece in block.pieces:
                turned = kind.turned(irreps, piece.group) and block.m > 0
                component = irreps[piece.group].ir.l + block.m * half * (-1 if turned else 1)
                factor = -1.0 if turned and half > 0 else 1.0
                out.append(_Component(piece.group, piece.mul, column + piece.start, component, factor))
            column += block.width
    return out


def _other(irreps: o3.Irreps, one: _Component, rotated: bool) -> tuple[Slot, list[tuple[int, int]]]:
    """The row of D^l that yields a component, or a 1 without rotation; and pairs of components of group and y."""
    dim = irreps[one.group].ir.dim
    if not rotated:
        return Slot(0, 1, 1), [(one.component, 0)]
    start = blocks_start((dim - 1) // 2) + one.component * dim
    return Slot(start, 1, dim), [(n, n) for n in range(dim)]


def pack_program(kind: SO2Map, layout: str, lmax: int | None, scaled: bool) -> Program:
    """The program from flat features to a packed row, with the factors that give results of unit variance.

    With ``lmax`` features are rotated by y, blocks D^l to that degree; None is for features in the frame, y is a 1. If
    ``scaled``, w has a factor for each column.
    """
    slots, paths = slots_of(kind.irreps_in), []
    norms = [1 / math.sqrt(kind.matrices(n) * block.width) for n, block in enumerate(kind.blocks_in)]
    fans = [n for n, b in enumerate(kind.blocks_in) for _ in b.pieces]
    fans += [n for n, b in enumerate(kind.blocks_in) if b.m for _ in b.pieces]
    components = _components(kind, kind.irreps_in, kind.blocks_in)
    for one, number in zip(components, fans, strict=True):
        y, pairs = _other(kind.irreps_in, one, lmax is not None)
        axes = (Axis(one.mul, x=1, w=int(scaled), z=1),) if one.mul > 1 else ()
        terms = tuple((i, j, 0, one.factor * norms[number]) for i, j in pairs)
        weight = one.column if scaled else None
        paths.append(Path(slots[one.group], y, Slot(one.column, one.mul, 1), weight, axes, terms))
    width = sum(packed_widths(kind.blocks_in))
    width_y = 1 if lmax is None else blocks_dim(lmax)
    return Program(tuple(paths), (kind.irreps_in.dim, width_y, width if scaled else 0, width), layout)


def unpack_program(kind: SO2Map, layout: str, lmax: int | None) -> Program:
    """The program from a packed row to flat features; with a degree, rotated back, and of unit variance in the mean."""
    slots, paths = slots_of(kind.irreps_out), []
    gains = kind.gains() if lmax is not None else [1.0] * len(slots)
    for one in _components(kind, kind.irreps_out, kind.blocks_out):
        y, pairs = _other(kind.irreps_out, one, lmax is not None)
        axes = (Axis(one.mul, x=1, z=1),) if one.mul > 1 else ()
        terms = tuple((0, j, k, one.factor * gains[one.group]) for k, j in pairs)
        paths.append(Path(Slot(one.column, one.mul, 1), y, slots[one.group], None, axes, terms))
    width_y = 1 if lmax is None else blocks_dim(lmax)
    return Program(tuple(paths), (sum(packed_widths(kind.blocks_out)), width_y, 0, kind.irreps_out.dim), layout)


def harmonics_block(l_in: int, l_edge: int, l_out: int, normalization: str) -> np.ndarray:
    """``[2 l_in + 1, 2 l_out + 1]``: Wigner 3j symbols times the harmonics of degree l_edge at y.

    Example:
        >>> np.round(harmonics_block(1, 1, 1, "norm") * 6**0.5, 12).tolist()
        [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]
    """
    return wigner_3j(l_in, l_edge, l_out)[:, l_edge, :] * HARMONICS_AT_Y[normalization](l_edge)
