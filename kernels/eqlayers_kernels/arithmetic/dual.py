"""Dual numbers whose value and tangent are expressions as text, valid in C and in Python."""

from __future__ import annotations

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
