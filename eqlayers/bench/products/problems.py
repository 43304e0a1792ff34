"""Benchmark problems (irreps and paths of a product, with check numbers) and graphs, read from YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ...core.checks import check_choice
from ...core.errors import ConfigError
from ...irreps.algebra import as_irreps, wigner_3j
from ...irreps.instructions import paths
from ..config import Field, Known, read_config, read_fields

WEIGHTS = ("per edge", "shared")
FACTS = ("dim in1", "dim in2", "dim out", "weight_numel", "paths", "nonzero CG terms")
# mode -> irreps of the output and instructions, from (in1, in2, out); for 'uvu', out lists allowed irreps
PATHS: dict[str, Callable[[o3.Irreps, o3.Irreps, o3.Irreps], tuple[o3.Irreps, list[tuple[Any, ...]]]]] = {
    "uvu": lambda in1, in2, out: paths(in1, in2, out),
    "uvw": lambda in1, in2, out: paths(in1, in2, irreps_out=out, mode="uvw"),
}


@dataclass(frozen=True)
class Problem:
    """A tensor product to benchmark.

    Attributes:
        name: Name.
        mode: 'uvu' (each path has a separate output) or 'uvw' (paths share the given output).
        in1, in2, out: Irreps as text; for 'uvu', ``out`` lists the allowed irreps of outputs.
        weights: 'per edge' or 'shared'.

    Example:
        >>> Problem("small", "uvu", "4x0e+4x1o", "0e+1o", "0e+1o").facts()
        (16, 4, 32, 16, 4, 10)
    """

    name: str
    mode: str
    in1: str
    in2: str
    out: str
    weights: str = "per edge"

    def __post_init__(self) -> None:
        """Check mode and weights."""
        check_choice("mode", self.mode, PATHS)
        check_choice("weights", self.weights, WEIGHTS)

    @cached_property
    def irreps_in1(self) -> o3.Irreps:
        """Irreps of the node features."""
        return as_irreps(self.in1, f"in1 of {self.name}")

    @cached_property
    def irreps_in2(self) -> o3.Irreps:
        """Irreps of the edge attributes."""
        return as_irreps(self.in2, f"in2 of {self.name}")

    @cached_property
    def _paths(self) -> tuple[o3.Irreps, list[tuple[Any, ...]]]:
        return PATHS[self.mode](self.irreps_in1, self.irreps_in2, as_irreps(self.out, f"out of {self.name}"))

    @property
    def irreps_out(self) -> o3.Irreps:
        """Irreps of the result."""
        return self._paths[0]

    @property
    def instructions(self) -> list[tuple[Any, ...]]:
        """Instructions ``(i_in1, i_in2, i_out, mode, has_weight)``."""
        return self._paths[1]

    @property
    def irreps(self) -> tuple[o3.Irreps, o3.Irreps, o3.Irreps]:
        """Irreps of both inputs and of the result."""
        return self.irreps_in1, self.irreps_in2, self.irreps_out

    @property
    def degrees(self) -> list[tuple[int, int, int]]:
        """Degrees of both inputs and of the result, of every path."""
        in1, in2, out = self.irreps
        return [(in1[i].ir.l, in2[j].ir.l, out[k].ir.l) for i, j, k, *_ in self.instructions]

    @property
    def shared(self) -> bool:
        """Whether all edges share one set of weights."""
        return self.weights == "shared"

    @cached_property
    def path_weights(self) -> list[int]:
        """Number of weights of each path, per edge unless shared."""
        muls = [[r[index].mul for r, index in zip(self.irreps, ins[:3], strict=True)] for ins in self.instructions]
        return [u * v * (w if self.mode == "uvw" else 1) for u, v, w in muls]

    @property
    def weight_numel(self) -> int:
        """Number of weights, per edge unless shared."""
        return sum(self.path_weights)

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``TensorProduct`` of e3nn and of this package."""
        named = dict(zip(("irreps_in1", "irreps_in2", "irreps_out"), self.irreps, strict=True))
        return named | {"instructions": self.instructions, "shared_weights": self.shared, "internal_weights": False}

    def facts(self) -> tuple[int, ...]:
        """Numbers named by ``FACTS``: dimensions, weights, paths, nonzero Clebsch-Gordan coefficients."""
        terms = sum(int(np.count_nonzero(wigner_3j(*ls))) for ls in self.degrees)
        return (*(r.dim for r in self.irreps), self.weight_numel, len(self.instructions), terms)


