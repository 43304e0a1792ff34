"""Columns of irrep copies in a flat row: functions that select them, and blocks of operands of formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from e3nn import o3
from torch import Tensor

from eqlayers_kernels.forms.formula import Block, Operand
from eqlayers_kernels.forms.program import Slot

from ...core.errors import IrrepsError


class Copies(NamedTuple):
    """A range of copies of an irreps group: the group, its first copy and the number of copies."""

    group: int
    first: int
    mul: int


class Columns(NamedTuple):
    """``length`` columns from ``start``; with ``slot`` not a range, but its channels from ``first`` in 'ir_mul'."""

    start: int
    length: int
    slot: Slot | None = None
    first: int = 0


def block_of(slot: Slot, layout: str, channels: bool = True, first: int = 0) -> Block:
    """The block of a formula for the copies of a slot from ``first``, which are channels; or for that copy alone."""
    if layout == "ir_mul":
        return Block(slot.start + first, slot.dim, slot.mul, int(channels))
    return Block(slot.start + first * slot.dim, slot.dim, 1, slot.dim if channels else 0)


def row_of(name: str, width: int, rows: str = "each") -> Operand:
    """An operand or result of a formula whose components are ``width`` consecutive columns."""
    return Operand(name, width, (Block(0, width),), rows)


def columns_of(slots: list[Slot], copies: Sequence[Copies], layout: str) -> list[Columns]:
    """Columns of some copies in a flat row: one range for contiguous copies; with the slot for strided columns."""
    out: list[Columns] = []
    for group, first, count in copies:
        slot = slots[group]
        if not count or not slot.dim:
            continue
        if layout == "ir_mul" and slot.dim > 1 and count < slot.mul:
            out.append(Columns(slot.start, count * slot.dim, slot, first))
            continue
        start, length = slot.start + first * slot.dim, count * slot.dim
        last = out[-1] if out else None
        if last is not None and last.slot is None and last.start + last.length == start:
            out[-1] = last._replace(length=last.length + length)
        else:
            out.append(Columns(start, length))
    return out


def take(x: Tensor, columns: Sequence[Columns]) -> Tensor:
    """Select columns of flat features and concatenate them; a view if they are one range."""
    parts = []
    for start, length, slot, first in columns:
        part = x.narrow(-1, start, length if slot is None else slot.mul * slot.dim)
        if slot is not None:
            block = part.reshape(*x.shape[:-1], slot.dim, slot.mul)
            part = block.narrow(-1, first, length // slot.dim).reshape(*x.shape[:-1], length)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, -1) if parts else x.narrow(-1, 0, 0)


def whole_row(columns: Sequence[Columns], dim: int) -> tuple[list[int], list[int]] | None:
    """Widths of the ranges in a row, and the index of each of ``columns`` among them; None if they leave gaps."""
    order = sorted(range(len(columns)), key=lambda n: columns[n].start)
    bounds = [(columns[n].start, columns[n].start + columns[n].length) for n in order]
    if any(part.slot is not None for part in columns) or [a for a, _ in bounds] != [0, *(b for _, b in bounds)][:-1]:
        return None
    if not bounds or bounds[-1][1] != dim:
        return None
    return [b - a for a, b in bounds], [order.index(n) for n in range(len(columns))]


def reordered(x: Tensor, columns: Sequence[Columns], whole: tuple[list[int], list[int]] | None) -> Tensor:
    """The result of `take`, by a single split if columns cover the row (`whole_row`): its gradient is one tensor."""
    if whole is None or len(columns) < 2:
        return take(x, columns)
    parts = x.split_with_sizes(whole[0], -1)
    return torch.cat([parts[n] for n in whole[1]], -1)


def copies_between(copies: Sequence[Copies], first: int, last: int) -> list[Copies]:
    """The copies of index ``first`` to ``last - 1``, counted over all groups."""
    out, start = [], 0
    for group, _, count in copies:
        a, b = max(first - start, 0), min(last - start, count)
        if a < b:
            out.append(Copies(group, a, b - a))
        start += count
    return out


def same_order(first: o3.Irreps, second: o3.Irreps, layout: str) -> bool:
    """Whether flat features have the same layout for both irreps, which may differ in grouping."""
    if layout == "ir_mul":  # which orders columns of degrees above 0 by their grouping
        groups = ([(mul, ir) for mul, ir in irreps if mul and ir.l] for irreps in (first, second))
        if next(groups) != next(groups):
            return False
    return bool(first.simplify() == second.simplify())


def joined(irreps: o3.Irreps, layout: str) -> o3.Irreps:
    """The simplified irreps, or the given ones if simplifying would reorder the features, as it may in 'ir_mul'."""
    simple = irreps.simplify()
    return simple if same_order(irreps, simple, layout) else irreps


def check_groups(name: str, irreps: o3.Irreps, read: o3.Irreps, layout: str) -> None:
    """Raise IrrepsError unless flat features of ``irreps`` have the layout of ``read``, which a layer makes of them."""
    if not same_order(irreps, read, layout):
        raise IrrepsError(
            f"{name} must have the groups {read} with layout='ir_mul', where groups side by side have another order, "
            f"got {irreps}. Order the features so: eqlayers.nn.Sort joins groups, Split and Merge cut them."
        )
