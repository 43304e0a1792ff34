"""`eqlayers bench overhead`: host time of one call, layer by layer, beside e3nn's layer of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import e3nn.nn
import torch
from e3nn import o3
from torch import Tensor

from .. import nn
from ..irreps.algebra import as_irreps, channel_major_order
from ..irreps.layout import LAYOUTS
from .config import check_known, find_config, read_config, read_fields
from .host import host_ratios
from .measure import alternate, default_dtype, describe, find_device, keep_random_state, ratio, summary, threads
from .products.operands import Columns, draw
from .products.peers import gathered, ours
from .products.problems import GraphSpec, Problem
from .products.suite import DEVICES, Case
from .results import Record, Say, goal, quiet

FIELDS = {
    **dict.fromkeys(("device", "hidden", "sh", "connected", "layout"), "text"),
    **dict.fromkeys(("nodes", "edges", "threads", "runs"), "count"),
    "goals": "numbers",
}
#: e3nn's gate estimates the second moments of its activations from a million samples: 1e-3, with a margin.
SAMPLED = 1e-2


@dataclass(frozen=True)
class Pair:
    """A layer of this package and e3nn's of the same kind, on the same inputs.

    Attributes:
        ours, theirs: From the inputs in each one's columns to the result; float64 or float32 with the inputs.
        inputs: In e3nn's columns.
        columns: How ours order the columns of each input, and last of the result.
        their_columns: The same for e3nn's, where it wants another order than e3nn's usual one.
        terms: Products that are summed into one number of the result.
        tolerance: Allowed difference besides rounding, relative to the largest entry.
    """

    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    columns: tuple[Columns, ...]
    their_columns: tuple[Columns, ...] = ()
    terms: int = 1
    tolerance: float = 0.0

    def arguments(self, mine: bool, grad: bool) -> list[Tensor]:
        """The inputs in the columns of one of the two."""
        columns: Sequence[Columns] = self.columns if mine else self.their_columns or [Columns()] * len(self.columns)
        found = [c.into(t).contiguous() for c, t in zip(columns, self.inputs, strict=False)]
        return [t.detach().requires_grad_(grad) for t in found]

    def error(self) -> float:
        """Largest difference relative to what is allowed."""
        mine = self.columns[-1].back(self.ours(*self.arguments(True, False)).detach())
        theirs = self.theirs(*self.arguments(False, False)).detach()
        if mine.shape != theirs.shape:
            return float("inf")
        size = float(theirs.abs().max()) or 1.0
        allowed = (self.terms + 16) * torch.finfo(mine.dtype).eps * max(size, 1.0) * self.terms**0.5
        return float((mine - theirs).abs().max()) / (allowed + self.tolerance * size)


class Maker:
    """Makes the pairs of one setting.

    Args:
        fields: The configuration.
        graph: Sizes of the inputs.
        dtype: Of inputs, weights and constants.
    """

    def __init__(self, fields: dict[str, Any], graph: GraphSpec, dtype: torch.dtype) -> None:
        self.fields, self.graph, self.dtype = fields, graph, dtype
        self.device = torch.device(fields["device"])
        self.kind: dict[str, Any] = {"layout": fields["layout"]}
        self.hidden = as_irreps(fields["hidden"], "hidden")

    def order(self, irreps: Any) -> Columns:
        """The columns of irreps in this package's layout."""
        if self.fields["layout"] == "mul_ir":
            return Columns()
        return Columns(torch.from_numpy(channel_major_order(as_irreps(irreps))))

    def random(self, rows: int, width: int) -> Tensor:
        """Random numbers that depend on the shape alone."""
        generator = torch.Generator().manual_seed(width)
        return torch.randn(rows, width, generator=generator, dtype=self.dtype).to(self.device)

    def product(self, operation: str) -> Pair:
        """The channelwise product, or the convolution."""
        problem = Problem("overhead", "uvu", self.fields["hidden"], self.fields["sh"], self.fields["hidden"])
        operands = draw(problem, operation, self.graph, self.dtype, self.device)
        mine = ours(Case("overhead", problem, operation, self.graph), operands, self.fields["layout"])
        theirs = gathered(o3.TensorProduct(**problem.arguments()).to(self.device), operands)
        inputs = tuple(operands.values[name] for name in "xyw")
        terms = 40 * (self.graph.nodes if operation == "conv" else 1)
        return Pair(mine.fn, theirs, inputs, tuple(mine.form[name] for name in "xywz"), terms=terms)

    def linear(self) -> Pair:
        """The linear map of the hidden features."""
        mine, theirs = nn.Linear(self.hidden, self.hidden, **self.kind), o3.Linear(self.hidden, self.hidden)
        mine.load_state_dict({"weight": theirs.weight}, strict=False)
        order = self.order(self.hidden)
        return Pair(
            mine, theirs, (self.random(self.graph.nodes, self.hidden.dim),), (order, order), terms=self.hidden.dim
        )

    def scale(self) -> Pair:
        """One given scalar per irrep copy; e3nn: an elementwise product with scalars."""
        mine = nn.SO3Scale(self.hidden, "external", **self.kind)
        theirs = o3.ElementwiseTensorProduct(self.hidden, f"{self.hidden.num_irreps}x0e")
        inputs = (self.random(self.graph.nodes, self.hidden.dim), self.random(self.graph.nodes, self.hidden.num_irreps))
        order = self.order(self.hidden)
        return Pair(mine, theirs, inputs, (order, Columns(), order))

    def gate(self) -> Pair:
        """The gate; e3nn wants the scalars before the gates."""
        mine = nn.GatedNonlinearity(self.hidden, **self.kind)
        scalars = o3.Irreps([(mul, ir) for mul, ir in self.hidden if ir.l == 0])
        gated = o3.Irreps([(mul, ir) for mul, ir in self.hidden if ir.l > 0])
        gates = o3.Irreps(f"{gated.num_irreps}x0e")
        silu, sigmoid = torch.nn.functional.silu, torch.sigmoid
        theirs = e3nn.nn.Gate(scalars, [silu] * len(scalars), gates, [sigmoid], gated)
        x = self.random(self.graph.nodes, mine.irreps_in.dim)
        first, second = gates.dim, gates.dim + scalars.dim
        swapped = [*range(first, second), *range(first), *range(second, x.shape[1])]
        columns = (self.order(mine.irreps_in), self.order(self.hidden))
        return Pair(mine, theirs, (x,), columns, (Columns(torch.tensor(swapped)), Columns()), tolerance=SAMPLED)

    def connected(self) -> Pair:
        """The fully connected product with internal weights."""
        irreps, sh = as_irreps(self.fields["connected"]), as_irreps(self.fields["sh"])
        mine = nn.FullyConnectedTensorProduct(irreps, sh, irreps, **self.kind)
        theirs = o3.FullyConnectedTensorProduct(irreps, sh, irreps)
        mine.load_state_dict({"weight": theirs.weight}, strict=False)
        inputs = (self.random(self.graph.edges, irreps.dim), self.random(self.graph.edges, sh.dim))
        columns = (self.order(irreps), self.order(sh), self.order(irreps))
        return Pair(mine, theirs, inputs, columns, terms=9 * irreps.dim)


