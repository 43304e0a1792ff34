"""Suites of products: problems, graphs, peers and goals read from YAML."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ...core.errors import ConfigError
from ...irreps.layout import LAYOUTS
from ..cases import SUITE, Suite, case_name
from ..config import Field, Known, read_fields, read_goals, read_settings
from ..results import GOALS
from .operands import DIRECTIONS
from .problems import GraphSpec, Problem, choose, read_graphs, read_problems

OPERATION = Known("text", "operation", ("product", "conv"))
DTYPES = ("float32", "float64", "bfloat16", "float16")
GROUP: dict[str, Field] = {"operation": OPERATION, "problems": "texts"}
GROUP_OPTIONS: dict[str, tuple[Field, Any]] = {
    "edges": ("counts", []),
    "degree": ("number", 15.0),
    "layouts": (Known("texts", "layout", LAYOUTS), ["mul_ir"]),
    "dtypes": (Known("texts", "dtype", DTYPES), None),
    "directions": (Known("texts", "direction", DIRECTIONS), list(DIRECTIONS)),
    "peers": ("texts", None),
    "goals": (Known("mapping", "goal", GOALS), {}),
}


@dataclass(frozen=True)
class Case:
    """One problem on one graph, with layouts, directions, peers and goals.

    Attributes:
        group: Name of the group in the suite.
        problem: The tensor product.
        operation: 'product', or 'conv': gather by src, product, sum at dst.
        graph: The graph; a product only uses its number of edges.
        layouts: Layouts of this package that are timed.
        directions: Subset of 'fwd', 'bwd', 'double_bwd'.
        peers: Names of the peers, or None for the suite's.
        goals: Quantity, a key of ``GOALS``, -> direction -> value.
        dtype: Dtype of operands and results.
        runs: Timed runs, or None for the suite's.
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
    runs: int | None = None

    @property
    def name(self) -> str:
        """Name: group, problem, graph, and dtype unless float32."""
        return case_name(self.group, self.problem.name, self.graph.name, self.dtype)


def read_suite(name: str) -> Suite:
    """Read a suite with its problems and graphs.

    Args:
        name: Path of a YAML file, or the name of one in `configs/bench`.

    Returns:
        The suite; every problem has been compared with its ``check``.

    Raises:
        ConfigError: A key, value or name is unknown; the message suggests the nearest.

    Example:
        >>> [case.name for case in read_suite("smoke").cases][:2]
        ['unfused/small/E30', 'unfused/odd/E30']
    """
    required: dict[str, Field] = {
        **SUITE,
        "dtype": Known("text", "dtype", DTYPES),
        "peers": "texts",
        "problems": "texts",
    }
    path, top = read_settings(name, required, {"graphs": ("text", None)})
    problems: dict[str, Problem] = {}
    for file in top["problems"]:
        more = read_problems(path.parent / file)
        twice = sorted(problems.keys() & more.keys())
        if twice:
            raise ConfigError(f"{path}: problems must have different names, got {twice[0]!r} twice. Rename one.")
        problems |= more
    graphs = read_graphs(path.parent / top["graphs"]) if top["graphs"] else {}
    cases = [
        case
        for group, fields in top["cases"].items()
        for case in _read_group(f"{path}, {group}", str(group), fields, top["dtype"], problems, graphs)
    ]
    return Suite(path.stem, top["device"], top["threads"], top["runs"], tuple(top["peers"]), tuple(cases))


def _read_group(
    where: str, group: str, entries: Any, dtype: str, problems: dict[str, Problem], graphs: dict[str, GraphSpec]
) -> Iterable[Case]:
    known: dict[str, tuple[Field, Any]] = {"graphs": (Known("texts", "graph", graphs), [])}
    fields = read_fields(where, entries, GROUP, GROUP_OPTIONS | known)
    goals = read_goals(where, fields["goals"], DIRECTIONS)
    specs = [graphs[name] for name in fields["graphs"]]
    specs += [GraphSpec(f"E{edges}", math.ceil(edges / fields["degree"]), edges) for edges in fields["edges"]]
    if not specs:
        raise ConfigError(f"{where}: expected edges: [...] or graphs: [...], got neither. Add one.")
    peers = None if fields["peers"] is None else tuple(fields["peers"])
    shape = (tuple(fields["layouts"]), tuple(fields["directions"]), peers, goals)
    chosen = choose(problems, fields["problems"], f"{where}: problems")
    for problem, spec, case_dtype in product(chosen, specs, fields["dtypes"] or [dtype]):
        yield Case(group, problem, fields["operation"], spec, *shape, case_dtype)
