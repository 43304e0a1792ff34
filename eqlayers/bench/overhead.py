"""The command `eqlayers bench overhead`: host time of a call of each layer, and of e3nn's corresponding layer."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import e3nn.nn
import torch
from e3nn import o3
from torch import Tensor

from .. import nn
from ..core.dtypes import default_dtype
from ..core.graph import Graph
from ..irreps.algebra import as_irreps
from ..irreps.layout import LAYOUTS, to_ir_mul, to_mul_ir
from .config import DEVICE, Field, Known, read_settings
from .measure import alternate, describe, find_device, keep_random_state, ratio, summary, threads
from .operators import SMALL, STEPS, missing, operators_of, times_of
from .products.problems import GraphSpec, Problem
from .results import Record, Say, goal, quiet
from .step import E3nnConv

FIELDS: dict[str, Field] = {
    "device": DEVICE,
    **dict.fromkeys(("hidden", "sh", "connected"), "text"),
    **dict.fromkeys(("nodes", "edges", "threads", "runs"), "count"),
    "layout": Known("text", "layout", LAYOUTS),
    "goals": Known("numbers", "goal", ("host_us",)),
}
#: Largest difference in float64, relative to the largest entry: sums of a thousand terms.
ALLOWED = 1e3 * torch.finfo(torch.float64).eps


class Setting:
    """Irreps and graph of a configuration."""

    def __init__(self, fields: dict[str, Any], graph: GraphSpec) -> None:
        self.hidden, self.sh, self.mixed = (as_irreps(fields[key], key) for key in ("hidden", "sh", "connected"))
        self.graph, self.copies = graph, as_irreps(f"{self.hidden.num_irreps}x0e")
        problem = Problem("overhead", "uvu", *map(str, (self.hidden, self.sh, self.hidden)))
        self.product, self.out = problem.arguments(), problem.irreps_out
        self.operands = [self.hidden, self.sh, as_irreps(f"{problem.weight_numel}x0e")]


class Layers(NamedTuple):
    """A layer of this package, the corresponding one of e3nn, and their inputs."""

    ours: Callable[..., torch.nn.Module]  # constructor with the argument layout
    theirs: torch.nn.Module
    inputs: list[o3.Irreps]
    out: o3.Irreps
    rows: str  # one letter for each input: n for nodes, e for edges
    order: Any = slice(None)  # columns of the input in e3nn's order
    with_graph: bool = False


def _gates(s: Setting) -> Layers:
    """The gate; in e3nn's input, scalars precede gates."""
    ours = partial(nn.GatedNonlinearity, s.hidden)
    scalars, gated = (o3.Irreps([group for group in s.hidden if (group.ir.l > 0) is high]) for high in (False, True))
    gates = o3.Irreps(f"{gated.num_irreps}x0e")
    theirs = e3nn.nn.Gate(scalars, [torch.nn.functional.silu] * len(scalars), gates, [torch.sigmoid], gated)
    for acts, name in ((theirs.act_scalars.acts, "silu"), (theirs.act_gates.acts, "sigmoid")):
        for act in acts:
            act.cst = nn.NormalizedActivation(name).factor  # e3nn's is an estimate
    first, second, width = gates.dim, gates.dim + scalars.dim, gates.dim + s.hidden.dim
    order = [*range(first, second), *range(first), *range(second, width)]
    return Layers(ours, theirs, [ours().irreps_in], s.hidden, "n", order)


# layer -> function that builds it and its peer
LAYERS: dict[str, Callable[[Setting], Layers]] = {
    "TensorProduct": lambda s: Layers(
        partial(nn.TensorProduct, **s.product), o3.TensorProduct(**s.product), s.operands, s.out, "eee"
    ),
    "TensorProductConv": lambda s: Layers(
        partial(nn.TensorProductConv, **s.product),
        E3nnConv(o3.TensorProduct(**s.product)),
        *(s.operands, s.out, "nee"),
        with_graph=True,
    ),
    "Linear": lambda s: Layers(
        partial(nn.Linear, s.hidden, s.hidden), o3.Linear(s.hidden, s.hidden), [s.hidden], s.hidden, "n"
    ),
    "SO3Scale": lambda s: Layers(
        partial(nn.SO3Scale, s.hidden, "external"),
        o3.ElementwiseTensorProduct(s.hidden, s.copies),
        *([s.hidden, s.copies], s.hidden, "nn"),
    ),
    "GatedNonlinearity": _gates,
    "FullyConnectedTensorProduct": lambda s: Layers(
        partial(nn.FullyConnectedTensorProduct, s.mixed, s.sh, s.mixed),
        o3.FullyConnectedTensorProduct(s.mixed, s.sh, s.mixed),
        *([s.mixed, s.sh], s.mixed, "ee"),
    ),
}


