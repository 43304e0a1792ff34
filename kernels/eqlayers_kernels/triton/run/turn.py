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


class Turn:
    """The columns of x and z in the other order, and a program that reads them so.

    Args:
        program: In 'mul_ir'.
    """

    def __init__(self, program: Program) -> None:
        self.program = replace(program, layout="ir_mul")
        self._to = {"x": _columns(program, "x"), "z": _columns(program, "z")}
        self._back = {name: torch.argsort(columns) for name, columns in self._to.items()}

    def to(self, operand: str, rows: Tensor) -> Tensor:
        """Rows of x or z as the kernels read them; others as they are."""
        return self._select(self._to, operand, rows)

    def back(self, operand: str, rows: Tensor) -> Tensor:
        """Rows of x or z as they were."""
        return self._select(self._back, operand, rows)

    @staticmethod
    def _select(columns: dict[str, Tensor], operand: str, rows: Tensor) -> Tensor:
        if operand not in columns:
            return rows
        columns[operand] = columns[operand].to(rows.device)
        return rows.index_select(1, columns[operand])


def turn_of(program: Program, graph: bool) -> Turn | None:
    """How rows are turned for a program; None where nothing is gained, or y, which belongs to edges, has channels."""
    wide = any(slot.dim > 1 and slot.mul > 1 for path in program.paths for slot in (path.x, path.z))
    if not graph or program.layout != "mul_ir" or not wide or any(path.y.mul > 1 for path in program.paths):
        return None
    return Turn(program)


def _columns(program: Program, operand: str) -> Tensor:
    """Where each column of 'ir_mul' is in 'mul_ir'."""
    columns = torch.arange(program.widths["xywz".index(operand)])
    for slot in {getattr(path, operand) for path in program.paths}:
        block = columns[slot.start : slot.stop].view(slot.mul, slot.dim)
        columns[slot.start : slot.stop] = block.t().reshape(-1)
    return columns
