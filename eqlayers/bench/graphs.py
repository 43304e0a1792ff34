"""Graphs of the benchmark: a few ways to connect nodes, each with its number of nodes and edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from .config import check_known, read_config, read_fields


def _complete(nodes: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    pairs = np.argwhere(~np.eye(nodes, dtype=bool))
    return pairs.T


def _uniform(nodes: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, nodes, (2, edges))


def _molecules(nodes: int, edges: int, rng: np.random.Generator, count: int = 32) -> np.ndarray:
    """Random pairs of different atoms of one molecule; the molecules have equal sizes, up to one atom."""
    ends = np.linspace(0, nodes, count + 1).astype(np.int64)
    dst = rng.integers(0, nodes, edges)
    molecule = np.searchsorted(ends, dst, side="right") - 1
    start, size = ends[molecule], np.diff(ends)[molecule]
    src = start + (dst - start + 1 + rng.integers(0, np.maximum(size - 1, 1))) % size
    return np.stack([src, dst])


def _diamond(nodes: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    """Diamond, a = 3.567 A, as many cubic cells as hold the nodes, periodic, all neighbours within 6 A."""
    cells = round((nodes / 8) ** (1 / 3))
    lattice = np.array([[0, 0, 0], [0, 2, 2], [2, 0, 2], [2, 2, 0]])
    basis = np.concatenate([lattice, lattice + 1])  # in quarters of the cell
    corners = 4 * np.stack(np.meshgrid(*[np.arange(cells)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
    atoms = (corners + basis).reshape(-1, 3)
    length = 4 * cells
    out = []
    for number, atom in enumerate(atoms):
        offset = (atoms - atom + length // 2) % length - length // 2  # the nearest image
        near = np.flatnonzero((offset**2).sum(-1) * (3.567 / 4) ** 2 <= 6.0**2)
        out.append(np.stack([near[near != number], np.full(len(near) - 1, number)]))
    return np.concatenate(out, 1)


# name -> (nodes, edges, random numbers) -> pairs (src, dst) [2, E]
HOW: dict[str, Callable[[int, int, np.random.Generator], np.ndarray]] = {
    "complete": _complete,
    "diamond": _diamond,
    "molecules": _molecules,
    "uniform": _uniform,
}


@dataclass(frozen=True)
class GraphSpec:
    """A graph to be made.

    Attributes:
        name: Its name.
        nodes, edges: Their numbers.
        how: A key of ``HOW``.

    Example:
        >>> GraphSpec("water", 3, 6, "complete").edge_index().tolist()
        [[1, 2, 0, 2, 0, 1], [0, 0, 1, 1, 2, 2]]
    """

    name: str
    nodes: int
    edges: int
    how: str = "uniform"

    def edge_index(self, seed: int = 0) -> Tensor:
        """Pairs (src, dst), ``[2, E]`` int64, sorted by dst and then by src, as neighbour lists are.

        Raises:
            ConfigError: That way of connecting gives another number of edges.
        """
        pairs = HOW[self.how](self.nodes, self.edges, np.random.default_rng(seed))
        if pairs.shape[1] != self.edges or (pairs.size and pairs.max() >= self.nodes):
            raise ConfigError(
                f"graph {self.name!r} must have {self.edges} edges between {self.nodes} nodes, how: {self.how} gives "
                f"{pairs.shape[1]}. Correct edges and nodes."
            )
        return torch.from_numpy(pairs[:, np.lexsort(pairs)].astype(np.int64))


def read_graphs(path: Path) -> dict[str, GraphSpec]:
    """The graphs of a file, by name.

    Raises:
        ConfigError: The file does not say what is needed.
    """
    top = read_fields(str(path), read_config(path), {"graphs": "mapping"}, {})
    graphs = {}
    for name, given in top["graphs"].items():
        fields = read_fields(f"{path}, {name}", given, {"nodes": "count", "edges": "count", "how": "text"}, {})
        check_known("value of how", [fields["how"]], HOW, f"{path}, {name}")
        graphs[str(name)] = GraphSpec(str(name), **fields)
    return graphs
