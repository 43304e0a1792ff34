r"""Maps that commute with rotations about the axis y: features sorted by order m, programs that sort them, weights.

A rotation about y by phi rotates the components (m, -m) of every irrep by m phi. Maps that commute with it mix equal
|m| alone. Those that also commute with the reflections at planes through y are, for an irrep of parity p and degree l
with the sign :math:`\eta = p (-1)^l`, multiples of the identity on (m, -m) between equal signs, and of
:math:`J = ((0, -1), (1, 0))` between different ones. Packed rows hold J times the pairs of the irreps of negative sign,
so that one matrix serves all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ...core.errors import ConfigError, ShapeError
from ...irreps.algebra import wigner_3j
from ...irreps.layout import slots_of
from ..rotation.lower import blocks_dim, blocks_start

if TYPE_CHECKING:
    from ..linear.module import Linear
    from ..tensor_product.module import ProductLayer

PARITIES = ("o3", "so3")
#: Component m = 0 of the harmonics of degree l at the axis y.
HARMONICS_AT_Y = {
    "component": lambda l: math.sqrt(2 * l + 1),
    "norm": lambda l: 1.0,
    "integral": lambda l: math.sqrt((2 * l + 1) / (4 * math.pi)),
}


class GroupColumns(NamedTuple):
    """Columns of the channels of one irreps group within a block."""

    group: int
    start: int  # column within the block
    mul: int


class Block(NamedTuple):
    """Columns of a packed row that a matrix reads or writes. Columns for m < 0 follow blocks with m >= 0."""

    m: int
    groups: tuple[GroupColumns, ...]

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(part.mul for part in self.groups)


class SO2Map(NamedTuple):
    """Pairs of an input and an output block, with a matrix for each pair (two for m > 0 without parity)."""

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

    def uses_j(self, irreps: o3.Irreps, group: int) -> bool:
        """Whether packed rows hold J times the components (m, -m) of this group."""
        return self.parity == "o3" and _sign(irreps[group].ir) < 0

    def gains(self) -> list[float]:
        """The factor of each output group that gives unit variance in the mean of its 2 l + 1 components."""
        reached = [0] * len(self.irreps_out)
        for block in self.blocks_out:
            for part in block.groups:
                reached[part.group] += 2 if block.m else 1
        return [math.sqrt(ir.dim / n) if n else 1.0 for (_, ir), n in zip(self.irreps_out, reached, strict=True)]


def _sign(ir: o3.Irrep) -> int:
    return ir.p * (-1) ** (ir.l % 2)


def so2_map(irreps_in: o3.Irreps, irreps_out: o3.Irreps, mmax: int | None, parity: str) -> SO2Map:
    """The map between all irreps that share an order m, for 0 <= m <= mmax (None: no limit)."""
    both = [[(group, mul, ir) for group, (mul, ir) in enumerate(part) if mul] for part in (irreps_in, irreps_out)]
    blocks: tuple[list[Block], list[Block]] = ([], [])
    most = min(max((ir.l for *_, ir in side), default=-1) for side in both)
    for m in range(min(most, most if mmax is None else mmax) + 1):
        for signs in ((1,), (-1,)) if m == 0 and parity == "o3" else ((1, -1),):
            pair = []
            for side in both:
                chosen = [(group, mul) for group, mul, ir in side if ir.l >= m and _sign(ir) in signs]
                starts = np.cumsum([0, *(mul for _, mul in chosen)]).tolist()
                groups = (GroupColumns(group, start, mul) for (group, mul), start in zip(chosen, starts, strict=False))
                pair.append(Block(m, tuple(groups)))
            if all(block.groups for block in pair):
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


def _components(so2: SO2Map, irreps: o3.Irreps, blocks: Sequence[Block]) -> list[_Component]:
    """The components in a packed row in order: m >= 0, then m < 0. J takes (x_m, x_-m) to (-x_-m, x_m)."""
    out, column = [], 0
    for half in (1, -1):
        for block in blocks:
            if half < 0 and not block.m:
                continue
            for part in block.groups:
                uses_j = so2.uses_j(irreps, part.group) and block.m > 0
                component = irreps[part.group].ir.l + block.m * half * (-1 if uses_j else 1)
                factor = -1.0 if uses_j and half > 0 else 1.0
                out.append(_Component(part.group, part.mul, column + part.start, component, factor))
            column += block.width
    return out


def _rotation_of(irreps: o3.Irreps, c: _Component, rotated: bool) -> tuple[Slot, list[tuple[int, int]]]:
    """The slot of y (a row of D^l, or 1 without rotation), and pairs (component of the group, component of y)."""
    dim = irreps[c.group].ir.dim
    if not rotated:
        return Slot(0, 1, 1), [(c.component, 0)]
    start = blocks_start((dim - 1) // 2) + c.component * dim
    return Slot(start, 1, dim), [(n, n) for n in range(dim)]


def pack_program(so2: SO2Map, layout: str, lmax: int | None, scaled: bool) -> Program:
    """The program from flat features to a packed row, with the factors that give results of unit variance.

    With ``lmax`` y holds blocks D^l to that degree, which rotate features; None: features are in the frame, y is 1. If
    ``scaled``, w has a factor for each column.
    """
    slots, paths = slots_of(so2.irreps_in), []
    norms = [1 / math.sqrt(so2.matrices(n) * block.width) for n, block in enumerate(so2.blocks_in)]
    fans = [n for n, b in enumerate(so2.blocks_in) for _ in b.groups]
    fans += [n for n, b in enumerate(so2.blocks_in) if b.m for _ in b.groups]
    components = _components(so2, so2.irreps_in, so2.blocks_in)
    for c, number in zip(components, fans, strict=True):
        y, pairs = _rotation_of(so2.irreps_in, c, lmax is not None)
        axes = (Axis(c.mul, x=1, w=int(scaled), z=1),) if c.mul > 1 else ()
        terms = tuple((i, j, 0, c.factor * norms[number]) for i, j in pairs)
        weight = c.column if scaled else None
        paths.append(Path(slots[c.group], y, Slot(c.column, c.mul, 1), weight, axes, terms))
    width = sum(packed_widths(so2.blocks_in))
    width_y = 1 if lmax is None else blocks_dim(lmax)
    return Program(tuple(paths), (so2.irreps_in.dim, width_y, width if scaled else 0, width), layout)


def unpack_program(so2: SO2Map, layout: str, lmax: int | None) -> Program:
    """The program from a packed row to flat features; with ``lmax`` they are rotated back and have unit variance."""
    slots, paths = slots_of(so2.irreps_out), []
    gains = so2.gains() if lmax is not None else [1.0] * len(slots)
    for c in _components(so2, so2.irreps_out, so2.blocks_out):
        y, pairs = _rotation_of(so2.irreps_out, c, lmax is not None)
        axes = (Axis(c.mul, x=1, z=1),) if c.mul > 1 else ()
        terms = tuple((0, j, k, c.factor * gains[c.group]) for k, j in pairs)
        paths.append(Path(Slot(c.column, c.mul, 1), y, slots[c.group], None, axes, terms))
    width_y = 1 if lmax is None else blocks_dim(lmax)
    return Program(tuple(paths), (sum(packed_widths(so2.blocks_out)), width_y, 0, so2.irreps_out.dim), layout)


def harmonics_block(l_in: int, l_edge: int, l_out: int, normalization: str) -> np.ndarray:
    """``[2 l_in + 1, 2 l_out + 1]``: Wigner 3j symbols times the harmonics of degree l_edge at y."""
    return wigner_3j(l_in, l_edge, l_out)[:, l_edge, :] * HARMONICS_AT_Y[normalization](l_edge)


def check_convertible(tp: ProductLayer, linear: Linear | None) -> str:
    """The parity of the map equal to ``tp``: 'o3' if harmonics have parity (-1)^l, else 'so3'; or ConfigError."""
    for number, ins in enumerate(tp.plan.instructions):
        if tp.irreps_in2[ins.i_in2].mul != 1:
            raise ConfigError(
                f"irreps_in2 must be irreps of spherical harmonics, each once, got {tp.irreps_in2}. Convert only "
                f"products with harmonics."
            )
        if ins.connection_mode not in ("uvw", "uvu"):
            raise ConfigError(
                f"paths must have the mode 'uvw' or 'uvu', got {ins.connection_mode!r} in path {number}. Convert only "
                f"such products."
            )
    for layer in (tp, *(() if linear is None else (linear,))):
        if layer.weight_numel and not (layer.shared_weights and layer.internal_weights):
            raise ConfigError(
                "weights must be the layer's own, one set for all samples, got a layer that is given them. Radial "
                "functions of paths are none of a map in the frame: they mix its orders m."
            )
    if tp._sorts:
        raise ConfigError("product must keep the groups of its result, got simplify=True. Build it without.")
    if linear is not None and (linear.bias_numel or linear.f_in is not None or linear.f_out is not None):
        raise ConfigError("linear must have no biases and no f_in or f_out, got one with. Add biases after the sum.")
    if linear is not None and linear.irreps_in != tp.irreps_out:
        raise ShapeError(
            f"linear must have the irreps_in of the product's result, {tp.irreps_out}, got {linear.irreps_in}. Pass "
            f"the layer that follows the product."
        )
    used = {tp.irreps_in2[ins.i_in2].ir for ins in tp.plan.instructions}
    return "o3" if all(ir.p == (-1) ** (ir.l % 2) for ir in used) else "so3"


def so2_weights(so2: SO2Map, tp: ProductLayer, linear: Linear | None, normalization: str) -> Tensor:
    """``[weight_numel]`` float64, with which the map in the frame equals the product followed by ``linear``."""
    matrices = [torch.zeros(shape, dtype=torch.float64, device="cpu") for shape in so2.shapes]
    gains = so2.gains()
    for number, ins in enumerate(tp.plan.instructions):
        if 0 in ins.path_shape or ins.path_weight == 0:
            continue
        weights = torch.ones(tp.irreps_in1[ins.i_in1].mul, 1, dtype=torch.float64, device="cpu")
        if ins.has_weight:
            weights = tp.weight_view_for_instruction(number).detach()
        weights = weights.to("cpu", torch.float64)
        matrix = weights[:, 0, :] if ins.connection_mode == "uvw" else torch.diag(weights[:, 0])
        degrees = (tp.irreps_in1[ins.i_in1].ir.l, tp.irreps_in2[ins.i_in2].ir.l, tp.irreps_out[ins.i_out].ir.l)
        block = harmonics_block(*degrees, normalization) * ins.path_weight
        for target, mixed in _targets(matrix, ins.i_out, linear):
            for index, (a, b) in enumerate(zip(so2.blocks_in, so2.blocks_out, strict=True)):
                rows, columns = _columns(a, ins.i_in1), _columns(b, target)
                if rows is not None and columns is not None:
                    which, value = _entry(so2, block, a.m, sum(degrees) % 2, ins.i_in1)
                    scale = (len(matrices[index]) * a.width) ** 0.5 / gains[target]
                    matrices[index][which, rows, columns] += value * scale * mixed
    return torch.cat([torch.zeros(0, dtype=torch.float64, device="cpu"), *(part.flatten() for part in matrices)])


def _targets(matrix: Tensor, group: int, linear: Linear | None) -> list[tuple[int, Tensor]]:
    """Output groups of a path after ``linear``, each with the matrix from input channels to output channels."""
    if linear is None:
        return [(group, matrix)]
    views = linear.weight_views(yield_instruction=True)
    return [
        (path.i_out, matrix @ view.detach().to("cpu", torch.float64) * path.path_weight)
        for _, path, view in views
        if path.i_in == group and 0 not in path.path_shape
    ]


def _columns(block: Block, group: int) -> slice | None:
    return next((slice(p.start, p.start + p.mul) for p in block.groups if p.group == group), None)


def _entry(so2: SO2Map, block: object, m: int, odd: int, group: int) -> tuple[int, float]:
    """Index and value of a path's matrix entry: even sums of degrees map m to m, odd sums map -m to m."""
    table = torch.as_tensor(block, device="cpu")
    first, second = table.shape[0] // 2, table.shape[1] // 2
    if not odd:
        return 0, float(table[first + m, second + m])
    value = float(table[first + m, second - m])
    if so2.parity == "so3":
        return min(m, 1), value
    return 0, value if so2.uses_j(so2.irreps_in, group) else -value
