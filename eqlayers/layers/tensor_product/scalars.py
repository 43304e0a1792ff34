"""Paths whose second input is many scalars: node attributes, such as one-hot elements, that mix with all channels.

Such a path is a matrix product and nothing else: there is no geometry to contract, and with many copies its weights
are too many for the cache of a kernel that goes row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from e3nn import o3

from ...irreps.instructions import Instruction

#: Weights of a path of scalars alone, and copies in the second input of any path, from which on matrix products are
#: faster than one kernel on a CPU; measured, see docs/decisions/0009.
WEIGHTS = 1 << 15
COPIES = 24


def split_scalars(
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps], instructions: Sequence[Instruction]
) -> tuple[list[Instruction], list[Instruction]]:
    """The instructions twice, for matrix products and for all else: with the coefficient 0 where they are not of it.

    The first is empty where no path is a matrix product.
    """
    chosen = [_is_product(irreps, ins) for ins in instructions]
    if not any(chosen):
        return [], list(instructions)
    none = [ins._replace(path_weight=0.0) for ins in instructions]
    pairs = list(zip(chosen, instructions, none, strict=True))
    return [own if dense else off for dense, own, off in pairs], [off if dense else own for dense, own, off in pairs]


def _is_product(irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps], ins: Instruction) -> bool:
    size = math.prod(ins.path_shape)
    if ins.connection_mode != "uvw" or irreps[1][ins.i_in2].ir.l > 0 or not size or ins.path_weight == 0:
        return False
    return ins.path_shape[1] >= COPIES or (irreps[0][ins.i_in1].ir.l == 0 and size >= WEIGHTS)
