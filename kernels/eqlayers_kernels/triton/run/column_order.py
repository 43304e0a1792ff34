"""Transposes rows of nodes from mul_ir to ir_mul, so that Triton kernels read contiguous channels.

In 'mul_ir' the components of a channel are contiguous, and the channels of a component 12 to 28 bytes apart: of every
32 bytes that a warp loads, 4 to 11 are used. Rows of nodes are few beside the edges that read them, so they are
transposed before the kernels, and results after them. Rows of edges are read once, and are not transposed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...forms.program import Program
from ...host import HostTensors
from . import segment

#: Most columns that one program permutes.
MOST_COLUMNS = 4096


class ColumnOrder:
    """Permutations of the columns of x and z from 'mul_ir' to 'ir_mul' and back, and the program in 'ir_mul'."""

    def __init__(self, program: Program) -> None:
        self.program = replace(program, layout="ir_mul")
        self._columns: HostTensors[tuple[str, bool]] = HostTensors()  # key: (operand, whether it is the inverse)
        for operand in "xz":
            to = _columns(program, operand)
            for back, columns in ((False, to), (True, torch.argsort(to))):
                short = program.widths["xywz".index(operand)] < 2**15
                self._columns.on_host[operand, back] = columns.to(torch.int16 if short else torch.int32)

    def to(self, operand: str, rows: Tensor) -> Tensor:
        """Rows of x or z in 'ir_mul'; rows of other operands unchanged."""
        return self._permuted(operand, False, rows)

    def back(self, operand: str, rows: Tensor) -> Tensor:
        """Rows of x or z back in 'mul_ir'; rows of other operands unchanged."""
        return self._permuted(operand, True, rows)

    def _permuted(self, operand: str, back: bool, rows: Tensor) -> Tensor:
        if operand not in "xz" or not rows.numel():
            return rows
        count, width = rows.shape
        columns = self._columns.on_device((operand, back), rows.device)
        from ..kernels import permute_columns

        out = segment.allocate(rows, (count, width), rows.dtype, False)
        block = min(MOST_COLUMNS, 1 << max(5, (width - 1).bit_length()))
        permute_columns[(count * -(-width // block),)](rows, out, columns, count, width, BLOCK=block)
        return out


def column_order_of(program: Program, graph: bool) -> ColumnOrder | None:
    """The column order for a program; None if nothing is gained, or y (rows of edges) has channels."""
    wide = any(slot.dim > 1 and slot.mul > 1 for path in program.paths for slot in (path.x, path.z))
    if not graph or program.layout != "mul_ir" or not wide or any(path.y.mul > 1 for path in program.paths):
        return None
    return ColumnOrder(program)


def _columns(program: Program, operand: str) -> Tensor:
    """The column in 'mul_ir' of each column of 'ir_mul'."""
    columns = torch.arange(program.widths["xywz".index(operand)])
    for slot in {getattr(path, operand) for path in program.paths}:
        block = columns[slot.start : slot.stop].view(slot.mul, slot.dim)
        columns[slot.start : slot.stop] = block.t().reshape(-1)
    return columns