# layer -> how its pair is made
LAYERS: dict[str, Callable[[Maker], Pair]] = {
    "TensorProduct": lambda maker: maker.product("product"),
    "TensorProductConv": lambda maker: maker.product("conv"),
    "Linear": Maker.linear,
    "SO3Scale": Maker.scale,
    "GatedNonlinearity": Maker.gate,
    "FullyConnectedTensorProduct": Maker.connected,
}


def make(layer: str, fields: dict[str, Any], graph: GraphSpec, dtype: torch.dtype) -> Pair:
    """The pair of one layer with constants and weights in a dtype, the same weights in every dtype."""
    with default_dtype(torch.float64), keep_random_state(torch.device(fields["device"])):
        torch.manual_seed(0)
        pair = LAYERS[layer](Maker(fields, graph, dtype))
        for fn in (pair.ours, pair.theirs):
            if isinstance(fn, torch.nn.Module):
                fn.to(fields["device"], dtype)
    return pair


def run_overhead(
    name: str = "overhead", *, num_threads: int | None = None, runs: int | None = None, say: Say = quiet
) -> Record:
    """Time single calls of every layer, after each was compared with e3nn's in float64.

    Args:
        name: Name or path of a configuration.
        num_threads, runs: Instead of the configuration's.
        say: Called with a few words before every step.

    Returns:
        The result, one row for every layer, input and use of gradients.

    Raises:
        ConfigError: The configuration cannot be used.
    """
    path = find_config(name)
    fields = read_fields(str(path), read_config(path), FIELDS, {})
    check_known("device", [fields["device"]], DEVICES, str(path))
    check_known("layout", [fields["layout"]], LAYOUTS, str(path))
    check_known("goal", fields["goals"], ("host_us",), str(path))
    molecule = GraphSpec("one molecule", fields["nodes"], fields["edges"], "complete")
    rows, goals = [], []
    with threads(num_threads or fields["threads"]):
        head = describe(find_device(fields["device"], path.stem))
        for layer in LAYERS:
            for graph in (molecule, GraphSpec("one edge", 1, 1)):
                say(f"{layer}, {graph.name}")
                for row in _rows(layer, fields, graph, runs or fields["runs"]):
                    rows.append(row)
                    if graph is not molecule and "host_us" in fields["goals"]:
                        measured = None if row["ours"] is None else row["ours"]["median"] * 1e6
                        where = f"{layer}, gradients: {row['gradients']}"
                        goals.append(goal("host_us", fields["goals"]["host_us"], measured, where=where))
    ratios = host_ratios() if fields["device"] == "cpu" else {}
    notes = [
        f"{fields['device']}, forward calls in float32, layout {fields['layout']}: the time until a call returns. "
        f"'one molecule': {molecule.nodes} nodes, {molecule.edges} edges. 'one edge': one row, so that the host "
        "is all that costs. Gradients: whether the inputs require them.",
        *(f"Host time of 5 rows on one thread: {what}: {value:.1f}." for what, value in ratios.items()),
    ]
    return {"kind": "overhead", **head, "rows": rows, "goals": goals, "notes": notes, "ratios": ratios}


def _rows(layer: str, fields: dict[str, Any], graph: GraphSpec, runs: int) -> list[Record]:
    about = {"layer": layer, "input": graph.name}
    empty: Record = {"ours": None, "theirs": None, "ratio": None}
    error = make(layer, fields, graph, torch.float64).error()
    pair = make(layer, fields, graph, torch.float32)
    rows: list[Record] = []
    for gradients in (False, True):
        row = about | {"gradients": "yes" if gradients else "no", "error": error}
        if not error <= 1:
            rows.append(row | {"status": f"wrong: {error:.3g} times the allowed difference"} | empty)
            continue
        mine, theirs = pair.arguments(True, gradients), pair.arguments(False, gradients)
        calls = [lambda mine=mine: pair.ours(*mine), lambda theirs=theirs: pair.theirs(*theirs)]
        seconds = alternate(calls, runs, fields["device"], warmup=10, host=True)
        timed = {"ours": summary(seconds[0]), "theirs": summary(seconds[1]), "ratio": ratio(seconds[1], seconds[0])}
        rows.append(row | {"status": "ok"} | timed)
    return rows
