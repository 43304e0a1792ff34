"""Paths whose second input is many scalars: node attributes, such as one-hot elements, that mix with all channels.

Such a path is a matrix product and nothing else: there is no geometry to contract, and with many copies its weights
are too many for the cache of a kernel that goes row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from e3nn import o3

from ..algebra import wigner_3j
from .paths import Instruction

#: Weights of a path of scalars alone, and copies in the second input of any path, from which on matrix products are
#: faster than one kernel on a CPU; measured, see docs/decisions/0009.
WEIGHTS = 1 << 15
COPIES = 24


class ScalarPath(NamedTuple):
    """``z[w, m] += factor * sum_uv W[u, v, w] x[u, m] y[v]``.

    Attributes:
        i_in1, i_in2, i_out: Groups of irreps.
        shape: Multiplicities (u, v, w).
        offset: Of its weights.
        factor: Coefficient of the path times that of the product with a scalar.
    """

    i_in1: int
    i_in2: int
    i_out: int
    shape: tuple[int, int, int]
    offset: int
    factor: float


def split_scalars(
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps], instructions: Sequence[Instruction]
) -> tuple[tuple[ScalarPath, ...], list[Instruction]]:
    """The paths to run as matrix products, and the instructions of all others (theirs have the coefficient 0)."""
    found, others, offset = [], [], 0
    for ins in instructions:
        ir1, ir2 = irreps[0][ins.i_in1].ir, irreps[1][ins.i_in2].ir
        size = math.prod(ins.path_shape)
        start, offset = offset, offset + size * ins.has_weight
        if ins.connection_mode != "uvw" or ir2.l > 0 or not size or ins.path_weight == 0:
            others.append(ins)
            continue
        if ins.path_shape[1] < COPIES and not (ir1.l == 0 and size >= WEIGHTS):
            others.append(ins)
            continue
        factor = float(wigner_3j(ir1.l, 0, ir1.l)[0, 0, 0]) * ins.path_weight
        u, v, w = ins.path_shape
        found.append(ScalarPath(ins.i_in1, ins.i_in2, ins.i_out, (u, v, w), start, factor))
        others.append(ins._replace(path_weight=0.0))
    return tuple(found), others
