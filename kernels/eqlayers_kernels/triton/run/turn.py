"""Rows of nodes in the order that kernels read in whole lines: components outside, channels inside.

In 'mul_ir' the components of a channel lie side by side, and the channels of a component 12 to 28 bytes apart: of every
32 bytes that a warp asks for, 4 to 11 are used. Rows of nodes are few beside the edges that read them, so they are
turned before the kernels, and the results after them. Rows of edges are read once, and stay.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...forms.program import Program
from ...host import HostTensors
from ..segment import launch

#: Columns that one program turns at most: whole slots where they fit, so that it reads every sector once.
TURNED = 4096


class Turn:
    """The columns of x and z in the other order, and a program in 'ir_mul' of one in 'mul_ir' that reads them so."""

    def __init__(self, program: Program) -> None:
        self.program = replace(program, layout="ir_mul")
        self._columns: HostTensors[tuple[str, bool]] = HostTensors()  # by operand, back or not
        for operand in "xz":
            to = _columns(program, operand)
            for back, columns in ((False, to), (True, torch.argsort(to))):
                short = program.widths["xywz".index(operand)] < 2**15
                self._columns.kept[operand, back] = columns.to(torch.int16 if short else torch.int32)

    def to(self, operand: str, rows: Tensor) -> Tensor:
        """Rows of x or z as the kernels read them; others as they are."""
        return self._turned(operand, False, rows)

    def back(self, operand: str, rows: Tensor) -> Tensor:
        """Rows of x or z as they were."""
        return self._turned(operand, True, rows)

    def _turned(self, operand: str, back: bool, rows: Tensor) -> Tensor:
        if operand not in "xz" or not rows.numel():
            return rows
        count, width = rows.shape
        columns = self._columns.on_device((operand, back), rows.device)
        from .gather import turn_rows

        out = launch.allocate(rows, (count, width), rows.dtype, False)
        block = min(TURNED, 1 << max(5, (width - 1).bit_length()))
        turn_rows[(count * -(-width // block),)](rows, out, columns, count, width, BLOCK=block)
        return out


def turn_of(program: Program, graph: bool) -> Turn | None:
    """How rows are turned for a program; None where nothing is gained, or y, which belongs to edges, has channels."""
    wide = any(slot.dim > 1 and slot.mul > 1 for path in program.paths for slot in (path.x, path.z))
    if not graph or program.layout != "mul_ir" or not wide or any(path.y.mul > 1 for path in program.paths):
        return None
    return Turn(program)


def _columns(program: Program, operand: str) -> Tensor:
    """The column in 'mul_ir' of each column of 'ir_mul'."""
    columns = torch.arange(program.widths["xywz".index(operand)])
    for slot in {getattr(path, operand) for path in program.paths}:
        block = columns[slot.start : slot.stop].view(slot.mul, slot.dim)
        columns[slot.start : slot.stop] = block.t().reshape(-1)
    return columns
