"""Lower bounds of the time of a task, from counts of its kernels on two small graphs and from their machine code.

A count that grows from one graph to the other belongs to an edge, the rest to a node.
Limits are taken one by one, kernel by kernel, and overlap perfectly; measured times are expected above them, by a fifth
or more. These are bounds, not times.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.program import OPERANDS, Program
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.print.groups import ProductKernel
from eqlayers_kernels.triton.run import aot
from eqlayers_kernels.triton.run.edges import pack, unpack
from eqlayers_kernels.triton.run.forms import FormRunner

from .arena import Counters
from .emulator import Emulator, Launched, emulated
from .sass import Code, disassemble, read

#: Of the small graphs: nodes, and edges of each node in one and in the other.
NODES, PER = 6, (4, 5)
MOST_WARPS = 32  # blocks of one warp that a multiprocessor holds at most
SECTOR = 32


@dataclass(frozen=True)
class Card:
    """A GPU, by its maker's figures but the last two, which are assumptions.

    Attributes:
        multiprocessors, schedulers, clock: Of the card, of each multiprocessor, per second.
        memory, last_cache: Bytes per second.
        registers, shared: Of a multiprocessor.
        latency: Seconds from a copy to its arrival, under load.
    """

    multiprocessors: int = 132
    schedulers: int = 4
    clock: float = 1.755e9
    memory: float = 4.8e12
    registers: int = 65536
    shared: int = 228 * 1024
    last_cache: float = 5.5e12
    latency: float = 0.8e-6


H200 = Card()


@dataclass(frozen=True)
class Graph:
    """Sizes of a large graph."""

    nodes: int = 3000
    edges: int = 160_000

    @property
    def segments(self) -> int:
        """Programs of a traversal: nodes, and further parts of split nodes."""
        return self.nodes + self.edges // max(8, -(-self.edges // 1024))


@dataclass(frozen=True)
class Bound:
    """Lower bounds of the time of one launch.

    Attributes:
        kernel: Name of the kernel.
        seconds: Lower bound by name of the limit.
    """

    kernel: str
    seconds: Mapping[str, float]

    @property
    def binds(self) -> str:
        """The limit that takes longest."""
        return max(self.seconds, key=lambda name: self.seconds[name])

    @property
    def least(self) -> float:
        """Seconds that the launch takes at least."""
        return self.seconds[self.binds]


def bounds_of(
    program: Program,
    task: Task,
    *,
    atomic: bool = False,
    stored: bool | None = None,
    graph: Graph = Graph(),
    card: Card = H200,
) -> tuple[list[Bound], Emulator]:
    """Bounds of all launches of a task in float32, by sm_90's machine code.

    Args:
        program, kind, atomic, stored: As of ``FormRunner``.
        graph: The large graph.
        card: The processor.

    Returns:
        One for each launch, and the emulator, whose findings say whether it ran well.
    """
    runs = [_run(program, task, atomic, stored, per) for per in PER]
    (runner, few), (_, more) = runs
    bounds = []
    kernels = iter(runner.plan.kernels)
    for one, other in zip(few.launches, more.launches, strict=True):
        if one.name in ("sum_rows", "add_parts", "permute_columns"):
            bounds.append(_plain(one, other, runner, graph, card))
        else:
            bounds.append(_form(one, other, next(kernels), graph, card))
    bounds += _around(runner, graph, card)
    return bounds, more


def _around(runner: FormRunner, graph: Graph, card: Card) -> Iterator[Bound]:
    """Bounds of torch's operations around the kernels: zeros, and sums of parts."""
    for operand, parts in runner.plan.parts.items():
        stored = operand == "x" and runner.plan.stored
        one = 4 * (graph.nodes if operand in "xz" and not stored else graph.edges) * runner.widths[operand]
        filled = not runner.plan.covered[operand] or operand in runner.plan.added
        if filled or parts > 1:
            moved = filled * parts * one + (parts > 1) * (parts + 1) * one
            yield Bound(f"parts of {operand}", {"HBM": moved / card.memory, "L2": moved / card.last_cache})


def floor(program: Program, task: Task, graph: Graph = Graph(), card: Card = H200) -> float:
    """Seconds to read every operand of a task from main memory once, and to write every result once, in float32."""
    rows = {"x": graph.nodes, "y": graph.edges, "w": graph.edges, "z": graph.nodes}
    widths = dict(zip(OPERANDS, program.widths, strict=True))
    return sum(4 * rows[operand] * widths[operand] for _, operand in task.pointers) / card.memory


def _run(program: Program, task: Task, atomic: bool, stored: bool | None, per: int) -> tuple[FormRunner, Emulator]:
    generator = torch.Generator().manual_seed(0)
    src = torch.cat([torch.randperm(NODES, generator=generator) for _ in range(per)])
    dst = torch.arange(NODES).repeat_interleave(per)
    edges = len(src)
    tables = unpack(pack(torch.stack([src, dst]), NODES, NODES), edges, NODES, NODES)
    widths = dict(zip(OPERANDS, program.widths, strict=True))
    with emulated() as gpu:
        runner = FormRunner(program, task, torch.float32, True, False, tuning.PROCESSORS["cuda"], atomic, stored=stored)
        tensors = {
            name: torch.randn(NODES if operand in "xz" else edges, widths[operand], generator=generator)
            for name, operand in runner.inputs
        }
        results = runner(tensors, tables)
    for name, rows in results.items():
        if wrong := int((~torch.isfinite(rows)).sum()):  # a sum of values that no kernel has written is NaN
            gpu.launches[-1].counters.findings[f"numbers of {name} that are none"] += wrong
    return runner, gpu


