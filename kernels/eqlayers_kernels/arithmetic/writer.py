"""Tasks of kernels, and the interface by which arithmetic is written as C or as Triton.

`PathLines` writes the arithmetic of products once, for a `Writer`. Values are dual numbers whose value and tangent are
expressions as text, valid in C and in Python, so second derivatives follow from first ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple


class Dual(NamedTuple):
    """A value and its tangent (directional derivative), as expressions; empty text is zero."""

    value: str = ""
    tangent: str = ""

    def __bool__(self) -> bool:
        return bool(self.value or self.tangent)


def times(*factors: Dual | None) -> Dual:
    """The product of dual numbers, by the product rule; None stands for the factor 1."""
    present = [f for f in factors if f is not None]
    value = _product([f.value for f in present])
    tangents = []
    for number, factor in enumerate(present):
        others = [f.value for f in present]
        others[number] = factor.tangent
        tangents.append(_product(others))
    return Dual(value, _sum(tangents))


def plus(terms: Iterable[Dual]) -> Dual:
    """The sum of dual numbers."""
    summands = list(terms)
    return Dual(_sum(t.value for t in summands), _sum(t.tangent for t in summands))


def _product(factors: list[str]) -> str:
    return " * ".join(factors) if factors and all(factors) else ""


def _sum(terms: Iterable[str]) -> str:
    summands = [t for t in terms if t]
    return f"({' + '.join(summands)})" if len(summands) > 1 else "".join(summands)


#: Pointers of a kernel, in order: operands, their tangents, and results.
RESULTS = {"x": "gx", "y": "gy", "w": "gw", "t": "gt", "c": "gc", "z": "z"}


class Task(NamedTuple):
    """The task of a kernel of a product: the value, gradients, or second derivatives.

    ``order`` 0 is z; 1 is gradients of ``sum(z * g)``; 2 is the derivative of z and of those gradients along the
    ``tangents`` (of x, y, w, and of g as 'z'). ``results`` names the operands whose gradient is computed; 'z' stands
    for the gradient by g. ``factors`` names the operands; weights that are interpolated in a table are two of them: its
    rows t and the coefficients c.
    """

    order: int
    results: tuple[str, ...]
    tangents: tuple[str, ...] = ()
    factors: tuple[str, ...] = ("x", "y", "w")

    def part(self, value: Dual) -> str:
        """The result in a dual number: the tangent if the order is 2, else the value."""
        return value.tangent if self.order == 2 else value.value

    @property
    def pointers(self) -> list[tuple[str, str]]:
        """(name of the pointer, operand whose shape it has) of every argument of the kernel; results last."""
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
    def of_paths(self) -> Task:
        """The task of the paths, in which rows t and coefficients c of a table are replaced by the weights w."""
        return Task(self.order, self.combined.results, _weighed(self.tangents))

    @property
    def combined(self) -> Task:
        """The task of paths that combine weights of rows t by coefficients c themselves."""
        return self._replace(results=_weighed(self.results))

    @property
    def compared(self) -> Task:
        """The task of paths that compare the gradient of their weights with the rows t themselves."""
        return self._replace(results=tuple("w" if name == "t" else name for name in self.results))

    @property
    def gradients(self) -> bool:
        """Whether a gradient is among the results."""
        return bool(set(self.results) - {"z"})


def _weighed(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys("w" if name in "tc" else name for name in names))


class Writer(ABC):
    """Writes arithmetic in one language: statements in a loop over channels, and statements without channels.

    Attributes:
        weighs_first: Whether second derivatives of z are sums over w x, with two multiply-adds for every pair of
            components in place of three. Kernels of C, which wait for memory, gained nothing (decision 19).
        sums_pairs: Whether products of pairs of components are summed over channels before they are contracted.
    """

    weighs_first = False
    sums_pairs = False

    @abstractmethod
    def literal(self, value: float) -> str:
        """A coefficient."""

    @abstractmethod
    def load(self, operand: str, component: int) -> Dual:
        """A component of an operand ('z' is its cotangent g), with its tangent if it has one."""

    @abstractmethod
    def name(self, label: str, value: Dual, varies: bool) -> Dual:
        """Assign a value to a variable; ``varies`` says whether it differs from channel to channel."""

    @abstractmethod
    def add(self, operand: str, component: int, value: Dual) -> None:
        """Add a value of each channel to a result, summed over the channels if the result has none."""

    @abstractmethod
    def total(self, label: str, value: Dual) -> Dual:
        """The sum of a value over the channels."""

    @abstractmethod
    def add_total(self, operand: str, component: int, value: Dual) -> None:
        """Add a value that is already summed over the channels to a result."""


def pointer_of(operand: str) -> str:
    """The pointer from which an operand is read: its name, and the cotangent g for z."""
    return "g" if operand == "z" else operand
