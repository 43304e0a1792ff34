"""Gathers rows of operands by sender or receiver, and sums rows of results, in torch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Endpoints(NamedTuple):
    """Sender and receiver of every row of the batch ``[E]``, and the numbers of senders and receivers."""

    src: Tensor
    dst: Tensor
    num_src: int
    num_dst: int


def gathered(rows: str, t: Tensor, endpoints: Endpoints | None) -> Tensor:
    """The operand with one row for each row of the batch, by its ``rows``; a shared row as ``[1, width]``."""
    if rows in ("each", "one"):
        return t if rows == "each" else t.unsqueeze(0)
    assert endpoints is not None
    return taken(t, endpoints.dst if rows == "dst" else endpoints.src)


def summed(rows: str, t: Tensor, endpoints: Endpoints | None, deterministic: bool = True) -> Tensor:
    """The sums of the rows of the batch by ``rows`` of a result; in a fixed order if ``deterministic``."""
    if rows in ("each", "one"):
        return t if rows == "each" else t.sum(0)
    assert endpoints is not None
    index, count = (endpoints.dst, endpoints.num_dst) if rows == "dst" else (endpoints.src, endpoints.num_src)
    return summed_rows(t, index, count, deterministic)


def taken(t: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """Rows by index along ``dim``, with a gradient summed in a fixed order; `index_select` has none on GPUs."""
    return t.index_select(dim, index) if t.is_cpu else t[(slice(None),) * dim + (index,)]


def summed_rows(t: Tensor, index: Tensor, count: int, deterministic: bool = True) -> Tensor:
    """``[N, ...]`` to ``[count, ...]``: sums of the rows of each index, in a fixed order on request."""
    out = t.new_zeros(count, *t.shape[1:])
    if deterministic and not t.is_cpu:  # where index_add adds in any order, and this sorts
        return out.index_put((index,), t, accumulate=True)
    return out.index_add(0, index, t)
