"""Stored bounds of printed kernels, scaled to the card at hand: goals are made of them.

A time goal in milliseconds is right for one card and may lie below what its machine code needs. So the goal of a time
is a multiple of the bound of the same request, where the part that waits for main memory has the bandwidth that was
measured on this card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...core.files.read_write import read_json

#: Of a time beside its bound: limits that overlap less than perfectly, clocks under load, gaps between launches.
TIMES_BOUND = 1.3
#: The graph of the bounds, nodes and edges, and the bytes per second of main memory on their card: the numbers of
#: ``ptx_emulator.bounds``, which an installation does not have.
GRAPH, MEMORY = (3000, 160_000), 4.8e12
ABOUT = ("problem", "operation", "layout", "direction")  # that a bound belongs to
#: The last result, in a source checkout; an installation has none.
STORED = Path(__file__).resolve().parents[3] / "docs" / "benchmarks" / "kernels.json"


@cache
def read_bounds(path: Path = STORED) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """The launches of each request that has a bound, of the last release of Triton; none without a file.

    Example:
        >>> bounds = read_bounds()
        >>> bounds == {} or ("mace-large", "conv", "ir_mul", "double_bwd") in bounds
        True
    """
    if not path.is_file():
        return {}
    rows: Iterable[dict[str, Any]] = read_json(path, "stored bounds", "Run the study printed_kernels.py again.")["rows"]
    return {tuple(row[name] for name in ABOUT): row["launches"] for row in rows if row.get("launches")}


def scaled_bound(launches: Sequence[dict[str, Any]], bandwidth: float) -> float:
    """Seconds that some launches take at least on a card with that bandwidth of main memory, bytes per second.

    Example:
        >>> scaled_bound([{"seconds": {"HBM": 0.3, "L2": 0.4}}], MEMORY)
        0.4
        >>> scaled_bound([{"seconds": {"HBM": 0.3, "L2": 0.4}}], MEMORY / 2)
        0.6
    """
    factor = MEMORY / bandwidth
    return sum(
        max(seconds * (factor if limit == "HBM" else 1.0) for limit, seconds in launch["seconds"].items())
        for launch in launches
    )


def bound_of(about: dict[str, Any], bandwidth: float, nodes: int, edges: int) -> float | None:
    """The bound of a request in float32 on this card, seconds; None if none is stored for it or for such a graph."""
    if about["dtype"] != "float32" or (nodes, edges) != GRAPH:
        return None
    launches = read_bounds().get(tuple(about[name] for name in ABOUT))
    return None if launches is None else scaled_bound(launches, bandwidth)
