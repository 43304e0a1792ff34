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
    return taken(t, ends.dst if rows == "dst" else ends.src)


def summed(rows: str, t: Tensor, ends: Ends | None, deterministic: bool = True) -> Tensor:
    """The sums of the batch's rows that belong together; in a fixed order if asked for."""
    if rows in ("each", "one"):
        return t if rows == "each" else t.sum(0)
    assert ends is not None
    index, count = (ends.dst, ends.num_dst) if rows == "dst" else (ends.src, ends.num_src)
    return summed_rows(t, index, count, deterministic)


def taken(t: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """Rows by index along ``dim``, with a gradient summed in a fixed order; `index_select` has none on GPUs."""
    return t.index_select(dim, index) if t.is_cpu else t[(slice(None),) * dim + (index,)]


def summed_rows(t: Tensor, index: Tensor, count: int, deterministic: bool = True, dim: int = 0) -> Tensor:
    """``[N, ...]`` to ``[count, ...]``: sums of the rows of each index along ``dim``, in a fixed order on request."""
    out = t.new_zeros(*t.shape[:dim], count, *t.shape[dim + 1 :])
    if deterministic and not t.is_cpu:  # where index_add adds in any order, and this sorts
        return out.transpose(0, dim).index_put((index,), t.transpose(0, dim), accumulate=True).transpose(0, dim)
    return out.index_add(dim, index, t)