def read_problems(path: Path) -> dict[str, Problem]:
    """Read problems from a file, and compare each with its ``check``.

    Args:
        path: A YAML file: ``mode``, and ``problems`` by name with in1, in2, out, check and optionally weights.

    Returns:
        Problems by name.

    Raises:
        ConfigError: The file lacks fields, or numbers of a problem differ from its check.
        IrrepsError: Irreps are invalid.
    """
    fields: dict[str, Field] = {"mode": Known("text", "mode", PATHS), "problems": "mapping"}
    top = read_fields(str(path), read_config(path), fields)
    problems = {}
    needed: dict[str, Field] = {"in1": "text", "in2": "text", "out": "text", "check": "counts"}
    optional = {"weights": (Known("text", "value of weights", WEIGHTS), "per edge")}
    for name, entries in top["problems"].items():
        where = f"{path}, {name}"
        values = read_fields(where, entries, needed, optional)
        check = tuple(values.pop("check"))
        problem = Problem(str(name), top["mode"], **values)
        if problem.facts() != check:
            raise ConfigError(
                f"{where}: the irreps must have check = {list(check)} ({', '.join(FACTS)}), they have "
                f"{list(problem.facts())}. Correct the irreps or the numbers."
            )
        problems[str(name)] = problem
    return problems


def choose(problems: Mapping[str, Problem], patterns: Sequence[str], where: str) -> list[Problem]:
    """Problems whose names match one of some patterns; each pattern must match."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in problems):
            raise ConfigError(f"{where} must match a problem among {', '.join(problems)}, got {pattern!r}. Correct it.")
    return [problem for name, problem in problems.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]


# -- graphs -----------------------------------------------------------------------------------------------------------


def _molecules(nodes: int, edges: int, rng: np.random.Generator, count: int = 32) -> np.ndarray:
    """Random edges within ``count`` molecules of about equal size."""
    bounds = np.linspace(0, nodes, count + 1).astype(np.int64)
    dst = rng.integers(0, nodes, edges)
    molecule = np.searchsorted(bounds, dst, side="right") - 1
    start, size = bounds[molecule], np.diff(bounds)[molecule]
    src = start + (dst - start + 1 + rng.integers(0, np.maximum(size - 1, 1))) % size
    return np.stack([src, dst])


def _diamond(nodes: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    """Edges of a periodic diamond crystal (a = 3.567 A) between all neighbours within 6 A."""
    cells = round((nodes / 8) ** (1 / 3))
    lattice = np.array([[0, 0, 0], [0, 2, 2], [2, 0, 2], [2, 2, 0]])
    basis = np.concatenate([lattice, lattice + 1])  # in quarters of the cell
    corners = 4 * np.stack(np.meshgrid(*[np.arange(cells)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
    atoms, length, out = (corners + basis).reshape(-1, 3), 4 * cells, []
    for number, atom in enumerate(atoms):
        offset = (atoms - atom + length // 2) % length - length // 2  # the nearest image
        near = np.flatnonzero((offset**2).sum(-1) * (3.567 / 4) ** 2 <= 6.0**2)
        out.append(np.stack([near[near != number], np.full(len(near) - 1, number)]))
    return np.concatenate(out, 1)


# name -> (nodes, edges, random numbers) -> pairs (src, dst) [2, E]
HOW: dict[str, Callable[[int, int, np.random.Generator], np.ndarray]] = {
    "complete": lambda nodes, edges, rng: np.argwhere(~np.eye(nodes, dtype=bool)).T,
    "diamond": _diamond,
    "molecules": _molecules,
    "uniform": lambda nodes, edges, rng: rng.integers(0, nodes, (2, edges)),
}


@dataclass(frozen=True)
class GraphSpec:
    """Specification of a graph: numbers of nodes and edges, and a key of ``HOW`` for its edges.

    Example:
        >>> GraphSpec("water", 3, 6, "complete").edge_index().tolist()
        [[1, 2, 0, 2, 0, 1], [0, 0, 1, 1, 2, 2]]
    """

    name: str
    nodes: int
    edges: int
    how: str = "uniform"

    def edge_index(self, seed: int = 0) -> Tensor:
        """Generate edges (src, dst) ``[2, E]`` int64, sorted by dst, then src."""
        pairs = HOW[self.how](self.nodes, self.edges, np.random.default_rng(seed))
        if pairs.shape[1] != self.edges or (pairs.size and pairs.max() >= self.nodes):
            raise ConfigError(
                f"graph {self.name!r} must have {self.edges} edges between {self.nodes} nodes, how: {self.how} gives "
                f"{pairs.shape[1]}. Correct edges and nodes."
            )
        return torch.from_numpy(pairs[:, np.lexsort(pairs)].astype(np.int64))


def read_graphs(path: Path) -> dict[str, GraphSpec]:
    """Read specifications of graphs by name from a file."""
    graphs = {}
    needed: dict[str, Field] = {"nodes": "count", "edges": "count", "how": Known("text", "value of how", HOW)}
    for name, entries in read_fields(str(path), read_config(path), {"graphs": "mapping"})["graphs"].items():
        graphs[str(name)] = GraphSpec(str(name), **read_fields(f"{path}, {name}", entries, needed))
    return graphs
