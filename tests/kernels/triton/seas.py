"""Operands and results of Triton kernels in the middle of larger buffers: an access beside them shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from eqlayers_kernels.triton.run import segment

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
SENTINEL = 1234.0


def sea(values: torch.Tensor, filled: float) -> torch.Tensor:
    """A contiguous copy in the middle of a buffer that holds ``filled``: who reads or writes beside it shows."""
    buffer = torch.full((values.numel() + 128,), filled, dtype=values.dtype, device=values.device)
    inside = buffer[64 : 64 + values.numel()].view(values.shape)
    return inside.copy_(values)


@contextmanager
def results_in_seas() -> Iterator[None]:
    """A block whose launches write results into seas of sentinels, NaN until written; fails if a sentinel changes."""
    buffers: list[torch.Tensor] = []

    def allocate(like: Any, shape: Any, dtype: Any, fill: bool) -> torch.Tensor:
        buffers.append(sea(torch.full(shape, 0.0 if fill else torch.nan, dtype=dtype, device=DEVICE), SENTINEL))
        return buffers[-1]

    with mock.patch.object(segment, "allocate", allocate):
        yield
    for flat in (buffer._base for buffer in buffers):
        assert (flat[:64] == SENTINEL).all(), "written before a result"
        assert (flat[-64:] == SENTINEL).all(), "written behind a result"
