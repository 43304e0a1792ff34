"""The arithmetic of forms in no language, and the few methods that a language must have to write it down.

A family of forms (``lines`` for products) writes its arithmetic once, for a `Writer`; C and Triton are
writers. Values are dual numbers, so second derivatives follow from first ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from .dual import Dual

#: Pointers of a kernel, in order: operands, their tangents, and results.
RESULTS = {"x": "gx", "y": "gy", "w": "gw", "t": "gt", "c": "gc", "z": "z"}


class Kind(NamedTuple):
    """The computation of a kernel.

    ``order`` 0 is z; 1 is gradients of ``sum(z * g)``; 2 is the derivative of z and of those gradients along the
    ``tangents`` (of x, y, w, and of g as 'z'). ``results`` names the operands whose gradient is wanted; 'z' stands
    for the gradient of g. ``factors`` are the operands; weights that are read from a table stand there as its rows t
    and the coefficients c.
    """

    order: int
    results: tuple[str, ...]
    tangents: tuple[str, ...] = ()
    factors: tuple[str, ...] = ("x", "y", "w")

    def part(self, value: Dual) -> str:
        """The part of a dual number that is the result."""
        return value.tangent if self.order == 2 else value.value

    @property
    def pointers(self) -> list[tuple[str, str]]:
        """(name, operand that it is shaped as) of every pointer; results last."""
        out = [(name, name) for name in self.factors]
        if set(self.results) - {"z"}:
            out.append(("g", "z"))
        out.extend((f"d{name}", name) for name in self.tangents)
        return out + [(RESULTS[name], name) for name in self.results]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands: x, y, w (or t and c); then g; then tangents."""
        return (*self.factors, *("g" * min(self.order, 1)), *(f"d{name}" for name in self.tangents))

    @property
    def of_paths(self) -> Kind:
        """The part that paths compute, which know weights alone."""
        results, tangents = (
            tuple(dict.fromkeys("w" if name in "tc" else name for name in names))
            for names in (self.results, self.tangents)
        )
        return Kind(self.order, results, tangents)

    @property
    def gradients(self) -> bool:
        """Whether anything but z is wanted."""
        return bool(set(self.results) - {"z"})


class Writer(ABC):
    """A language, writing the arithmetic of one part of a kernel: a loop over channels, or what has none.

    Attributes:
        weighs_first: Whether second derivatives of z are sums over w x, with two multiply-adds for every pair of
            components in place of three. Kernels of C, which wait for memory, gained nothing (decision 19).
    """

    weighs_first = False

    @abstractmethod
    def literal(self, value: float) -> str:
        """A coefficient."""

    @abstractmethod
    def load(self, operand: str, component: int) -> Dual:
        """A component of an operand ('z' is its cotangent g), with its tangent if it has one."""

    @abstractmethod
    def name(self, label: str, value: Dual, varies: bool) -> Dual:
        """Give a value a name; ``varies`` says whether it differs from channel to channel."""

    @abstractmethod
    def add(self, operand: str, component: int, value: Dual) -> None:
        """Add a value that differs from channel to channel to a wanted result; sum it if the result has no channels."""

    @abstractmethod
    def total(self, label: str, value: Dual) -> Dual:
        """The sum of a value over the channels."""

    @abstractmethod
    def add_total(self, operand: str, component: int, value: Dual) -> None:
        """Add a value made of sums over the channels to a wanted result."""


def pointer_of(operand: str) -> str:
    """The pointer from which an operand is read: what has the shape of z is its cotangent."""
    return "g" if operand == "z" else operand
