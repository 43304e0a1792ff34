"""The definition of a rearrangement of irreps: copies taken out of a row and put side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from e3nn.o3 import Irreps
from torch import Tensor


def rearranged(x: Tensor, irreps: Irreps, order: Sequence[int]) -> Tensor:
    """``[N, irreps.dim]`` in 'mul_ir' to the groups with the indices in ``order``, concatenated.

    A group that is left out is not in the result, as in `Extract`. All groups in the order of their degrees is `Sort`.
    """
    slices = irreps.slices()
    return torch.cat([x[:, slices[number]] for number in order], 1) if order else x[:, :0]
