"""Requests, for which kernels are compiled, and the sizes of their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Sizes(NamedTuple):
    """The numbers of rows in a call, of the batch and of operands."""

    rows: int  # of the batch; edges of a graph
    senders: int = 0  # 0 without a graph
    receivers: int = 0
    table: int = 0  # rows of the table in which weights are interpolated; 0 without one


#: Index in `Sizes` of the number of rows of an operand or result; rows 'one' (shared) have none.
SIZE_INDEX = {"each": 0, "src": 1, "dst": 2, "table": 3}
#: A function from operands, the tables of a graph, and sizes to results.
Runner = Callable[[Sequence[Tensor], Tensor | None, Sizes], Sequence[Tensor]]


@dataclass(frozen=True)
class Request:
    """The properties of a call that decide which kernels run it."""

    form: Any = field(compare=False, repr=False)  # a product, a sum of products or a formula; None for any formula
    key: str  # names the form: requests with equal keys, and equal other attributes, have the same kernels
    dtype: torch.dtype
    device: torch.device
    backend: str = ""  # the backend; empty while it is not chosen
    graph: bool = False  # whether the rows are edges of a graph
    deterministic: bool = True  # whether sums must have a fixed order
