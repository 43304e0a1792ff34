"""Time of a call by part: kernels of this package by purpose, matrix products, other operators, and host."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

from ...core.forms.keys import describe, split_key
from ...core.torch_internals import TorchDispatchMode
from ..measure import Call, synchronize

#: Purposes of kernels of this package.
KERNELS = ("convolutions", "contraction", "harmonics", "tables", "gates")
PRODUCTS, OTHERS, HOST = "matrix products", "other operators", "host"
PARTS = (*KERNELS, PRODUCTS, OTHERS, HOST)
#: Name of an operand or result of a formula -> its purpose; other formulas are gates.
_PURPOSE_BY_NAME = {"harmonics": "harmonics", "place": "tables", "coefficients": "contraction"}
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot")


def purpose_of_form(key: str) -> str:
    """Purpose of a kernel by its key of :mod:`eqlayers.core.forms.keys`; one of ``KERNELS``."""
    base = describe(split_key(key)[0]).form
    if base.family != "formula":
        return "convolutions"  # and products without a graph
    names = {tensor.name for tensor in (*base.operands, *base.results)}
    return next((purpose for name, purpose in _PURPOSE_BY_NAME.items() if name in names), "gates")


class Parts(NamedTuple):
    """Shares of the time of a call, and its number of operators."""

    shares: dict[str, float]  # part of PARTS -> share; the sum is 1
    operators: int  # number of operators called below autograd


class OperatorClock(TorchDispatchMode):
    """Mode that counts and times operators below autograd, and counts kernels of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.operators, self.kernels = dict.fromkeys(PARTS, 0.0), 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        part = PRODUCTS if name.partition(".")[0] in _PRODUCTS else OTHERS
        if space == "eqlayers":
            part = purpose_of_form(args[5]) if name == "form" else "convolutions"  # tables of a graph
        device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), torch.device("cpu"))
        synchronize(device)
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        synchronize(device)
        self.seconds[part] += time.perf_counter() - start
        self.operators, self.kernels = self.operators + 1, self.kernels + (space == "eqlayers")
        return result


def time_by_part(call: Call) -> Parts:
    """Shares of the time of a call by part, and its number of operators; all calls must do the same.

    Operators are timed one by one below autograd; the rest is the host's: Python, autograd and the dispatcher. Kernels
    compiled by torch.compile are counted as host.

    Example:
        >>> x = torch.ones(300, 300)
        >>> shares, operators = time_by_part(lambda: x @ x)
        >>> 0 < shares["matrix products"] <= 1 and abs(sum(shares.values()) - 1) < 1e-9, operators
        (True, 1)
    """
    call()
    clock = OperatorClock()
    with clock:
        call()
    start = time.perf_counter()
    call()
    clock.seconds[HOST] = max(0.0, time.perf_counter() - start - sum(clock.seconds.values()))
    total = sum(clock.seconds.values())
    return Parts({part: seconds / total for part, seconds in clock.seconds.items()}, clock.operators)
