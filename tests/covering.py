"""Covering arrays: cases in which any two choices for any two factors occur together."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Case = dict[str, Any]


def covering(factors: Mapping[str, Sequence[Any]], legal: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    """Cases that hold every legal pair of choices, the same in every process.

    Args:
        factors: The choices of each factor.
        legal: Whether a case, or a part of one, may be.

    Example:
        >>> [tuple(case.values()) for case in covering({"a": "xy", "b": "pq", "c": "uv"})]
        [('x', 'p', 'u'), ('x', 'q', 'v'), ('y', 'p', 'v'), ('y', 'q', 'u')]
    """
    names = list(factors)
    pairs = [
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i, j in itertools.product(range(len(factors[a])), range(len(factors[b])))
        if legal({a: factors[a][i], b: factors[b][j]})
    ]
    left, rows = dict.fromkeys(pairs), []
    while left:
        (a, i), (b, j) = next(iter(left))
        chosen = {a: i, b: j}
        for name in names:
            if name not in chosen:
                chosen[name] = max(
                    (n for n in range(len(factors[name])) if legal(_case(factors, {**chosen, name: n}))),
                    key=lambda n: (sum(pair in left for pair in _with(names, chosen, name, n)), -n),
                )
        for pair in itertools.combinations([(name, chosen[name]) for name in names], 2):
            left.pop(pair, None)
        rows.append(_case(factors, {name: chosen[name] for name in names}))
    return rows


def _case(factors: Mapping[str, Sequence[Any]], chosen: Mapping[str, int]) -> Case:
    return {name: factors[name][place] for name, place in chosen.items()}


def _with(names: list[str], chosen: Mapping[str, int], name: str, place: int) -> list[tuple[Any, Any]]:
    """The pairs that a further choice makes."""
    order = names.index
    return [
        ((other, i), (name, place)) if order(other) < order(name) else ((name, place), (other, i))
        for other, i in chosen.items()
    ]
