"""Formulas: polynomials, spherical harmonics and other functions as graphs of sums and products, with derivatives.

A formula maps components of its operands to components of its results, in the same way for every row and channel. Its
gradient is a formula of the operands and of cotangents of the results, and its derivative along tangents is, too, so
the same kernels serve every order. `Operand.rows` says which row of an operand belongs to a row of the batch; results
with rows 'one', 'src' or 'dst' are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, count
from typing import Any, NamedTuple

from .expression import Expression as Expression
from .expression import Node as Node
from .expression import is_number, nested, partials
from .program import key_of

#: Rows of an operand: one for each row of the batch; one for all; the row of the sender; the row of the receiver.
ROWS = ("each", "one", "src", "dst")


class Traversal(NamedTuple):
    """One order of rows, and the operands and results whose rows belong to its nodes."""

    rows: str  # which operands and results have a row for each node, see `Operand.rows`; empty without nodes
    operand: str  # the operand of a product that has these rows
    results: str  # the operands of a product whose gradients are computed in this order along a graph; z is the product


TRAVERSALS = {
    "rows": Traversal("", "", ""),
    "by_dst": Traversal("dst", "z", "z"),
    "by_src": Traversal("src", "x", "xywc"),
    # by receivers on one thread: gradients of x are added to the rows of the senders; it may replace "by_src"
    "to_src": Traversal("dst", "z", ""),
    "by_place": Traversal("table", "t", "t"),  # by knot interval; this key is part of names in printed kernels
}


def traversal_of(rows: str) -> str:
    """The key in `TRAVERSALS` by which a result with rows ``rows`` is summed."""
    return next((name for name, traversal in TRAVERSALS.items() if traversal.rows == rows), "rows")


class Block(NamedTuple):
    """Columns of ``dim`` components: component i of channel c is column ``start + i * component + c * channel``."""

    start: int
    dim: int
    component: int = 1
    channel: int = 0


class Operand(NamedTuple):
    """An operand or result of a form: its name, columns of a row, blocks of components, and which rows it has."""

    name: str  # for messages
    width: int  # columns of a row
    blocks: tuple[Block, ...]  # columns of its components, in order
    rows: str = "each"  # one of `ROWS`; a result with rows 'src' is a sum over the edges of each sender

    @property
    def components(self) -> int:
        """Number of components."""
        return sum(block.dim for block in self.blocks)

    def column(self, component: int) -> tuple[int, int]:
        """Column of a component in channel 0, and the number of columns from channel to channel."""
        for block in self.blocks:
            if component < block.dim:
                return block.start + component * block.component, block.channel
            component -= block.dim
        raise IndexError(f"component must be below {self.components}")

    def columns(self, channels: int) -> list[list[int]]:
        """Column of every component and channel."""
        starts = (self.column(i) for i in range(self.components))
        return [[start + c * step for c in range(channels)] for start, step in starts]


def renamed(what: str, operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """The shapes of operands for their tangents, cotangents or gradients, with names such as 'gradient of x'."""
    return tuple(operand._replace(name=f"{what} of {operand.name}") for operand in operands)


@dataclass(unsafe_hash=True)  # not frozen: torch.compile would trace thousands of nodes as constants
class Formula:
    """A function of operands as a graph of nodes; immutable. ValueError for blocks outside a row, or that overlap."""

    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    nodes: tuple[Node, ...]  # arguments of a node are numbers of earlier nodes
    #: For each result the node of every component; None where the result is 0.
    outputs: tuple[tuple[int | None, ...], ...]
    channels: int = 0  # channels of every operand and result; 0 if rows have none
    #: Short content hash: equal formulas have equal keys, on every machine.
    key: str = field(init=False, compare=False, repr=False)
    #: Number of the first operand with rows 'each'; None if there is none.
    batch: int | None = field(init=False, compare=False, repr=False)
    #: The key of printers and runners of kernels.
    family = "formula"
    #: A formula has no program and reads no weights from a table.
    program = reading = None

    def __post_init__(self) -> None:
        """Check columns and node numbers, which printers of kernels use unchecked."""
        for item in (*self.operands, *self.results):
            if item.width < 0 or any(block.dim < 0 for block in item.blocks):
                raise ValueError(
                    f"{item.name} must have blocks of 0 components or more, got {item}. Correct the blocks."
                )
            if item.rows not in ROWS:
                raise ValueError(f"rows of {item.name} must be one of {', '.join(ROWS)}, got {item.rows!r}. Pick one.")
            columns = [c for channel in item.columns(max(self.channels, 1)) for c in channel]
            if columns and (min(columns) < 0 or max(columns) >= item.width or len(set(columns)) < len(columns)):
                raise ValueError(
                    f"blocks of {item.name} must be apart and lie in {item.width} columns, got "
                    f"{item.blocks} of {self.channels} channels. Correct the blocks."
                )
        for number, node in enumerate(self.nodes):
            earlier = () if is_number(node) else node.args
            if any(not 0 <= arg < number for arg in earlier):
                raise ValueError(f"node {number} must name earlier nodes, got {node}. Sort the nodes.")
            if node.op != "load":
                continue
            operand, component = node.args
            is_known = 0 <= operand < len(self.operands) and 0 <= component < self.operands[operand].components
            if not is_known:
                raise ValueError(f"node {number} must load a component that is there, got {node}. Count components.")
        for result, outputs in zip(self.results, self.outputs, strict=True):
            if any(node is not None and not 0 <= node < len(self.nodes) for node in outputs):
                raise ValueError(f"outputs of {result.name} must be nodes, got {outputs}. Count the nodes.")
            if len(outputs) != result.components:
                raise ValueError(
                    f"{result.name} must have {result.components} outputs, got {len(outputs)}. Name a node, or None."
                )
        self.key = key_of(self.content)
        #: Whether any operand or result has rows of senders or receivers.
        self.of_nodes = any(operand.rows in ("src", "dst") for operand in (*self.operands, *self.results))
        self.batch = next((number for number, operand in enumerate(self.operands) if operand.rows == "each"), None)

    @property
    def content(self) -> tuple[Any, ...]:
        """The formula as plain data."""
        return self.operands, self.results, self.nodes, self.outputs, self.channels

    @property
    def operations(self) -> int:
        """Sums and products per row and channel."""
        return sum(not is_number(node) for node in self.nodes)

    def __str__(self) -> str:
        """One line per operand and result."""

        def line(sign: str, operand: Operand) -> str:
            name, width, _, rows = operand
            return f"  {sign} {name}: {operand.components} components in {width} columns, rows {rows}"

        head = f"formula {self.key}: {self.operations} operations, {self.channels or 'no'} channels"
        return "\n".join([head, *(line("<-", o) for o in self.operands), *(line("->", o) for o in self.results)])

    def with_rows(self, operands: Sequence[str], results: Sequence[str] | None = None) -> Formula:
        """Copy the formula with other rows of its operands, and of its results."""
        requested = results or [result.rows for result in self.results]
        return replace(
            self,
            operands=tuple(operand._replace(rows=rows) for operand, rows in zip(self.operands, operands, strict=True)),
            results=tuple(operand._replace(rows=rows) for operand, rows in zip(self.results, requested, strict=True)),
        )

    # -- derivatives --------------------------------------------------------------------------------------------------

    def vjp(self, has_cotangent: Sequence[bool], requested: Sequence[bool]) -> Formula:
        """The gradients of ``sum(result * cotangent)`` by the requested operands; cotangents are appended operands."""
        expr = Expression(self.nodes)
        back: dict[int, int] = {}
        number = len(self.operands)
        for outputs, has in zip(self.outputs, has_cotangent, strict=True):
            for component, node in enumerate(outputs) if has else ():
                if node is not None:
                    back[node] = expr.add(back.get(node, expr.zero), expr.load(number, component))
            number += has
        needed: set[int] = set()  # nodes that depend on one of the requested operands
        for index, one in enumerate(self.nodes):
            depends = needed.intersection(() if is_number(one) else one.args)
            if depends or (one.op == "load" and requested[one.args[0]]):
                needed.add(index)
        for index in range(len(self.nodes) - 1, -1, -1):
            if index not in back or index not in needed:
                continue
            for arg, factor in partials(expr, self.nodes[index], index):
                if arg in needed:
                    part = nested(expr, back[index], factor)
                    back[arg] = expr.add(back.get(arg, expr.zero), part)
        loads = {node.args: back[index] for index, node in enumerate(self.nodes) if node.op == "load" and index in back}
        nodes_of = [
            [loads.get((number, component)) for component in range(operand.components)]
            for number, operand in compress(enumerate(self.operands), requested)
        ]
        new = renamed("cotangent", compress(self.results, has_cotangent))
        results = renamed("gradient", compress(self.operands, requested))
        return formula(expr, (*self.operands, *new), results, nodes_of, self.channels)

    def jvp(self, has_tangent: Sequence[bool]) -> Formula:
        """The derivative of the results along tangents of operands; tangents are appended operands."""
        expr = Expression(self.nodes)
        extra = renamed("tangent", compress(self.operands, has_tangent))
        numbers = dict(zip(compress(count(), has_tangent), count(len(self.operands)), strict=False))
        tangent: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            if node.op == "load" and node.args[0] in numbers:
                tangent[index] = expr.load(numbers[node.args[0]], node.args[1])
            elif not is_number(node):
                parts = [
                    nested(expr, tangent[arg], factor) for arg, factor in partials(expr, node, index) if arg in tangent
                ]
                if parts:
                    tangent[index] = expr.add(*parts)
        outputs = tuple(tuple(None if n is None else tangent.get(n) for n in part) for part in self.outputs)
        return formula(expr, (*self.operands, *extra), renamed("tangent", self.results), outputs, self.channels)

    def traversals(self, graph: bool) -> dict[str, list[int]]:
        """The numbers of the results that each traversal (a key of `TRAVERSALS`) computes."""
        if not graph:
            return {"rows": list(range(len(self.results)))}
        out: dict[str, list[int]] = {}
        for number, result in enumerate(self.results):
            if result.rows in ("src", "dst"):
                out.setdefault(traversal_of(result.rows), []).append(number)
        others = [number for number, result in enumerate(self.results) if result.rows not in ("src", "dst")]
        if others:
            rows = {operand.rows for operand in self.operands}
            first = next(iter(out), traversal_of("src" if "src" in rows and "dst" not in rows else "dst"))
            out.setdefault(first, []).extend(others)
        return out

    @property
    def moving(self) -> list[bool]:
        """Whether any component of each result is more than 0."""
        return [any(node is not None for node in outputs) for outputs in self.outputs]

    def covers(self, number: int) -> bool:
        """Whether the outputs write every column of a result."""
        written = sum(node is not None for node in self.outputs[number])
        return written * max(self.channels, 1) == self.results[number].width

    def part(self, numbers: Sequence[int]) -> Formula:
        """The formula of some results alone, with the nodes that they need."""
        results, outputs = tuple(self.results[n] for n in numbers), tuple(self.outputs[n] for n in numbers)
        return formula(Expression(self.nodes), self.operands, results, outputs, self.channels)


def formula(
    expr: Expression,
    operands: Sequence[Operand],
    results: Sequence[Operand],
    outputs: Sequence[Sequence[int | None]],
    channels: int = 0,
) -> Formula:
    """A formula from the nodes of an expression: only those that the outputs need, renumbered."""
    outputs = [[None if node == expr.zero else node for node in part] for part in outputs]
    needed: set[int] = {node for part in outputs for node in part if node is not None}
    for index in range(len(expr.nodes) - 1, -1, -1):
        if index in needed and not is_number(expr.nodes[index]):
            needed.update(expr.nodes[index].args)
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    nodes = tuple(
        node if is_number(node) else Node(node.op, tuple(numbers[arg] for arg in node.args))
        for node in (expr.nodes[old] for old in sorted(needed))
    )
    renumbered = tuple(tuple(None if n is None else numbers[n] for n in part) for part in outputs)
    return Formula(tuple(operands), tuple(results), nodes, renumbered, channels)


def evaluate(base: Formula, load: Callable[[int, int], Any], primitives: Any) -> list[list[Any]]:
    """Evaluate a formula on arrays of any package; ``load(operand, component)`` is the array of a component.

    ``primitives`` has ``inverse_length(*vector)``, and the functions of one value in `FUNCTIONS`.
    """
    values: list[Any] = []
    for node in base.nodes:
        if node.op == "load":
            values.append(load(*node.args))
        elif node.op == "constant":
            values.append(node.args[0])
        else:
            args = [values[arg] for arg in node.args]
            if node.op == "add":
                values.append(args[0] + args[1])
            elif node.op == "multiply":
                values.append(args[0] * args[1])
            else:
                values.append(getattr(primitives, node.op)(*args))
    return [[None if n is None else values[n] for n in part] for part in base.outputs]
