"""Functions of columns as graphs of sums and products: what polynomials and harmonics are, with all their derivatives.

A formula maps components of its operands to components of its results, for every row and channel alike. Its gradient is
a formula again, of the operands and of cotangents of the results, and so is its derivative along tangents: one kind of
kernel serves every order. `Operand.rows` says which row of an operand belongs to a row of the batch; a result that
has such a map is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from .content import key_of
from .expression import Expression as Expression
from .expression import Node as Node
from .expression import is_number, nested, partials
from .traversal import traversal_of

#: Rows of an operand: one for each row of the batch; one for all; the row of the sender; the row of the receiver.
ROWS = ("each", "one", "src", "dst")


class Block(NamedTuple):
    """Component i of channel c stands in column ``start + i * component + c * channel``, for ``dim`` components."""

    start: int
    dim: int
    component: int = 1
    channel: int = 0


class Operand(NamedTuple):
    """One operand or result: flat rows of blocks."""

    name: str  # for messages
    width: int  # columns of a row
    blocks: tuple[Block, ...]  # where its components stand, in order
    rows: str = "each"  # one of `ROWS`. A result with rows of senders is summed over those that send, and so on

    @property
    def components(self) -> int:
        """Number of components."""
        return sum(block.dim for block in self.blocks)

    def column(self, component: int) -> tuple[int, int]:
        """Column of a component of channel 0, and columns from channel to channel."""
        for block in self.blocks:
            if component < block.dim:
                return block.start + component * block.component, block.channel
            component -= block.dim
        raise IndexError(f"component must be below {self.components}")

    def columns(self, channels: int) -> list[list[int]]:
        """Column of every component and channel."""
        places = (self.column(i) for i in range(self.components))
        return [[start + c * step for c in range(channels)] for start, step in places]


@dataclass(unsafe_hash=True)  # not frozen: torch.compile would take thousands of nodes apart as constants
class Formula:
    """A function of operands; it is never changed. ValueError if a block lies outside its row, or lacks channels."""

    operands: tuple[Operand, ...]  # what it reads
    results: tuple[Operand, ...]  # what it writes
    nodes: tuple[Node, ...]  # its values; each names earlier ones
    #: For each result the node of every component; None where the result is 0.
    outputs: tuple[tuple[int | None, ...], ...]
    channels: int = 0  # channels of every operand and result; 0 if rows have none
    #: Short content hash: equal formulas have equal keys, on every machine.
    key: str = field(init=False, compare=False, repr=False)
    #: Number of an operand that has a row for each row of the batch; None if none has.
    batch: int | None = field(init=False, compare=False, repr=False)
    #: Which kernels are printed for it.
    family = "formula"
    #: It is of no program, and reads no operand from a table.
    program = reading = None

    def __post_init__(self) -> None:
        """Check what a printer relies on: it prints offsets without looking."""
        for one in (*self.operands, *self.results):
            if one.width < 0 or any(block.dim < 0 for block in one.blocks):
                raise ValueError(f"{one.name} must have blocks of 0 components or more, got {one}. Correct the blocks.")
            if one.rows not in ROWS:
                raise ValueError(f"rows of {one.name} must be one of {', '.join(ROWS)}, got {one.rows!r}. Pick one.")
            columns = [c for channel in one.columns(max(self.channels, 1)) for c in channel]
            if columns and (min(columns) < 0 or max(columns) >= one.width or len(set(columns)) < len(columns)):
                raise ValueError(
                    f"blocks of {one.name} must be apart and lie in {one.width} columns, got {one.blocks} of "
                    f"{self.channels} channels. Correct the blocks."
                )
        for number, node in enumerate(self.nodes):
            earlier = () if is_number(node) else node.args
            if any(not 0 <= arg < number for arg in earlier):
                raise ValueError(f"node {number} must name earlier nodes, got {node}. Sort the nodes.")
            if node.kind != "load":
                continue
            operand, component = node.args
            there = 0 <= operand < len(self.operands) and 0 <= component < self.operands[operand].components
            if not there:
                raise ValueError(f"node {number} must load a component that is there, got {node}. Count components.")
        for result, outputs in zip(self.results, self.outputs, strict=True):
            if any(node is not None and not 0 <= node < len(self.nodes) for node in outputs):
                raise ValueError(f"outputs of {result.name} must be nodes, got {outputs}. Count the nodes.")
            if len(outputs) != result.components:
                raise ValueError(
                    f"{result.name} must have {result.components} outputs, got {len(outputs)}. Name a node, or None."
                )
        self.key = key_of(self.content)
        self.batch = next((number for number, one in enumerate(self.operands) if one.rows == "each"), None)

    @property
    def content(self) -> tuple[Any, ...]:
        """All that it is, as plain data."""
        return self.operands, self.results, self.nodes, self.outputs, self.channels

    @cached_property
    def of_nodes(self) -> bool:
        """Whether any operand or result has rows of senders or receivers."""
        return any(one.rows in ("src", "dst") for one in (*self.operands, *self.results))

    @property
    def operations(self) -> int:
        """Sums and products per row and channel."""
        return sum(not is_number(node) for node in self.nodes)

    def __str__(self) -> str:
        """One line per operand and result."""

        def line(sign: str, one: Operand) -> str:
            return f"  {sign} {one.name}: {one.components} components in {one.width} columns, rows {one.rows}"

        head = f"formula {self.key}: {self.operations} operations, {self.channels or 'no'} channels"
        return "\n".join([head, *(line("<-", one) for one in self.operands), *(line("->", o) for o in self.results)])

    def with_rows(self, operands: Sequence[str], results: Sequence[str] | None = None) -> Formula:
        """Copy the formula with other rows of its operands, and of its results."""
        wanted = results or [one.rows for one in self.results]
        return replace(
            self,
            operands=tuple(one._replace(rows=rows) for one, rows in zip(self.operands, operands, strict=True)),
            results=tuple(one._replace(rows=rows) for one, rows in zip(self.results, wanted, strict=True)),
        )

    # -- derivatives --------------------------------------------------------------------------------------------------

    def vjp(self, has_cotangent: Sequence[bool], wanted: Sequence[bool]) -> Formula:
        """The gradients of ``sum(result * cotangent)`` by what is wanted; cotangents are operands behind the others."""
        expr = Expression(self.nodes)
        cotangents = [one for one, has in zip(self.results, has_cotangent, strict=True) if has]
        back: dict[int, int] = {}
        number = len(self.operands)
        for outputs, has in zip(self.outputs, has_cotangent, strict=True):
            for component, node in enumerate(outputs) if has else ():
                if node is not None:
                    back[node] = expr.add(back.get(node, expr.zero), expr.load(number, component))
            number += has
        needed = self._that_depend_on(wanted)
        for place in range(len(self.nodes) - 1, -1, -1):
            if place not in back or place not in needed:
                continue
            for arg, factor in partials(expr, self.nodes[place], place):
                if arg in needed:
                    part = nested(expr, back[place], factor)
                    back[arg] = expr.add(back.get(arg, expr.zero), part)
        loads = {
            node.args: back[place] for place, node in enumerate(self.nodes) if node.kind == "load" and place in back
        }
        nodes_of = tuple(
            tuple(loads.get((number, component)) for component in range(one.components))
            for number, (one, want) in enumerate(zip(self.operands, wanted, strict=True))
            if want
        )
        results = tuple(
            one._replace(name=f"gradient of {one.name}")
            for one, want in zip(self.operands, wanted, strict=True)
            if want
        )
        new = tuple(one._replace(name=f"cotangent of {one.name}") for one in cotangents)
        return _made(expr, (*self.operands, *new), results, nodes_of, self.channels)

    def jvp(self, has_tangent: Sequence[bool]) -> Formula:
        """The derivative of the results along tangents of operands; tangents are operands behind the others."""
        expr = Expression(self.nodes)
        numbers: dict[int, int] = {}
        extra: list[Operand] = []
        for number, (one, moves) in enumerate(zip(self.operands, has_tangent, strict=True)):
            if moves:
                numbers[number] = len(self.operands) + len(extra)
                extra.append(one._replace(name=f"tangent of {one.name}"))
        tangent: dict[int, int] = {}
        for place, node in enumerate(self.nodes):
            if node.kind == "load" and node.args[0] in numbers:
                tangent[place] = expr.load(numbers[node.args[0]], node.args[1])
            elif not is_number(node):
                parts = [
                    nested(expr, tangent[arg], factor) for arg, factor in partials(expr, node, place) if arg in tangent
                ]
                if parts:
                    tangent[place] = expr.add(*parts)
        outputs = tuple(tuple(None if n is None else tangent.get(n) for n in part) for part in self.outputs)
        results = tuple(one._replace(name=f"tangent of {one.name}") for one in self.results)
        return _made(expr, (*self.operands, *extra), results, outputs, self.channels)

    def _that_depend_on(self, wanted: Sequence[bool]) -> set[int]:
        """Nodes that depend on one of these operands."""
        out: set[int] = set()
        for place, node in enumerate(self.nodes):
            if (
                wanted[node.args[0]]
                if node.kind == "load"
                else node.kind != "constant" and any(a in out for a in node.args)
            ):
                out.add(place)
        return out

    def traversals(self, graph: bool) -> dict[str, list[int]]:
        """The numbers of the results that each traversal of the rows computes."""
        if not graph:
            return {"rows": list(range(len(self.results)))}
        out: dict[str, list[int]] = {}
        for number, one in enumerate(self.results):
            if one.rows in ("src", "dst"):
                out.setdefault(traversal_of(one.rows), []).append(number)
        others = [number for number, one in enumerate(self.results) if one.rows not in ("src", "dst")]
        if others:
            rows = {one.rows for one in self.operands}
            first = next(iter(out), traversal_of("src" if "src" in rows and "dst" not in rows else "dst"))
            out.setdefault(first, []).extend(others)
        return out

    def covers(self, number: int) -> bool:
        """Whether the outputs write every column of a result."""
        written = sum(node is not None for node in self.outputs[number])
        return written * max(self.channels, 1) == self.results[number].width

    def part(self, numbers: Sequence[int]) -> Formula:
        """The formula of these results alone, and of their nodes."""
        results, outputs = tuple(self.results[n] for n in numbers), tuple(self.outputs[n] for n in numbers)
        return _made(Expression(self.nodes), self.operands, results, outputs, self.channels)


def _made(
    expr: Expression,
    operands: tuple[Operand, ...],
    results: tuple[Operand, ...],
    outputs: Sequence[Sequence[int | None]],
    channels: int,
) -> Formula:
    """The formula of the nodes that the outputs need, and nothing else."""
    outputs = [[None if node == expr.zero else node for node in part] for part in outputs]
    needed: set[int] = {node for part in outputs for node in part if node is not None}
    for place in range(len(expr.nodes) - 1, -1, -1):
        if place in needed and not is_number(expr.nodes[place]):
            needed.update(expr.nodes[place].args)
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    nodes = tuple(
        node if is_number(node) else Node(node.kind, tuple(numbers[arg] for arg in node.args))
        for node in (expr.nodes[old] for old in sorted(needed))
    )
    placed = tuple(tuple(None if n is None else numbers[n] for n in part) for part in outputs)
    return Formula(operands, results, nodes, placed, channels)


def formula(
    expr: Expression,
    operands: Sequence[Operand],
    results: Sequence[Operand],
    outputs: Sequence[Sequence[int | None]],
    channels: int = 0,
) -> Formula:
    """A formula from the nodes of an expression."""
    return _made(expr, tuple(operands), tuple(results), outputs, channels)


def evaluate(base: Formula, load: Callable[[int, int], Any], primitives: Any) -> list[list[Any]]:
    """The outputs from arrays of any package; ``load`` gives a component of an operand for every row and channel.

    ``primitives`` has ``inverse_length(*vector)``, ``sigmoid(value)`` and ``tanh(value)``.
    """
    values: list[Any] = []
    for node in base.nodes:
        if node.kind == "load":
            values.append(load(*node.args))
        elif node.kind == "constant":
            values.append(node.args[0])
        else:
            args = [values[arg] for arg in node.args]
            if node.kind == "add":
                values.append(args[0] + args[1])
            elif node.kind == "multiply":
                values.append(args[0] * args[1])
            else:
                values.append(getattr(primitives, node.kind)(*args))
    return [[None if n is None else values[n] for n in part] for part in base.outputs]
