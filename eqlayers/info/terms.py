"""From irreps and instructions to the infos of a tensor product: group theory ends here.

Instructions of one mode and equal multiplicities form a group. A weighted group is two sparse products,
``inter[path, m3] = c C x . y`` and ``z[m3] += inter[path, m3] . w[path]``; one without weights is a single product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from e3nn import o3

from ..algebra import wigner_3j
from ..ops.channels import Channels
from .build import sparse_product_infos
from .layout import FlatLayout
from .modes import MODES
from .paths import Instruction
from .structs import SparseProductInfo

Infos = tuple[SparseProductInfo, SparseProductInfo, SparseProductInfo]


@dataclass(frozen=True)
class PathGroup:
    """Paths that run together: the blocks they read and write, their channel specs and their infos (on the CPU)."""

    mode: str
    muls: tuple[int, int, int]
    pairs: bool  # read both operands at the channel pairs u < v
    summed: tuple[bool, bool]  # sum the channels of operand 1, 2 before the product
    product: str  # channel spec of x . y
    infos: Infos
    weighting: str | None  # channel spec of inter . w; None without weights
    weight_infos: Infos | None
    weight_places: tuple[tuple[int, int], ...]  # (offset, size) in the flat weight, by path
    weight_shape: tuple[int, ...]  # of one path, axes of length 1 dropped
    num_terms: int

    @property
    def dropped(self) -> tuple[bool, bool]:
        """Whether the channel axis of operand 1, 2 is absent from the spec (length 1, or summed)."""
        first, second = self.product.split("->")[0].split(",")
        return not first, not second


def group_paths(
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps],
    instructions: Sequence[Instruction],
    layouts: tuple[FlatLayout, FlatLayout, FlatLayout],
) -> list[PathGroup]:
    """Group the instructions and build the infos of each group."""
    offsets = np.cumsum([0] + [int(np.prod(i.path_shape)) if i.has_weight else 0 for i in instructions])
    groups: dict[tuple[str, bool, tuple[int, int, int]], list[tuple[Instruction, int]]] = {}
    for ins, offset in zip(instructions, offsets, strict=False):
        muls = tuple(r[i].mul for r, i in zip(irreps, ins[:3], strict=True))
        if 0 in muls or 0 in ins.path_shape:
            continue
        key = (ins.connection_mode, ins.has_weight, (muls[0], muls[1], muls[2]))
        groups.setdefault(key, []).append((ins, int(offset)))
    return [_group(key[0], key[1], key[2], paths, irreps, layouts) for key, paths in groups.items()]


def _group(
    mode_name: str,
    has_weight: bool,
    muls: tuple[int, int, int],
    paths: list[tuple[Instruction, int]],
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps],
    layouts: tuple[FlatLayout, FlatLayout, FlatLayout],
) -> PathGroup:
    mode = MODES[mode_name]
    extents = mode.extents(*muls)
    long = {c for c, n in extents.items() if n > 1}
    first, second, out, weight = (
        "".join(c for c in part if c in long) for part in (mode.first, mode.second, mode.out, mode.weight)
    )
    result = first + "".join(c for c in second if c not in first)
    alone = set()
    if not has_weight:
        result = out if mode.out != "w" else ""
        alone = {c for c in set(first) ^ set(second) if c not in result}
    product = Channels(
        "".join(c for c in first if c not in alone), "".join(c for c in second if c not in alone), result
    )
    rows = (layouts[0].rows[muls[0]], layouts[1].rows[muls[1]], layouts[2].rows[muls[2]])
    columns, inter_rows = _terms(paths, irreps, layouts, to_output=not has_weight)
    index1, index2, index_out, scale = columns
    size = rows[2] if not has_weight else len(inter_rows)
    infos = sparse_product_infos(index1, index2, index_out, scale, in1_size=rows[0], in2_size=rows[1], out_size=size)
    weight_infos = None
    if has_weight:
        path_of, target = (np.array(c, dtype=np.int64) for c in zip(*inter_rows, strict=True))
        weight_infos = sparse_product_infos(
            np.arange(size), path_of, target, in1_size=size, in2_size=len(paths), out_size=rows[2]
        )
    return PathGroup(
        mode=mode_name,
        muls=muls,
        pairs=mode.pairs,
        summed=(bool(alone & set(first)), bool(alone & set(second))),
        product=str(product),
        infos=infos,
        weighting=str(Channels(result, weight, out)) if has_weight else None,
        weight_infos=weight_infos,
        weight_places=tuple((o, int(np.prod(i.path_shape))) for i, o in paths) if has_weight else (),
        weight_shape=tuple(extents[c] for c in weight),
        num_terms=len(scale),
    )


def _terms(
    paths: list[tuple[Instruction, int]],
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps],
    layouts: tuple[FlatLayout, FlatLayout, FlatLayout],
    to_output: bool,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], list[tuple[int, int]]]:
    """Columns (index1, index2, row, coefficient) of all terms; rows are output rows, or (path, m3) counted through."""
    columns: list[tuple[np.ndarray, ...]] = []
    inter: list[tuple[int, int]] = []
    for number, (ins, _) in enumerate(paths):
        block = wigner_3j(*(r[i].ir.l for r, i in zip(irreps, ins[:3], strict=True))) * ins.path_weight
        m1, m2, m3 = np.nonzero(block)
        start1, start2, start3 = (layout.slots[i].row for layout, i in zip(layouts, ins[:3], strict=True))
        base = start3 if to_output else len(inter)
        inter.extend((number, start3 + m) for m in range(block.shape[2]))
        columns.append((m1 + start1, m2 + start2, m3 + base, block[m1, m2, m3]))
    index1, index2, row, scale = (np.concatenate(c) for c in zip(*columns, strict=True))
    return (index1, index2, row, scale), inter
