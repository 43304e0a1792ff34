"""The definition of a formula: a Python function of numbers, called for each row and each channel in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def row_by_row(function: Callable[..., Sequence[Tensor]], channels: int, *operands: Tensor) -> Tensor:
    """``[N, channels * components]`` in 'mul_ir' for each operand, to ``[N, channels * components]`` of the result.

    The function gets the components of one channel of each operand, and returns the components of the result.
    """
    split = [operand.reshape(len(operand), channels, -1) for operand in operands]
    rows = [
        torch.cat([torch.stack(list(function(*(operand[n, u] for operand in split)))) for u in range(channels)])
        for n in range(len(operands[0]))
    ]
    return torch.stack(rows)
