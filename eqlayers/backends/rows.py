"""Rows of operands as torch gathers them, and sums them up."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Ends(NamedTuple):
    """Senders and receivers of the batch's rows, and how many of each there are."""

    src: Tensor
    dst: Tensor
    num_src: int
    num_dst: int


def gathered(rows: str, t: Tensor, ends: Ends | None) -> Tensor:
    """A row for each row of the batch; one row for all as ``[1, width]``."""
    if rows in ("each", "one"):
        return t if rows == "each" else t.unsqueeze(0)
    assert ends is not None
    return t.index_select(0, ends.dst if rows == "dst" else ends.src)


def summed(rows: str, t: Tensor, ends: Ends | None, deterministic: bool = True) -> Tensor:
    """The sums of the batch's rows that belong together; in a fixed order if asked for."""
    if rows in ("each", "one"):
        return t if rows == "each" else t.sum(0)
    assert ends is not None
    index, count = (ends.dst, ends.num_dst) if rows == "dst" else (ends.src, ends.num_src)
    out = t.new_zeros(count, t.shape[1])
    if deterministic and t.is_cuda:  # where index_add adds in any order, and this sorts
        return out.index_put((index,), t, accumulate=True)
    return out.index_add(0, index, t)