def _rates(one: Counters, more: Counters, permutes: bool = False) -> tuple[dict[str, float], dict[str, float]]:
    """Counts per edge and per node, from the counters of two graphs."""
    edges, difference = NODES * PER[0], NODES * (PER[1] - PER[0])
    edge: dict[str, float] = {}
    segment: dict[str, float] = {}

    def both(key: str, a: float, b: float) -> None:
        edge[key] = (b - a) / difference
        segment[key] = (a - edges * edge[key]) / NODES

    both("shuffles", one.groups["shuffle"], more.groups["shuffle"])
    both("shared cycles", float(one.shared[1]), float(more.shared[1]))
    totals: dict[tuple[str, str], list[list[float]]] = defaultdict(lambda: [[0.0] * 4, [0.0] * 4])
    for run, counters in enumerate((one, more)):
        for (group, buffer), row in counters.access.items():
            key = (group, re.sub(r"result \((\d+), .*, (\d+)\)", r"result \2", buffer))  # sizes differ
            requests, sectors, lines, useful = (float(number) for number in row)
            if buffer in ("y", "dy") or permutes:  # repeated reads of one row come from the first cache
                sectors = float(counters.distinct.get((group, buffer), 0))
            elif buffer == "nodes":  # tables of edges, read one after the other
                sectors = useful / SECTOR / (1 if group == "load async" else 32)  # all lanes ask for the same
            counts = (sectors, max(requests, useful / 128), lines, useful)
            totals[key][run] = [a + b for a, b in zip(totals[key][run], counts, strict=True)]
    for (group, name), (a, b) in totals.items():
        for column, label in enumerate(("sectors", "requests", "lines", "useful")):
            both(f"{label} {group} {name}", a[column], b[column])
    return edge, segment


def _traffic(rates: Mapping[str, float], gathered: Callable[[str, str], bool]) -> dict[str, float]:
    """Sectors, bytes of main memory, gathered bytes, and memory-unit cycles, per edge or per node."""
    out = {"sectors": 0.0, "hbm": 0.0, "gathered": 0.0, "lsu": rates["shared cycles"] + rates["shuffles"]}
    for key, value in rates.items():
        if key.startswith("sectors "):
            group, name = re.match(r"sectors (load async|\w+) (.*)", key).groups()  # type: ignore[union-attr]
            out["sectors"] += value
            out["gathered" if gathered(group, name) else "hbm"] += SECTOR * value
            if group in ("store", "load"):
                out["lsu"] += rates[f"requests {group} {name}"]
            if group == "atomic":
                out["lsu"] += rates[f"lines {group} {name}"]
    return out


def _form(one: Launched, other: Launched, kernel: ProductKernel, graph: Graph, card: Card) -> Bound:
    edge, segment = _rates(one.counters, other.counters)
    operand, *names = ("x", "dx") if kernel.text.traversal == "by_dst" else ("z", "g")
    width = dict(zip(OPERANDS, kernel.text.program.widths, strict=True))[operand]
    nodes = (operand, *names, f"result ({NODES}, {width})")  # or permuted before
    per_edge = _traffic(edge, lambda group, name: name in nodes or group == "atomic")
    per_segment = _traffic(segment, lambda group, name: False)
    code = read(disassemble(one.compiled.asm["cubin"]))
    return Bound(
        f"{one.name}, {len(kernel.text.paths)} paths", _limits(code, one, kernel, per_edge, per_segment, graph, card)
    )


def _limits(
    code: Code,
    one: Launched,
    kernel: ProductKernel,
    edge: Mapping[str, float],
    segment: Mapping[str, float],
    graph: Graph,
    card: Card,
) -> dict[str, float]:
    registers = -(-aot.resources(one.compiled).registers // 8) * 8 * 32
    shared = one.compiled.metadata.shared + 1024
    warps = min(MOST_WARPS, card.registers // registers, card.shared // shared)
    steps, programs = graph.edges * kernel.blocks, graph.segments * kernel.blocks
    issued = steps * sum(code.loop.values()) + programs * sum(code.outside.values())
    units = card.multiprocessors * card.schedulers * card.clock

    def total(name: str) -> float:
        return graph.edges * edge[name] + graph.nodes * max(0.0, segment[name])

    once = graph.nodes * (max(0.0, segment["hbm"]) + edge["gathered"])  # gathered rows come from main memory once
    return {
        "HBM": (graph.edges * edge["hbm"] + once) / card.memory,
        "L2": SECTOR * total("sectors") / card.last_cache,
        "issue": issued / units,
        "FP32": steps * code.loop["float"] / units,
        "LSU": total("lsu") / (card.multiprocessors * card.clock),
        "latency": steps * card.latency / (card.multiprocessors * warps),
    }


def _plain(one: Launched, other: Launched, runner: FormRunner, graph: Graph, card: Card) -> Bound:
    """The bound of a kernel that sums or permutes: the bytes that it moves."""
    edge, segment = _rates(one.counters, other.counters, one.name == "permute_columns")
    moved = {
        key: SECTOR * (graph.edges * edge[key] + graph.nodes * max(0.0, segment[key]))
        for key in edge
        if key.startswith("sectors ")
    }
    again = sum(of for key, of in moved.items() if key.endswith(" columns"))  # the order of columns is the same for all
    l2 = sum(moved.values())
    return Bound(one.name, {"HBM": (l2 - again) / card.memory, "L2": l2 / card.last_cache})
