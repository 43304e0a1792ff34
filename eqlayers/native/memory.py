"""Buffers of a native program, and the steps that fill them with elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..core.errors import ConfigError
from ..core.traces.trace import fake_of
from .elements import number
from .sizes import ATOMS, Size, Symbols, parts, product, rows_of, text_of
from .values import TYPES, Buffer, Elementwise, Lines, View, steps

#: Inputs and outputs of a program.
INPUTS, OUTPUTS = ("z", "vectors", "ends", "factors"), ("energies", "slopes")


class NotCompiled(ConfigError):
    """A graph has an operator that no native program can have."""


@dataclass(eq=False)
class ProgramStep:
    """A part of a program.

    Attributes:
        text: C.
        reads, writes: Buffers that it uses.
        kind: For reports: loop, matrix, form or sort; 'copy' or 'add' where atoms are exchanged, see `exchange`.
        node: The node that it computes, for tests.
        work: Multiplications with additions, coded like a size.
    """

    text: str
    reads: list[Buffer]
    writes: list[Buffer]
    kind: str
    node: str = ""
    work: int = 0

    @property
    def by_atom(self) -> bool:
        """Whether it computes rows of atoms, each from the same row of its operands."""
        return "ROWS" in self.text


class Memory:
    """Buffers and steps of a graph.

    Args:
        size: Sizes of the graph as coded integers.
    """

    node: fx.Node  # that is compiled
    dtype: torch.dtype  # of vectors and slopes
    undivided = ""  # why a structure cannot be divided into parts; empty if it can

    def __init__(self, size: Symbols) -> None:
        self.size, self.steps, self.buffers = size, list[ProgramStep](), list[Buffer]()
        self._constants: dict[int, View] = {}
        self.in_range = set[tuple[int, ...]]()  # indices that a step compares with their table
        self._alive = list[Tensor]()  # whose identities are keys

    def new(self, shape: Sequence[int], dtype: torch.dtype, constant: Tensor | None = None) -> View:
        """A buffer of contiguous elements."""
        if dtype not in TYPES:
            raise self.refuse(f"no program has numbers of {dtype}")
        buffer = Buffer(f"b{len(self.buffers)}", dtype, product(shape), constant)
        buffer.by_atom = bool(shape) and parts(shape[0])[1] > 0 and parts(shape[0])[::2] == (0, 0)
        self.buffers.append(buffer)
        return View(buffer, 0, list(shape), steps(shape))

    def shape_of(self, node_or_fake: Any) -> list[int]:
        """Coded sizes of the result of a node."""
        fake = fake_of(node_or_fake) if isinstance(node_or_fake, fx.Node) else node_or_fake
        return [self.size(size) for size in fake.shape]

    def stored(self, value: Any) -> View:
        """The numbers in a buffer."""
        if isinstance(value, Tensor):
            known = self._constants.get(id(value))
            if known is None:
                known = self._constants[id(value)] = self.new(value.shape, value.dtype, value.contiguous())
                self._alive.append(value)
            return known
        if isinstance(value, View):
            return value
        out = self.new(value.shape, value.dtype)
        self.fill(out, value)
        return out

    def packed(self, value: Any) -> View:
        """The numbers in a buffer, one after the other."""
        view = self.stored(value)
        if view.contiguous():
            return view
        out = self.new(view.shape, view.dtype)
        self.fill(out, view)
        return out

    # ---- elements ---------------------------------------------------------------------------------------------------

    def fill(self, out: View, value: Any, add: bool = False) -> None:
        """A step that writes a value to a view, or adds it."""
        lines, names = Lines(), [f"i{axis}" for axis in range(len(out.shape))]
        text = self.element(value, names, lines)
        to = self.at(out, names, lines)
        long = [(name, size) for name, size in zip(names, out.shape, strict=True) if size != 1]
        loops = self.loops([name for name, _ in long], [size for _, size in long])
        for name, size in zip(names, out.shape, strict=True):
            if size == 1:
                lines.lines.insert(0, f"const int64_t {name} = 0; (void){name};")
        body = " ".join([*lines.lines, f"{to} {'+=' if add else '='} {text};"])
        self.add(f"{loops}{{ {body} }}", self.reads_of(value), [out.buffer], "loop")

    def add(self, text: str, reads: Sequence[Buffer], writes: Sequence[Buffer], kind: str, work: int = 0) -> None:
        """Append a step."""
        step = ProgramStep(text, list(reads), list(writes), kind, self.node.name, work)
        if step.by_atom and not all(one.everywhere for one in reads):
            for one in writes:
                one.everywhere = False
        self.steps.append(step)

    # ---- parts of structures ----------------------------------------------------------------------------------------

    def undivide(self, why: str) -> None:
        """Note that this node needs the whole structure."""
        self.undivided = self.undivided or f"{self.node.target} ({self.node.name}): {why}"

    def check_sum(self, rows: int, sums: int) -> None:
        """Note a sum of rows of atoms or edges that is no row of an atom or an edge."""
        if parts(rows)[:2] != (0, 0) and parts(sums)[:2] == (0, 0):
            self.undivide("it sums over all atoms or edges")

    def seen_by_receivers(self, view: View) -> View:
        """The elements of senders, which may be ghosts: computed, or else copied from their owners."""
        if not view.buffer.everywhere:
            if view.buffer.of_ghosts:  # a buffer is exchanged once, and this one had sums of ghosts
                sums, view = view, self.new(view.shape, view.dtype)
                self.fill(view, sums)
            self.exchange(view.buffer, "copy")
        view.buffer.of_ghosts = True
        return view

    def summed_for_senders(self, view: View) -> None:
        """Add sums of ghosts to their owners' sums."""
        view.buffer.of_ghosts = True
        self.exchange(view.buffer, "add")

    def exchange(self, buffer: Buffer, how: str) -> None:
        """End a stage: owners' elements are copied to their ghosts, or ghosts' elements are added to their owners'."""
        if not buffer.by_atom or buffer.dtype is not self.dtype:
            self.undivide("the rows that atoms exchange are in another order, or of another dtype")
        self.steps.append(ProgramStep("", [buffer], [buffer], how, self.node.name))
        buffer.everywhere = how == "copy"

    def reads_of(self, value: Any) -> list[Buffer]:
        """Buffers that a value is computed from."""
        if isinstance(value, Elementwise):
            return value.reads
        return [self.stored(value).buffer] if isinstance(value, (View, Tensor)) else []

    def loops(self, names: Sequence[str], shape: Sequence[int]) -> str:
        """Loops over indices in C."""
        return "".join(
            f"for (int64_t {name} = 0; {name} < {rows_of(size)}; {name}++) "
            for name, size in zip(names, shape, strict=True)
        )

    def number(self, value: Any, dtype: torch.dtype) -> str:
        """A number of Python, or a size, in C."""
        if isinstance(value, Size) and value >= ATOMS // 2:
            self.undivide("it computes with the number of atoms or edges")
        return f"(({TYPES[dtype]}){text_of(value)})" if isinstance(value, Size) else number(value, dtype)

    def at(self, view: View, names: Sequence[str], lines: Lines) -> str:
        """The element of a view in C."""
        terms = [text_of(view.offset)] if view.offset else []
        for name, size, stride in zip(names, view.shape, view.strides, strict=True):
            if size != 1 and stride:
                terms.append(name if stride == 1 else f"{name} * {text_of(stride)}")
        return f"{view.buffer.name}[{' + '.join(terms) or '0'}]"

    def element(self, value: Any, names: Sequence[str], lines: Lines) -> str:
        """An element of a value in C, whose last axes have the indices ``names``."""
        if isinstance(value, (bool, int, float)):
            return self.number(value, torch.float64 if isinstance(value, float) else torch.int64)
        if isinstance(value, Tensor):
            if value.numel() == 1:
                return number(value.item(), value.dtype)
            value = self.stored(value)
        names = names[len(names) - len(value.shape) :] if value.shape else []
        if isinstance(value, View):
            return self.at(value, names, lines)
        indices = ["0" if size == 1 else name for name, size in zip(names, value.shape, strict=True)]
        return lines.local(value.dtype, value.write(indices, lines))

    def refuse(self, why: str) -> NotCompiled:
        """The error for a node."""
        target = self.node.meta.get("original_aten", self.node.target)
        return NotCompiled(
            f"the network must consist of operators that a native program has, got {target} "
            f"({self.node.name}): {why}. Run it by Python."
        )
