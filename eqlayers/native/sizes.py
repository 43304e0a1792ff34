"""Sizes of tensors in terms of the numbers of atoms and edges, coded as integers."""

from __future__ import annotations

from typing import Any

#: Primes that stand for the numbers of atoms and edges. They are so far apart that sums of their multiples are unique.
ATOMS, EDGES = 1_000_003, 1_000_000_000_039


class Symbols:
    """The sizes of a trace whose inputs are ``z [A]``, ``vectors [E, 3]`` and ``edge_index [2, E]``.

    Args:
        atoms, edges: Numbers of atoms and edges in the trace.
    """

    def __init__(self, atoms: Any, edges: Any) -> None:
        self._values = {atoms.node.expr: ATOMS, edges.node.expr: EDGES}

    def __call__(self, size: Any) -> int:
        """A size of the trace as a coded integer."""
        return size if isinstance(size, int) else int(size.node.expr.subs(self._values))


def parts(size: int) -> tuple[int, int, int]:
    """Multiples of the number of edges, of the number of atoms, and the rest.

    Example:
        >>> parts(2 * EDGES + 3 * ATOMS + 5)
        (2, 3, 5)
    """
    edges, rest = divmod(size, EDGES)
    return edges, *divmod(rest, ATOMS)


def text_of(size: int) -> str:
    """A coded size as an expression in C, of ``A`` and ``E``.

    Example:
        >>> text_of(2 * EDGES + ATOMS + 5), text_of(0)
        ('(2 * E + A + 5)', '0')
    """
    terms = [
        (name if count == 1 else f"{count} * {name}") if name else str(count)
        for count, name in zip(parts(size), ("E", "A", ""), strict=True)
        if count
    ]
    return terms[0] if len(terms) == 1 and " " not in terms[0] else f"({' + '.join(terms)})" if terms else "0"
