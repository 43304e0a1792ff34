"""Runs formulas in torch, node by node on columns; torch differentiates them to any order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from eqlayers_kernels.forms.expression import SMALLEST_SQUARE
from eqlayers_kernels.forms.formula import Block, Formula, Operand, evaluate

from ..dtypes import ACCUMULATE
from .constants import Constants
from .rows import Endpoints, gathered, summed, taken

_constants = Constants()


class Primitives:
    """The functions of formulas other than sums and products, in torch."""

    @staticmethod
    def inverse_length(*vector: Tensor) -> Tensor:
        """One over the length of a vector, 0 of the zero vector; derivatives of the zero vector are 0."""
        square = vector[0] * vector[0]
        for part in vector[1:]:
            square = square + part * part
        none = square <= SMALLEST_SQUARE[str(square.dtype).removeprefix("torch.")]  # false for NaN
        return torch.where(none, 0.0, torch.where(none, 1.0, square).rsqrt())

    sigmoid, tanh = staticmethod(torch.sigmoid), staticmethod(torch.tanh)

    @staticmethod
    def at_most_one(value: Tensor) -> Tensor:
        """The smaller of a value and 1; where the value is below 1 the derivative is 1, else 0."""
        return torch.where(value >= 1, 1.0, value)

    @staticmethod
    def below_one(value: Tensor) -> Tensor:
        """1 where a value is below 1, else 0."""
        return (value < 1).to(value.dtype)


def run_in_torch(
    base: Formula, operands: Sequence[Tensor], endpoints: Endpoints | None, term_by_term: bool = False
) -> list[Tensor]:
    """The results of a formula, ``[rows, width]`` each; ``[width]`` for a sum over all rows.

    Operands are ``[rows, width]`` each, ``[width]`` for a shared row; ``endpoints`` are needed for rows of senders or
    receivers. ``term_by_term`` computes in float64, as the reference.
    """
    dtype = torch.float64 if term_by_term else ACCUMULATE[operands[0].dtype]
    if operands[0].dtype != dtype:
        results = run_in_torch(base, [t.to(dtype) for t in operands], endpoints)
        return [t.to(operands[0].dtype) for t in results]
    columns = [
        _components(one, gathered(one.rows, t, endpoints), base.channels)
        for one, t in zip(base.operands, operands, strict=True)
    ]
    batch = endpoints.src if endpoints is not None else None if base.batch is None else operands[base.batch]
    rows = 1 if batch is None else batch.shape[0]
    outputs = evaluate(base, lambda operand, component: columns[operand][component], Primitives)
    like = operands[0]
    shape = (rows, base.channels) if base.channels else (rows,)
    results = []
    for one, parts in zip(base.results, outputs, strict=True):
        zeros = like.new_zeros(shape)
        whole = [zeros if p is None else zeros + p if not isinstance(p, Tensor) else p.expand(shape) for p in parts]
        results.append(summed(one.rows, _assembled(one, whole, like, rows, base.channels), endpoints))
    return results


def _components(one: Operand, t: Tensor, channels: int) -> list[Tensor]:
    """Every component of an operand, ``[rows, channels]`` or ``[rows]`` each."""
    out: list[Tensor] = []
    for block in one.blocks:
        if not channels:
            out += t.narrow(1, block.start, block.dim).unbind(1) if block.component == 1 else _picked(block, t, 1)
        elif (block.component, block.channel) == (channels, 1):
            out += t.narrow(1, block.start, block.dim * channels).unflatten(1, (block.dim, channels)).unbind(1)
        elif (block.component, block.channel) == (1, block.dim):
            out += t.narrow(1, block.start, block.dim * channels).unflatten(1, (channels, block.dim)).unbind(2)
        else:
            out += _picked(block, t, channels)
    return out


def _picked(block: Block, t: Tensor, channels: int) -> list[Tensor]:
    columns = [block.start + i * block.component for i in range(block.dim)]
    if not block.channel:
        return [t.select(1, column) for column in columns]
    length = (channels - 1) * block.channel + 1
    return [t[:, column : column + length : block.channel] for column in columns]


def _assembled(one: Operand, parts: Sequence[Tensor], like: Tensor, rows: int, channels: int) -> Tensor:
    """A result ``[rows, width]`` from its components; columns without a component are 0."""
    if not parts:
        return like.new_zeros(rows, one.width)
    flat = torch.stack(list(parts), 1)
    flat = flat.flatten(1) if channels else flat
    order = _order.__wrapped__ if torch.compiler.is_compiling() else _order  # Dynamo warns of a cached function
    sources = order(one, max(channels, 1))
    if sources == list(range(flat.shape[1])):
        return flat
    index = _constants((one, channels), like.device, lambda: torch.tensor(sources).clamp(min=0))
    out = taken(flat, index, 1)
    if min(sources) >= 0:
        return out
    none = _constants((one, channels, "none"), like.device, lambda: torch.tensor(sources) < 0)
    return out.masked_fill(none, 0.0)


@cache
def _order(one: Operand, channels: int) -> list[int]:
    """The index ``component * channels + channel`` of every column, -1 for columns without a component."""
    out = [-1] * one.width
    for component, columns in enumerate(one.columns(channels)):
        for channel, column in enumerate(columns):
            out[column] = component * channels + channel
    return out
