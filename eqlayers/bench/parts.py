"""Which part of the time of a call is spent where: kernels of this package by kind, matrix products, all else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from eqlayers_kernels.forms.formula import Formula

from ..forms.keys import find, take_apart
from ..torch_internals import TorchDispatchMode
from .measure import synchronize

#: Kinds of kernels of this package, as :func:`kind_of_form` names them.
KERNELS = ("convolutions", "contraction", "harmonics", "tables", "gates")
PRODUCTS, OTHERS, HOST = "matrix products", "other operators", "host"
PARTS = (*KERNELS, PRODUCTS, OTHERS, HOST)
#: Names of operands and results that tell formulas apart; a formula without any of them belongs to a gate.
_TOLD_BY = {"harmonics": "harmonics", "place": "tables", "coefficients": "contraction"}
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot")
Call = Callable[[], Any]


def kind_of_form(key: str) -> str:
    """The purpose of a form of :mod:`eqlayers.forms.keys`, or of its derivative; one of ``KERNELS``."""
    base = find(take_apart(key)[0])
    if not isinstance(base, Formula):
        return "convolutions"  # and products without a graph
    names = {one.name for one in (*base.operands, *base.results)}
    return next((kind for name, kind in _TOLD_BY.items() if name in names), "gates")


class Parts(NamedTuple):
    """Where the time of a call goes.

    Attributes:
        shares: One of ``PARTS`` to its share; they add up to 1.
        operators: How many were called, those below autograd counted: each costs the host some microseconds.
    """

    shares: dict[str, float]
    operators: int


class _Clock(TorchDispatchMode):
    """Adds up the time of every operator below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.operators = dict.fromkeys(PARTS, 0.0), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        part = OTHERS
        if space == "eqlayers":
            part = kind_of_form(args[5]) if name == "form" else "convolutions"  # tables of a graph
        elif name.partition(".")[0] in _PRODUCTS:
            part = PRODUCTS
        device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), torch.device("cpu"))
        synchronize(device)
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        synchronize(device)
        self.seconds[part] += time.perf_counter() - start
        self.operators += 1
        return result


def time_by_part(call: Call) -> Parts:
    """Shares of the time of a call by part, and how many operators it calls.

    Operators are timed one by one, below autograd. What the call takes beyond their sum is the host's: Python, autograd
    and the dispatcher. Operators that torch.compile has put into kernels of its own are not seen, and are the host's.

    Args:
        call: Should do the same in every call.

    Example:
        >>> x = torch.ones(300, 300)
        >>> shares, operators = time_by_part(lambda: x @ x)
        >>> 0 < shares["matrix products"] <= 1 and abs(sum(shares.values()) - 1) < 1e-9, operators
        (True, 1)
    """
    call()
    clock = _Clock()
    with clock:
        call()
    start = time.perf_counter()
    call()
    clock.seconds[HOST] = max(0.0, time.perf_counter() - start - sum(clock.seconds.values()))
    total = sum(clock.seconds.values())
    return Parts({part: seconds / total for part, seconds in clock.seconds.items()}, clock.operators)
