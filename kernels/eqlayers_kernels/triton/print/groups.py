"""Divides a program into kernels whose values fit into the registers, and numbers their partial sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...arithmetic.product import steps_of
from ...arithmetic.writer import Task
from ...forms.formula import TRAVERSALS
from ...forms.product import Reading
from ...forms.program import OPERANDS, Path, Program
from . import tuning
from .printer import KernelText
from .tuning import Cost, Processor


@dataclass(frozen=True)
class ProductKernel:
    """One kernel of a product, its blocks of channels, and the indices of its partial sums."""

    text: KernelText
    block: int  # channels of one program of the grid
    blocks: int  # programs per segment
    parts: tuple[int, ...]  # index of the first partial sum of each result, in the order of ``text.results``


@dataclass(frozen=True)
class Plan:
    """All kernels of one task, and how their results are combined."""

    kernels: tuple[ProductKernel, ...]  # in the order of launches: a kernel may add to an earlier one's result
    parts: dict[str, int]  # number of partial sums of each result
    covered: dict[str, bool]  # for each result, whether the kernels write every column of each partial sum
    traversals: dict[str, str]  # the traversal that computes each result
    added: frozenset[str]  # results that are added by atomics
    stored: bool = False  # whether gradients of x are stored for each edge, then summed by senders


def why_not(program: Program) -> str | None:
    """None if printed kernels can run the program (each path has at most one channel axis), else the reason."""
    mixing = sum(any(axis.length > 1 for axis in path.outer) for path in program.paths)
    if mixing:
        return f"has {mixing} of {len(program.paths)} paths that mix channels; backend torch runs them"
    return None


def stores(program: Program, task: Task, shared: bool) -> bool:
    """Whether computing gradients by receivers, with the gradient of x stored for each edge, moves less memory.

    By senders each edge gathers a row of g. By receivers it gathers a row of x, and writes and reads one gradient of x.
    That gradient must not be larger than the gradient of the weights, which is stored for each edge in any case.
    """
    x, _, w, z = program.widths
    return "w" in task.results and not shared and 3 * x < z and x <= w


def _again(program: Program, task: Task, double: bool, on: Processor, reads: int) -> bool:
    """Whether storing gradients of x for each edge moves no less memory, because several kernels add to them.

    `stores` decides for one kernel; each further kernel reads and writes the stored gradients again.
    """
    begun: set[int] = set()
    count = 0
    for group in _cut(program.paths, task, "by_dst", double, on, reads, True):
        slots = {path.x for path in group}
        count += 2 * sum(slot.dim * slot.mul for slot in slots if slot.start in begun)
        begun |= {slot.start for slot in slots}
    x, _, _, z = program.widths
    return 3 * x + count >= z


def traversals(task: Task, graph: bool, receivers: bool) -> Iterator[tuple[str, Task]]:
    """The traversals that compute the results of a task, and the task of each; row by row without a graph.

    The gradient of a table is summed by intervals, z by receivers. Other gradients are computed by receivers, where g
    is read once, if the gradient of x is not among them or need not be summed at senders (``receivers``). Else they
    are computed by senders, and g is gathered for every edge.
    """
    owners = {traversal: one.results for traversal, one in TRAVERSALS.items()}
    if graph and (receivers or "x" not in task.results):
        owners |= {"by_dst": "xywcz", "by_src": ""}
    for traversal, operands in owners.items():
        results = tuple(name for name in task.results if name in operands)
        if results:
            yield traversal if graph else "rows", task._replace(results=results)


def plan(
    program: Program,
    task: Task,
    graph: bool,
    shared: bool,
    double: bool,
    on: Processor,
    atomic: bool = False,
    reading: Reading | None = None,
    stored: bool | None = None,
) -> Plan:
    """Plan the kernels of a task, for a program that `why_not` accepts.

    ``graph``: the rows are edges of a graph; ``shared``: one row of weights serves all rows; ``double``: sums are
    formed in float64; ``atomic``: the gradient of x may be added by atomics, in no fixed order; ``stored``: gradients
    of x are stored for each edge, to be summed by senders (None: if that moves less memory).
    """
    reads = 0 if reading is None else reading.reads
    if stored is None:
        stored = stores(program, task, shared) and not _again(program, task, double, on, reads)
    stored = stored and graph and not atomic and "x" in task.results
    kernels: list[ProductKernel] = []
    begun: frozenset[int] = frozenset()  # first columns of the slots of x whose gradients some kernel has stored
    used: dict[tuple[str, int], int] = {}  # (operand, first column of a slot) -> partial sums so far
    count, computed_by = dict.fromkeys(task.results, 1), dict[str, str]()
    for traversal, part in traversals(task, graph, atomic or stored):
        computed_by |= dict.fromkeys(part.results, traversal)
        for paths in _cut(program.paths, part, traversal, double, on, reads, stored):
            channels = paths[0].inner.extent
            block = tuning.channel_block(_cost(paths, part, traversal, reads), channels, double, on)
            text = KernelText(program, paths, part, traversal, shared, channels % block != 0, reading, stored, begun)
            blocks = -(-channels // block)
            begun |= {path.x.start for path in paths} if stored else set()
            part_indices = []
            for operand in part.results:
                if operand in text.added or (operand == "x" and stored):  # kernels add to the same
                    part_indices.append(0)
                    count[operand] = max(count[operand], blocks if operand in text.partial else 1)
                    continue
                columns = ((path.weight or 0) if operand in "wt" else getattr(path, operand).start for path in paths)
                slots = {0} if operand == "c" else set(columns)
                position = max((used.get((operand, slot), 0) for slot in slots), default=0)
                after = position + (blocks if operand in text.partial else 1)
                used.update({(operand, slot): after for slot in slots})
                count[operand] = max(count[operand], after)
                part_indices.append(position)
            kernels.append(ProductKernel(text, block, blocks, tuple(part_indices)))
    added = frozenset().union(*(kernel.text.added for kernel in kernels))
    covered = {}
    for name, parts in count.items():
        writers = [kernel for kernel in kernels if name in kernel.text.task.results]
        whole = all(_covers(program, kernel.text.paths, name) and _alike(kernel, name) for kernel in writers)
        whole = whole and not (name == "x" and stored)
        covered[name] = whole or (parts == 1 and _covers(program, program.paths, name))
    return Plan(tuple(kernels), count, covered, computed_by, added, stored)


def _alike(kernel: ProductKernel, operand: str) -> bool:
    """Whether all blocks of channels of a kernel write the same columns of a result."""
    if operand not in kernel.text.partial or kernel.blocks == 1:
        return True
    return operand not in "tc" and not any(steps_of(path)[operand] for path in kernel.text.paths)


def _covers(program: Program, paths: Sequence[Path], operand: str) -> bool:
    if operand == "c":
        return any(path.weight is not None for path in paths)
    width = dict(zip((*OPERANDS, "t"), (*program.widths, program.widths[2]), strict=True))[operand]
    if operand in "wt":
        return sum(path.weight_count for path in paths) == width
    slots = {getattr(path, operand) for path in paths}
    position = "xyz".index(operand)  # components of x and y without a term are not written
    whole = operand == "z" or all(len({t[position] for t in p.terms}) == getattr(p, operand).dim for p in paths)
    return whole and sum(slot.mul * slot.dim for slot in slots) == width


def _cut(
    paths: Sequence[Path], task: Task, traversal: str, double: bool, on: Processor, reads: int, stored: bool
) -> list[tuple[Path, ...]]:
    """Divide paths into kernels, with one or two channels per thread: the estimated faster way, or fewer kernels."""

    def work(groups: list[tuple[Path, ...]]) -> int:
        total, begun = 0, set[int]()
        for group in groups:
            total += _work(group, task, traversal, double, on, reads, begun)
            begun |= {path.x.start for path in group} if stored else set()
        return total

    cuts = [list(_groups(paths, task, traversal, double, on, reads, most)) for most in ((1,) if double else (2, 1))]
    fewest = min(map(len, cuts))
    return min(cuts, key=lambda cut: work(cut) * (1 if len(cut) == fewest else tuning.CLOSE))


def _groups(
    paths: Sequence[Path], task: Task, traversal: str, double: bool, on: Processor, reads: int, most: int
) -> Iterator[tuple[Path, ...]]:
    """The paths of each kernel: paths of one number of channels, whose values fit the registers together.

    Paths with the same block of x (of z, for a kernel of z alone) are in one kernel if they fit. ``most`` is the
    largest number of channels per thread.
    """
    owner = "z" if task.results == ("z",) else "x"

    def key(path: Path) -> tuple[int, int]:
        return path.inner.extent, getattr(path, owner).start

    def fits(group: Sequence[Path]) -> bool:
        return tuning.fits(_cost(group, task, traversal, reads), group[0].inner.extent, double, on, most)

    group: list[Path] = []
    for (extent, _), run in groupby(sorted(paths, key=key), key=key):
        unit = list(run)
        together = group and group[0].inner.extent == extent
        if group and not (together and fits([*group, *unit])):
            yield tuple(group)
            group = []
        for path in unit:  # one group of equal results may be too large for a kernel
            if group and not fits([*group, path]):
                yield tuple(group)
                group = []
            group.append(path)
    if group:
        yield tuple(group)


def _cost(paths: Sequence[Path], task: Task, traversal: str, reads: int = 0) -> Cost:
    """The estimated registers, accesses and loads of a kernel of these paths."""
    results, weighted = task.results, sum(path.weight is not None for path in paths)
    task = task.of_paths if reads else task
    copies = {name: 2 if name in task.tangents else 1 for name in OPERANDS}
    second = 2 if task.order == 2 else 1
    vectors = scalars = accesses = 0
    for operand in "xy":
        for slot in {getattr(path, operand) for path in paths}:
            result = slot.dim if operand in task.results else 0
            accesses += slot.dim * copies[operand] + result
            if slot.mul > 1:
                vectors += slot.dim * copies[operand] + result
            else:
                scalars += slot.dim * copies[operand]
                vectors += result
    components = sum(slot.dim for slot in {path.z for path in paths})
    accesses += components + sum(copies["w"] + ("w" in task.results) for path in paths if path.weight is not None)
    if "z" in task.results:
        vectors += components
    held = task.gradients and traversal == "by_dst"  # g lives as long as its receiver
    if held:
        vectors += components * copies["z"]
    accesses += weighted * max(reads - 1, 0)
    vectors += reads * (("c" in results) + weighted * ("t" in results))  # sums for a row, or for an interval
    passing = pairs = 0  # values that only one path holds
    for path in paths:
        read = 2 + reads
        if task.gradients:
            read += path.x.dim * second * (2 if "y" in task.results else 1)
            read += 0 if held else path.z.dim * copies["z"]
        passing = max(passing, read)
        pairs = max(pairs, len({(i, k) for i, _, k, _ in path.terms}) * copies["y"])
    loads, numbers = weighted * copies["w"] * max(1, reads), reads * copies.get("c", 1)
    for operand in _of_rows(traversal) if task.gradients else _of_rows(traversal) - {"z"}:
        for slot in {getattr(path, operand) for path in paths}:
            read = slot.dim * copies[operand]
            loads, numbers = (loads + read, numbers) if slot.mul > 1 else (loads, numbers + read)
    return Cost(vectors + passing, scalars + pairs, accesses, loads, numbers)


def _of_rows(traversal: str) -> set[str]:
    """Operands whose row changes with every step of the loop, beside the weights."""
    return {"x", "y", "z"} - {TRAVERSALS[traversal].operand}


def _work(
    paths: Sequence[Path], task: Task, traversal: str, double: bool, on: Processor, reads: int, begun: set[int]
) -> int:
    """The estimated cost of one step of the loop, in bytes of memory traffic: the slowest of several limits.

    Limits are moved data, instructions, and requests to shared memory and lanes. A gradient of x whose slot another
    kernel has ``begun`` is read again; gradients of y are sums over lanes, one partial sum for every block.
    """
    cost, channels = _cost(paths, task, traversal, reads), paths[0].inner.extent
    loads, numbers = cost.loads, cost.numbers
    stores, sums = sum(path.weight is not None for path in paths) * ("w" in task.results), 0
    for operand in _of_rows(traversal):
        for slot in {getattr(path, operand) for path in paths} if operand in task.results else ():
            stores, sums = (stores + slot.dim, sums) if slot.mul > 1 else (stores, sums + slot.dim)
    loads += sum(slot.dim for slot in {path.x for path in paths} if slot.start in begun)
    shared = {(path.y, path.terms) for path in paths}  # the compiler sees that they are the same
    once, many = max(1, task.order) * sum(len(terms) for _, terms in shared), 0
    for path in paths:
        pairs, x = len({(i, k) for i, _, k, _ in path.terms}), path.x.dim
        many += (pairs + path.z.dim, pairs + 2 * x, 5 * pairs + 7 * x)[task.order]
        if "y" in task.results:
            many += task.order * pairs + len(path.terms)
    block = tuning.channel_block(cost, channels, double, on)
    blocks, each, size = -(-channels // block), block // on.lanes, 8 if double else 4
    issued = many * each + once + tuning.ISSUED_PER_ACCESS * cost.accesses
    requests = (2 * loads + stores) * each + 2 * numbers + (1 + on.lanes.bit_length()) * sums
    moved = (loads + stores) * block * size
    longest = max(moved, issued * tuning.BYTES_PER_INSTRUCTION, requests * tuning.BYTES_PER_REQUEST)
    return blocks * (longest + 2 * sums * size) + tuning.BYTES_PER_KERNEL
