"""Lower bounds of the time of kernels from stored results, scaled to the memory bandwidth of this GPU.

Goals of times are multiples of these bounds, so that they apply to any GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...core.files.read_write import read_json

#: Goal of a time relative to its bound: overlap is imperfect, clocks fall under load, launches have gaps.
TIMES_BOUND = 1.3
#: Nodes and edges of the stored bounds, and memory bandwidth of their GPU in bytes per second.
GRAPH, MEMORY = (3000, 160_000), 4.8e12
ABOUT = ("problem", "operation", "layout", "direction")  # fields that identify a bound
#: Stored results in a source checkout.
STORED = Path(__file__).resolve().parents[3] / "docs" / "benchmarks" / "kernels.json"


@cache
def read_bounds(path: Path = STORED) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Read stored launches by request; an empty mapping without the file.

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
    """Least seconds of launches on a GPU with a memory bandwidth in bytes per second.

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
    """Least seconds of a float32 request on this GPU; None if no bound is stored for it or its graph."""
    if about["dtype"] != "float32" or (nodes, edges) != GRAPH:
        return None
    launches = read_bounds().get(tuple(about[name] for name in ABOUT))
    return None if launches is None else scaled_bound(launches, bandwidth)
