"""Sizes of tensors in terms of the numbers of atoms and edges, coded as integers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

#: Primes that stand for the numbers of atoms and edges, so far apart that sums of their multiples are unique.
ATOMS, EDGES = 1_000_000_007, 1_000_000_000_000_000_003
#: Stands for the number of local atoms: atoms of a part of a structure that are no ghosts.
LOCAL = 1_000_000_000_000_000_000_000_000_007


class Size(int):
    """A coded size that an operator takes as a number."""


class Symbols:
    """The sizes of a trace whose inputs are ``z [A]``, ``vectors [E, 3]`` and ``edge_index [2, E]``.

    Args:
        atoms, edges: Numbers of atoms and edges in the trace.
    """

    def __init__(self, atoms: Any, edges: Any) -> None:
        self._values = {atoms.node.expr: ATOMS, edges.node.expr: EDGES}

    def __call__(self, size: Any) -> int:
        """A size of the trace as a coded integer; ValueError unless it is a sum of multiples."""
        if isinstance(size, int):
            return size
        import sympy

        expression: Any = getattr(size.node, "expr", None)
        symbols = list(self._values)
        try:
            terms = sympy.Poly(expression, *symbols)
        except sympy.PolynomialError as error:
            raise ValueError(f"the size {expression} is no sum of multiples of numbers of atoms and edges") from error
        if terms.total_degree() > 1 or not all(factor.is_Integer for factor in terms.coeffs()):
            raise ValueError(f"the size {expression} is no sum of multiples of numbers of atoms and edges")
        return int(expression.subs(self._values))


def parts(size: int) -> tuple[int, int, int]:
    """Multiples of the number of edges, of the number of atoms, and the rest.

    Example:
        >>> parts(2 * EDGES + 3 * ATOMS + 5), parts(ATOMS - 1)
        ((2, 3, 5), (0, 1, -1))
    """
    edges = (size + EDGES // 2) // EDGES
    rest = size - edges * EDGES
    atoms = (rest + ATOMS // 2) // ATOMS
    return edges, atoms, rest - atoms * ATOMS


def local(size: int) -> int:
    """The size for the local atoms alone, of a size for all atoms.

    Example:
        >>> local(ATOMS + 2) == LOCAL + 2
        True
    """
    return size + parts(size)[1] * (LOCAL - ATOMS)


def product(sizes: Iterable[int]) -> int:
    """The product of coded sizes; ValueError if several of them depend on the structure.

    Example:
        >>> product([3, ATOMS, 2]) == 6 * ATOMS
        True
    """
    listed = list(sizes)
    if sum(size >= ATOMS // 2 for size in listed) > 1:
        raise ValueError("memory must grow with the number of atoms or edges, not with products of them")
    return math.prod(listed)


def never_negative(size: int) -> bool:
    """Whether a coded number is at least 0 for all numbers of atoms and edges."""
    return min(parts(size)) >= 0


def rows_of(size: int) -> str:
    """A coded size as the end of a loop in C, which a step repeats for local atoms, or for ghosts too.

    Example:
        >>> rows_of(2 * ATOMS), rows_of(EDGES)
        ('(2 * ROWS)', 'E')
    """
    return text_of(size).replace("A", "ROWS")


def text_of(size: int) -> str:
    """A coded size as an expression in C, of ``A``, ``L`` and ``E``.

    Example:
        >>> text_of(2 * EDGES + ATOMS - 5), text_of(0)
        ('(2 * E + A + -5)', '0')
    """
    local = (size + LOCAL // 2) // LOCAL
    terms = [
        (name if count == 1 else f"{count} * {name}") if name else str(count)
        for count, name in zip((local, *parts(size - local * LOCAL)), ("L", "E", "A", ""), strict=True)
        if count
    ]
    return terms[0] if len(terms) == 1 and " " not in terms[0] else f"({' + '.join(terms)})" if terms else "0"