class Pair:
    """Both layers of a row in a dtype, with equal weights, and their inputs."""

    def __init__(self, layer: str, fields: dict[str, Any], graph: GraphSpec, dtype: torch.dtype) -> None:
        device = torch.device(fields["device"])
        with default_dtype(torch.float64), keep_random_state(device):
            torch.manual_seed(0)
            self.row = row = LAYERS[layer](Setting(fields, graph))
            self.ours, self.theirs = row.ours(layout=fields["layout"]), row.theirs
        weights = {key: value for key, value in self.theirs.state_dict().items() if key == "weight" and value.numel()}
        self.ours.load_state_dict(weights, strict=False)
        for module in (self.ours, self.theirs):
            module.to(device, dtype)
        sizes = {"n": graph.nodes, "e": graph.edges}
        self.inputs = []
        for at, irreps in zip(row.rows, row.inputs, strict=True):  # equal numbers for equal shapes
            generator = torch.Generator().manual_seed(irreps.dim)
            drawn = torch.randn(sizes[at], irreps.dim, generator=generator, dtype=torch.float64)
            self.inputs.append(drawn.to(device, dtype))
        self.layout = fields["layout"]
        index = graph.edge_index().to(device) if row.with_graph else None
        self.graph = [] if index is None else [Graph(index, graph.nodes, graph.nodes)]

    def arguments(self, mine: bool, grad: bool) -> list[Any]:
        """Inputs in the column order and layout of this package's layer (``mine``) or of e3nn's."""
        values = self.inputs if mine else [t[:, self.row.order] for t in self.inputs]
        if mine and self.layout == "ir_mul":
            values = [to_ir_mul(t, irreps) for t, irreps in zip(values, self.row.inputs, strict=True)]
        return [*(t.detach().requires_grad_(grad) for t in values), *self.graph]

    def error(self) -> float:
        """Largest difference relative to the allowed one."""
        mine = self.ours(*self.arguments(True, False)).detach()
        mine = to_mul_ir(mine, self.row.out) if self.layout == "ir_mul" else mine
        theirs = self.theirs(*self.arguments(False, False)).detach()
        if mine.shape != theirs.shape:
            return float("inf")
        return float((mine - theirs).abs().max() / theirs.abs().max()) / ALLOWED


def run_overhead(
    name: str = "overhead", *, num_threads: int | None = None, runs: int | None = None, say: Say = quiet
) -> Record:
    """Compare each layer with e3nn's in float64, and time single calls."""
    path, fields = read_settings(name, FIELDS)
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
    ratios: dict[str, float] = {}
    notes = [
        f"{fields['device']}, forward calls in float32, layout {fields['layout']}: the time until a call returns. "
        f"'one molecule': {molecule.nodes} nodes, {molecule.edges} edges. 'one edge': one row, so that the host "
        "is all that costs. Gradients: whether the inputs require them."
    ]
    if fields["device"] == "cpu":
        ratios = host_ratios()
        notes += [f"Host time on one thread: {what}: {value:.1f}." for what, value in ratios.items()]
        if (reason := missing()) is not None:
            notes.append(reason)
        for what, (build, _) in STEPS.items() if reason is None else ():
            operators, kernels = operators_of(build)
            notes.append(f"{what}: {operators} operators of torch; {kernels} of them are kernels of this package.")
        steps = {what: build for what, (build, _) in STEPS.items()} | SMALL
        for what, build in steps.items() if reason is None else ():
            say(f"{what}, compiled")
            eager, compiled, first = (1e3 * seconds for seconds in times_of(build))
            notes.append(
                f"{what}: {eager:.1f} ms by Python, {compiled:.1f} ms compiled ({compiled / eager:.2f}), "
                f"{first / 1e3:.1f} s for the first compiled one."
            )
    return {"kind": "overhead", **head, "rows": rows, "goals": goals, "notes": notes, "ratios": ratios}


def _rows(layer: str, fields: dict[str, Any], graph: GraphSpec, runs: int) -> list[Record]:
    about = {"layer": layer, "input": graph.name}
    empty: Record = {"ours": None, "theirs": None, "ratio": None}
    error = Pair(layer, fields, graph, torch.float64).error()
    pair = Pair(layer, fields, graph, torch.float32)
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


# -- in units of the same run -----------------------------------------------------------------------------------------

#: Operands of calls that are compared with torch.add or an empty autograd Function.
ROWS, IRREPS, SH = 5, "8x0e + 8x1o", "0e + 1o"
PATHS = [(0, 0, 0, "uvu", True), (1, 1, 0, "uvu", True), (0, 1, 1, "uvu", True)]


class Bare(torch.autograd.Function):
    """An autograd Function without computation, the cheapest differentiable call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor) -> Tensor:  # noqa: D102
        return x.new_empty(ROWS, x.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: D102
        return None, None, None


def host_ratios(repeats: int = 100, calls: int = 50) -> dict[str, float]:
    """Host times of calls relative to torch.add or an empty autograd Function: ratios of the fastest repeats.

    Returns:
        'call, unit' -> ratio.
    """
    x, y = torch.randn(ROWS, 32), torch.randn(ROWS, 4)
    layer = nn.TensorProduct(IRREPS, SH, IRREPS, PATHS, layout="ir_mul")
    conv = nn.TensorProductConv(IRREPS, SH, IRREPS, PATHS, layout="ir_mul", shared_weights=False)
    graph, w = Graph(torch.arange(2 * ROWS).view(2, ROWS) % ROWS, ROWS), torch.randn(ROWS, conv.weight_numel)
    small = SMALL if missing() is None else {}
    timed: dict[str, tuple[bool, Callable[[], Any]]] = {
        "add": (False, lambda: torch.add(x, x)),
        "Function": (True, lambda: Bare.apply(x, y, layer.weight)),
        "product, tape": (True, lambda: layer(x, y)),
        "product": (False, lambda: layer(x, y)),
        "convolution": (False, lambda: conv(x, y, w, graph)),
        **{name: (True, build().run) for name, build in small.items()},
    }
    best = dict.fromkeys(timed, float("inf"))
    with threads(1):
        for _ in range(repeats):
            for name, (taped, call) in timed.items():
                with torch.set_grad_enabled(taped):
                    call()
                    number = 1 if name in small else calls
                    best[name] = min(best[name], timeit.timeit(call, number=number) / number)
    return {
        f"TensorProduct of {ROWS} rows with a tape, bare autograd Functions": best["product, tape"] / best["Function"],
        f"TensorProduct of {ROWS} rows without a tape, torch.add": best["product"] / best["add"],
        f"TensorProductConv of {ROWS} rows with a Graph, without a tape, torch.add": best["convolution"] / best["add"],
        **{f"{name}, torch.add": best[name] / best["add"] for name in small},
    }
