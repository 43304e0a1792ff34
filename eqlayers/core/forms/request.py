"""Requests, which kernels are made for, and the sizes that these are called with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Sizes(NamedTuple):
    """Numbers of rows in a call."""

    rows: int  # of the batch; edges of a graph
    senders: int = 0  # 0 without a graph
    receivers: int = 0
    table: int = 0  # rows of the table that weights are read from; 0 without one


#: The entry of `Sizes` for the rows of an operand or result; 'one' row that serves all has none.
PLACES = {"each": 0, "src": 1, "dst": 2, "table": 3}
#: Operands, the tables of a graph, and sizes to results.
Runner = Callable[[Sequence[Tensor], Tensor | None, Sizes], Sequence[Tensor]]


@dataclass(frozen=True)
class Request:
    """One kind of call: all that decides which kernels run it."""

    form: Any = field(compare=False, repr=False)  # a product, a sum of products or a formula; None for any formula
    key: str  # names the form: requests with equal keys, and equal other attributes, have the same kernels
    dtype: torch.dtype
    device: torch.device
    backend: str = ""  # the backend that is asked; empty while that is not decided
    graph: bool = False  # whether edges of nodes are walked, else rows
    deterministic: bool = True  # whether sums must have a fixed order; False only where it makes a difference
