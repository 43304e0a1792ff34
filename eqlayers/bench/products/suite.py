"""Suites: which problems are timed, on how many edges or which graph, the peers, and the goals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from ...core.errors import ConfigError
from ...irreps.layout import LAYOUTS
from ..config import check_known, find_config, matching, read_config, read_fields, read_goals
from ..results import GOALS
from .operands import DIRECTIONS
from .problems import GraphSpec, Problem, read_graphs, read_problems

OPERATIONS = ("product", "conv")
DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "float64", "bfloat16", "float16")
TOP = {"device": "text", "dtype": "text", "threads": "count", "runs": "count", "peers": "texts", "problems": "texts"}
GROUP = {"operation": "text", "problems": "texts"}
GROUP_OPTIONS: dict[str, tuple[str, Any]] = {
    "edges": ("counts", []),
    "degree": ("number", 15.0),
    "graphs": ("texts", []),
    "layouts": ("texts", ["mul_ir"]),
    "dtypes": ("texts", None),
    "directions": ("texts", list(DIRECTIONS)),
    "peers": ("texts", None),
    "goals": ("mapping", {}),
}


@dataclass(frozen=True)
class Case:
    """One problem on one set of operands: the implementations of it are checked and timed side by side.

    Attributes:
        group: Name of the group in the suite.
        problem: The tensor product.
        operation: 'product', or 'conv': gather by src, product, sum at dst.
        graph: The graph; for a product only its number of edges counts.
        layouts: Layouts of this package that are timed.
        directions: Subset of 'fwd', 'bwd', 'double_bwd'.
        peers: Names of the peers, or None for the suite's.
        goals: Quantity to direction to value; the quantities are listed in ``GOALS``.
        dtype: Of operands and results.
    """

    group: str
    problem: Problem
    operation: str
    graph: GraphSpec
    layouts: tuple[str, ...] = ("mul_ir",)
    directions: tuple[str, ...] = DIRECTIONS
    peers: tuple[str, ...] | None = None
    goals: dict[str, dict[str, float]] = field(default_factory=dict)
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """Group, problem and graph, and the dtype if it is not float32."""
        parts = (self.group, self.problem.name, self.graph.name, *([self.dtype] if self.dtype != "float32" else []))
        return "/".join(parts)


@dataclass(frozen=True)
class Suite:
    """Cases with what is common to them.

    Attributes:
        name: Name of the file.
        device: Of the operands.
        threads: Threads of torch.
        runs: Timed runs of every implementation and direction.
        peers: Names of peers, unless a case has its own.
        cases: The cases, in order.
    """

    name: str
    device: str
    threads: int
    runs: int
    peers: tuple[str, ...]
    cases: tuple[Case, ...]

    def only(self, pattern: str | None) -> Suite:
        """The suite with the cases whose name matches a pattern such as ``unfused/mace-*``.

        Raises:
            ConfigError: None does.
        """
        return replace(self, cases=matching(self.cases, pattern, self.name))


def read_suite(name: str) -> Suite:
    """Read a suite with its problems and graphs.

    Args:
        name: Path of a YAML file, or the name of one in `configs/bench`.

    Returns:
        The suite; every problem has been compared with its ``check``.

    Raises:
        ConfigError: A key, a value or a name that is not known; the message has the nearest one.

    Example:
        >>> [case.name for case in read_suite("smoke").cases][:2]
        ['unfused/small/E30', 'unfused/odd/E30']
    """
    path = find_config(name)
    top = read_fields(str(path), read_config(path), {**TOP, "cases": "mapping"}, {"graphs": ("text", None)})
    for what, known in (("device", DEVICES), ("dtype", DTYPES)):
        check_known(what, [top[what]], known, str(path))
    problems: dict[str, Problem] = {}
    for file in top["problems"]:
        found = read_problems(path.parent / file)
        twice = sorted(problems.keys() & found.keys())
        if twice:
            raise ConfigError(f"{path}: problems must have different names, got {twice[0]!r} twice. Rename one.")
        problems |= found
    graphs = read_graphs(path.parent / top["graphs"]) if top["graphs"] else {}
    cases = [
        case
        for group, given in top["cases"].items()
        for case in _read_group(f"{path}, {group}", str(group), given, top["dtype"], problems, graphs)
    ]
    common = {key: top[key] for key in ("device", "threads", "runs")}
    return Suite(path.stem, **common, peers=tuple(top["peers"]), cases=tuple(cases))


def _read_group(
    where: str, group: str, given: Any, dtype: str, problems: dict[str, Problem], graphs: dict[str, GraphSpec]
) -> Iterable[Case]:
    fields = read_fields(where, given, GROUP, GROUP_OPTIONS)
    dtypes = fields["dtypes"] or [dtype]
    check_known("operation", [fields["operation"]], OPERATIONS, where)
    check_known("layout", fields["layouts"], LAYOUTS, where)
    check_known("dtype", dtypes, DTYPES, where)
    check_known("direction", fields["directions"], DIRECTIONS, where)
    check_known("graph", fields["graphs"], graphs, where)
    check_known("goal", fields["goals"], GOALS, where)
    goals = read_goals(where, fields["goals"], DIRECTIONS)
    chosen = [p for p in problems.values() if any(fnmatchcase(p.name, pattern) for pattern in fields["problems"])]
    for pattern in fields["problems"]:
        if not any(fnmatchcase(name, pattern) for name in problems):
            raise ConfigError(f"{where}: {pattern!r} must match a problem among {', '.join(problems)}. Correct it.")
    specs = [graphs[name] for name in fields["graphs"]]
    specs += [GraphSpec(f"E{edges}", math.ceil(edges / fields["degree"]), edges) for edges in fields["edges"]]
    if not specs:
        raise ConfigError(f"{where}: expected edges: [...] or graphs: [...], got neither. Add one.")
    peers = None if fields["peers"] is None else tuple(fields["peers"])
    shape = (tuple(fields["layouts"]), tuple(fields["directions"]), peers, goals)
    for problem, spec, kind in product(chosen, specs, dtypes):
        yield Case(group, problem, fields["operation"], spec, *shape, kind)
