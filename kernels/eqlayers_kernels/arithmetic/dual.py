"""Expressions as dual numbers: a value and its derivative along given directions, as text of C and of Python alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Dual(NamedTuple):
    """A value and its tangent; empty text is zero."""

    value: str = ""
    tangent: str = ""

    def __bool__(self) -> bool:
        return bool(self.value or self.tangent)


def times(*factors: Dual | None) -> Dual:
    """Product; None stands for 1."""
    present = [f for f in factors if f is not None]
    value = _product([f.value for f in present])
    tangents = []
    for number, factor in enumerate(present):
        others = [f.value for f in present]
        others[number] = factor.tangent
        tangents.append(_product(others))
    return Dual(value, _sum(tangents))


def plus(terms: Iterable[Dual]) -> Dual:
    """Sum."""
    kept = list(terms)
    return Dual(_sum(t.value for t in kept), _sum(t.tangent for t in kept))


def _product(factors: list[str]) -> str:
    return " * ".join(factors) if factors and all(factors) else ""


def _sum(terms: Iterable[str]) -> str:
    kept = [t for t in terms if t]
    return f"({' + '.join(kept)})" if len(kept) > 1 else "".join(kept)
