"""Cuts a program into kernels that fit the registers, and says where their partial sums go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...arithmetic.product import steps_of
from ...arithmetic.writer import Kind
from ...forms.product import Reading
from ...forms.program import OPERANDS, Path, Program
from ...forms.traversal import TRAVERSALS
from . import tuning
from .printer import KernelText
from .tuning import Cost, Processor


@dataclass(frozen=True)
class ProductPiece:
    """One kernel of a form, its blocks of channels, and its places among the partial sums."""

    text: KernelText
    block: int  # channels of one program of the grid
    blocks: int  # programs per segment
    parts: tuple[int, ...]  # first place of each result, in the order of ``text.results``


@dataclass(frozen=True)
class Plan:
    """All kernels of one request."""

    pieces: tuple[ProductPiece, ...]  # the kernels, in their order: one may add to what another has stored
    parts: dict[str, int]  # number of partial sums of each wanted operand
    covered: dict[str, bool]  # whether the kernels write every column of each partial sum of each wanted operand
    walks: dict[str, str]  # the walk that computes each wanted operand
    added: frozenset[str]  # operands that are added in memory
    stored: bool = False  # whether gradients of x are stored for each edge, and summed by senders behind the kernels


def why_not(program: Program) -> str | None:
    """None if every path has one axis at most, else why printed kernels do not run the program."""
    mixing = sum(any(axis.length > 1 for axis in path.outer) for path in program.paths)
    if mixing:
        return f"has {mixing} of {len(program.paths)} paths that mix channels; backend torch runs them"
    return None


def stores(program: Program, kind: Kind, shared: bool) -> bool:
    """Whether gradients by receivers, with the gradient of x stored for each edge and summed at senders, move less.

    By senders each edge gathers a row of g. By receivers it gathers one of x, writes one, and that is read once more.
    It has as many numbers as the gradient of the weights at most, which is stored for each edge in any case; in half
    precision they are of float32, twice as large.
    """
    x, _, w, z = program.widths
    return "w" in kind.results and not shared and 3 * x < z and x <= w


def _again(program: Program, kind: Kind, double: bool, on: Processor, reads: int) -> bool:
    """Whether kernels that add to what others have stored make that move more all the same."""
    begun: set[int] = set()
    count = 0
    for group in _cut(program.paths, kind, "by_dst", double, on, reads, True):
        slots = {path.x for path in group}
        count += 2 * sum(slot.dim * slot.mul for slot in slots if slot.start in begun)
        begun |= {slot.start for slot in slots}
    x, _, _, z = program.widths
    return 3 * x + count >= z


def walks(kind: Kind, graph: bool, receivers: bool) -> Iterator[tuple[str, Kind]]:
    """The walks that compute a request; row by row without a graph.

    The gradient of a table is summed by places in it, z by receivers. So are other gradients if the gradient of x is
    not among them, or need not be summed at senders (``receivers``): then g is read once for a receiver. Else they are
    computed by senders, and g is gathered for every edge.
    """
    owners = {walk: one.results for walk, one in TRAVERSALS.items()}
    if graph and (receivers or "x" not in kind.results):
        owners |= {"by_dst": "xywcz", "by_src": ""}
    for walk, operands in owners.items():
        results = tuple(name for name in kind.results if name in operands)
        if results:
            yield walk if graph else "rows", kind._replace(results=results)


def plan(
    program: Program,
    kind: Kind,
    graph: bool,
    shared: bool,
    double: bool,
    on: Processor,
    atomic: bool = False,
    reading: Reading | None = None,
    stored: bool | None = None,
) -> Plan:
    """Kernels for what is wanted of a program that `why_not` accepts.

    With a ``graph`` edges of nodes are walked, else rows. ``shared``: one row of weights serves all rows; ``double``:
    sums are formed in float64; ``atomic``: the gradient of x may be added in memory, in no fixed order; ``stored``:
    gradients of x are stored for each edge, to be summed by senders (None where that moves less).
    """
    reads = 0 if reading is None else reading.reads
    if stored is None:
        stored = stores(program, kind, shared) and not _again(program, kind, double, on, reads)
    stored = stored and graph and not atomic and "x" in kind.results
    pieces: list[ProductPiece] = []
    begun: frozenset[int] = frozenset()  # first columns of the slots of x whose gradients some kernel has stored
    taken: dict[tuple[str, int], int] = {}  # (operand, first column of a slot) -> partial sums so far
    count = dict.fromkeys(kind.results, 1)
    for walk, part in walks(kind, graph, atomic or stored):
        for paths in _cut(program.paths, part, walk, double, on, reads, stored):
            channels = paths[0].inner.extent
            block = tuning.channel_block(_cost(paths, part, walk, reads), channels, double, on)
            text = KernelText(program, paths, part, walk, shared, channels % block != 0, reading, stored, begun)
            blocks = -(-channels // block)
            begun |= {path.x.start for path in paths} if stored else set()
            places = []
            for operand in part.results:
                if operand in text.added or (operand == "x" and stored):  # kernels add to the same
                    places.append(0)
                    count[operand] = max(count[operand], blocks if operand in text.partial else 1)
                    continue
                slots = {_start(path, operand) for path in paths}
                place = max((taken.get((operand, slot), 0) for slot in slots), default=0)
                after = place + (blocks if operand in text.partial else 1)
                taken.update({(operand, slot): after for slot in slots})
                count[operand] = max(count[operand], after)
                places.append(place)
            pieces.append(ProductPiece(text, block, blocks, tuple(places)))
    walked = {name: walk for walk, part in walks(kind, graph, atomic or stored) for name in part.results}
    added = frozenset().union(*(piece.text.added for piece in pieces))
    covered = {}
    for name, parts in count.items():
        writers = [piece for piece in pieces if name in piece.text.kind.results]
        whole = all(_covers(program, piece.text.paths, name) and _alike(piece, name) for piece in writers)
        whole = whole and not (name == "x" and stored)
        covered[name] = whole or (parts == 1 and _covers(program, program.paths, name))
    return Plan(tuple(pieces), count, covered, walked, added, stored)


def _alike(piece: ProductPiece, operand: str) -> bool:
    """Whether all of its parts have the same columns: no block of channels has only a part of them."""
    if operand not in piece.text.partial or piece.blocks == 1:
        return True
    return operand not in "tc" and not any(steps_of(path)[operand] for path in piece.text.paths)


def _start(path: Path, operand: str) -> int:
    if operand == "c":
        return 0
    return path.weight or 0 if operand in "wt" else getattr(path, operand).start


def _covers(program: Program, paths: Sequence[Path], operand: str) -> bool:
    if operand == "c":
        return any(path.weight is not None for path in paths)
    width = dict(zip((*OPERANDS, "t"), (*program.widths, program.widths[2]), strict=True))[operand]
    if operand in "wt":
        return sum(path.weight_count for path in paths) == width
    slots = {getattr(path, operand) for path in paths}
    place = "xyz".index(operand)  # components of x and y without a term are not written
    whole = operand == "z" or all(len({t[place] for t in p.terms}) == getattr(p, operand).dim for p in paths)
    return whole and sum(slot.mul * slot.dim for slot in slots) == width


def _cut(
    paths: Sequence[Path], kind: Kind, walk: str, double: bool, on: Processor, reads: int, stored: bool
) -> list[tuple[Path, ...]]:
    """Few kernels with one channel per thread, or more with two: what takes less, by count; fewer if it is close."""

    def work(groups: list[tuple[Path, ...]]) -> int:
        total, begun = 0, set[int]()
        for group in groups:
            total += _work(group, kind, walk, double, on, reads, begun)
            begun |= {path.x.start for path in group} if stored else set()
        return total

    cuts = [list(_groups(paths, kind, walk, double, on, reads, most)) for most in ((1,) if double else (2, 1))]
    fewest = min(map(len, cuts))
    return min(cuts, key=lambda cut: work(cut) * (1 if len(cut) == fewest else tuning.CLOSE))


def _groups(
    paths: Sequence[Path], kind: Kind, walk: str, double: bool, on: Processor, reads: int, most: int
) -> Iterator[tuple[Path, ...]]:
    """Paths that share a kernel: equal channels, values that fit the registers, and equal results if possible."""
    owner = "z" if kind.results == ("z",) else "x"

    def key(path: Path) -> tuple[int, int]:
        return path.inner.extent, getattr(path, owner).start

    def fits(group: Sequence[Path]) -> bool:
        return tuning.fits(_cost(group, kind, walk, reads), group[0].inner.extent, double, on, most)

    group: list[Path] = []
    for (extent, _), run in groupby(sorted(paths, key=key), key=key):
        unit = list(run)
        together = group and group[0].inner.extent == extent
        if group and not (together and fits([*group, *unit])):
            yield tuple(group)
            group = []
        for path in unit:  # one unit may be too much for a kernel
            if group and not fits([*group, path]):
                yield tuple(group)
                group = []
            group.append(path)
    if group:
        yield tuple(group)


def _cost(paths: Sequence[Path], kind: Kind, walk: str, reads: int = 0) -> Cost:
    """A rough cost of a kernel of these paths; compiling shows the real one (printed_kernels.py of the studies)."""
    wanted, weighted = kind.results, sum(path.weight is not None for path in paths)
    kind = kind.of_paths if reads else kind
    copies = {name: 2 if name in kind.tangents else 1 for name in OPERANDS}
    second = 2 if kind.order == 2 else 1
    vectors = scalars = accesses = 0
    for operand in "xy":
        for slot in {getattr(path, operand) for path in paths}:
            result = slot.dim if operand in kind.results else 0
            accesses += slot.dim * copies[operand] + result
            if slot.mul > 1:
                vectors += slot.dim * copies[operand] + result
            else:
                scalars += slot.dim * copies[operand]
                vectors += result
    components = sum(slot.dim for slot in {path.z for path in paths})
    accesses += components + sum(copies["w"] + ("w" in kind.results) for path in paths if path.weight is not None)
    if "z" in kind.results:
        vectors += components
    held = kind.gradients and walk == "by_dst"  # g lives as long as its receiver
    if held:
        vectors += components * copies["z"]
    accesses += weighted * max(reads - 1, 0)
    vectors += reads * (("c" in wanted) + weighted * ("t" in wanted))  # sums for a row, or for a place
    passing = pairs = 0  # what only one path holds
    for path in paths:
        read = 2 + reads
        if kind.gradients:
            read += path.x.dim * second * (2 if "y" in kind.results else 1)
            read += 0 if held else path.z.dim * copies["z"]
        passing = max(passing, read)
        pairs = max(pairs, len({(i, k) for i, _, k, _ in path.terms}) * copies["y"])
    loads, numbers = weighted * copies["w"] * max(1, reads), reads * copies.get("c", 1)
    for operand in _of_rows(walk) if kind.gradients else _of_rows(walk) - {"z"}:
        for slot in {getattr(path, operand) for path in paths}:
            read = slot.dim * copies[operand]
            loads, numbers = (loads + read, numbers) if slot.mul > 1 else (loads, numbers + read)
    return Cost(vectors + passing, scalars + pairs, accesses, loads, numbers)


def _of_rows(walk: str) -> set[str]:
    """Operands whose row changes with every step of the loop, beside the weights."""
    return {"x", "y", "z"} - {TRAVERSALS[walk].operand}


def _work(
    paths: Sequence[Path], kind: Kind, walk: str, double: bool, on: Processor, reads: int, begun: set[int]
) -> int:
    """The work of one step of the loop, in bytes: moved data, instructions, or use of shared memory and lanes.

    Whatever takes longest, roughly. A gradient of x whose slot another kernel has ``begun`` is read again; gradients of
    y are sums over lanes, in a part for every block.
    """
    cost, channels = _cost(paths, kind, walk, reads), paths[0].inner.extent
    loads, numbers = cost.loads, cost.numbers
    stores, sums = sum(path.weight is not None for path in paths) * ("w" in kind.results), 0
    for operand in _of_rows(walk):
        for slot in {getattr(path, operand) for path in paths} if operand in kind.results else ():
            stores, sums = (stores + slot.dim, sums) if slot.mul > 1 else (stores, sums + slot.dim)
    loads += sum(slot.dim for slot in {path.x for path in paths} if slot.start in begun)
    shared = {(path.y, path.terms) for path in paths}  # the compiler sees that they are the same
    once, many = max(1, kind.order) * sum(len(terms) for _, terms in shared), 0
    for path in paths:
        pairs, x = len({(i, k) for i, _, k, _ in path.terms}), path.x.dim
        many += (pairs + path.z.dim, pairs + 2 * x, 5 * pairs + 7 * x)[kind.order]
        if "y" in kind.results:
            many += kind.order * pairs + len(path.terms)
    block = tuning.channel_block(cost, channels, double, on)
    blocks, each, size = -(-channels // block), block // on.lanes, 8 if double else 4
    issued = many * each + once + tuning.ISSUED_PER_ACCESS * cost.accesses
    asked = (2 * loads + stores) * each + 2 * numbers + (1 + on.lanes.bit_length()) * sums
    moved = (loads + stores) * block * size
    longest = max(moved, issued * tuning.BYTES_PER_INSTRUCTION, asked * tuning.BYTES_PER_REQUEST)
    return blocks * (longest + 2 * sums * size) + tuning.BYTES_PER_KERNEL
