"""A request to a backend: one kind of call of a form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: Operands, the tables of a graph, and sizes (rows, senders, receivers and rows of a table) to results.
Runner = Callable[[Sequence[Tensor], Tensor | None, Sequence[int]], Sequence[Tensor]]


@dataclass(frozen=True)
class Request:
    """One kind of call: all that decides which kernels run it.

    Attributes:
        form: A product or a formula.
        key: Names the form: requests with equal keys, and equal other attributes, have the same kernels.
        backend: Who is asked.
        device: Of the operands.
        dtype: Of the operands.
        graph: Whether edges of nodes are walked, else rows.
        deterministic: Whether sums must have a fixed order; False only where it makes a difference.
    """

    form: Any = field(compare=False, repr=False)
    key: str
    backend: str
    device: torch.device
    dtype: torch.dtype
    graph: bool
    deterministic: bool = True
