"""Divides the steps of a program into stages, between which parts of a structure exchange rows of atoms."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from .compiler import Compiler
from .memory import INPUTS, OUTPUTS, ProgramStep
from .schedule import Schedule, bytes_of
from .sizes import parts, text_of
from .values import Buffer

#: Kinds of memory: while a stage runs, from stage to stage, and sums that are added to other parts'.
SCRATCH, KEPT, SUMS = range(3)
#: The structures that need memory: large ones run steps again rather than keep their results.
ALWAYS, SMALL, LARGE = range(3)
#: How rows are exchanged after a stage.
HOW = {"copy": 1, "add": 2}


class Entry(NamedTuple):
    """Memory of a part of a structure.

    Attributes:
        buffer: The buffer that lies there.
        kind: SCRATCH, KEPT or SUMS.
        first, last: The first and the last step that uses it.
        stage: The stage in which it lies there; -1 for all.
        when: ALWAYS, or in structures that are SMALL or LARGE.
    """

    buffer: Buffer
    kind: int
    first: int
    last: int
    stage: int = -1
    when: int = 0


class Exchange(NamedTuple):
    """Rows that atoms exchange.

    Attributes:
        buffer: The buffer of rows.
        how: 'copy' from owners to ghosts, or 'add' rows of ghosts to rows of owners.
        written: The stage that computes the rows.
        after: The stage after which they are exchanged.
        gradients: Whether the rows are gradients, which are linear in the factors of energies.
    """

    buffer: Buffer
    how: str
    written: int
    after: int
    gradients: bool


class Stages:
    """The stages of a program and its memory.

    Args:
        compiled: Its steps. If they need the whole structure (``undivided``), there is one stage.

    Attributes:
        steps: Steps of each stage. again: Steps that it runs before, if the structure is large.
        exchanges: In the order of stages. entries: Memory. wide: Buffers that have rows of ghosts.
    """

    def __init__(self, compiled: Compiler) -> None:
        self.undivided = compiled.undivided
        steps = [step for step in compiled.steps if not self.undivided or step.kind not in HOW]
        self.copied = {id(step.reads[0]) for step in steps if step.kind == "copy"}
        self._decide_rows(steps, compiled.buffers)
        exchanged: list[tuple[Buffer, str, int]] = []
        listed, stages = list[ProgramStep](), list[int]()
        for step in steps:
            if step.kind in HOW:
                exchanged.append((step.reads[0], step.kind, len(exchanged)))
            else:
                listed.append(step)
                stages.append(len(exchanged))
        schedule = Schedule(listed, stages, {id(buffer): after for buffer, _, after in exchanged})
        stages, self.again = schedule.stages(), schedule.again()
        self.steps: list[list[ProgramStep]] = [
            [step for step, stage in zip(listed, stages, strict=True) if stage == number]
            for number in range(len(exchanged) + 1)
        ]
        gradients = set[int]()
        for step in listed:
            if any(one.name == "factors" or id(one) in gradients for one in step.reads):
                gradients |= {id(one) for one in step.writes}
        written = [max(n for n, steps in enumerate(self.steps) if _writes(steps, one)) for one, *_ in exchanged]
        self.exchanges = [
            Exchange(buffer, how, last, after, id(buffer) in gradients)
            for (buffer, how, after), last in zip(exchanged, written, strict=True)
        ]
        small, large = self._entries([[]] * len(self.steps), SMALL), self._entries(self.again, LARGE)
        self.entries = [one._replace(when=ALWAYS) for one in small if one._replace(when=LARGE) in large]
        self.entries += [one for one in (*small, *large) if one._replace(when=ALWAYS) not in self.entries]
        self.entries.sort(key=_order)

    def _decide_rows(self, steps: list[ProgramStep], buffers: list[Buffer]) -> None:
        """Write into each step whether it computes rows of local atoms or of ghosts too."""
        needed = {id(one) for one in buffers if one.of_ghosts} - self.copied
        self.wide = {id(one) for one in buffers if one.of_ghosts or not one.by_atom}
        everywhere = set[int]()
        for step in reversed(steps):
            if step.by_atom and any(id(one) in needed for one in step.writes):
                everywhere.add(id(step))
                needed |= {id(one) for one in step.reads} - self.copied
                self.wide |= {id(one) for one in (*step.reads, *step.writes)}
        for step in steps:
            step.text = step.text.replace("ROWS", "A" if id(step) in everywhere else "L")
            for one in step.writes:
                step.text = step.text.replace(f"SIZE({one.name})", self.size_of(one))

    def size_of(self, buffer: Buffer) -> str:
        """The number of elements of a buffer in C."""
        text = text_of(buffer.size)
        return text if id(buffer) in self.wide else text.replace("A", "L")

    def _entries(self, again: list[list[ProgramStep]], when: int) -> list[Entry]:
        uses: dict[int, list[tuple[int, int]]] = {}  # buffer -> steps and stages that use it
        buffers: dict[int, Buffer] = {}
        number, ends = 0, []
        for stage, steps in enumerate(self.steps):
            ends.append((number, number + max(len(self.again[stage]) + len(steps) - 1, 0)))
            number += len(self.again[stage]) - len(again[stage])  # the same numbers with and without them
            for step in (*again[stage], *steps):
                for one in (*step.reads, *step.writes):
                    if one.constant is None and not one.outside:
                        buffers[id(one)] = one
                        uses.setdefault(id(one), []).append((number, stage))
                number += 1
        exchanged = {id(one.buffer): one for one in self.exchanges}
        entries = []
        for key, buffer in buffers.items():
            stages = sorted({stage for _, stage in uses[key]})
            if key not in exchanged:
                if not any(_writes(steps, buffer) for steps in again):
                    kind = SCRATCH if len(stages) == 1 else KEPT
                    entries.append(Entry(buffer, kind, uses[key][0][0], uses[key][-1][0], when=when))
                    continue
                for stage in stages:
                    numbers = [number for number, one in uses[key] if one == stage]
                    entries.append(Entry(buffer, SCRATCH, numbers[0], numbers[-1], stage, when))
                continue
            for stage in stages:
                sums = exchanged[key].how == "add" and exchanged[key].written == stage
                entries.append(Entry(buffer, SUMS if sums else SCRATCH, *ends[stage], stage, when))
        return entries

    def tables(self) -> str:
        """Tables in C of memory and exchanges."""
        rows = []
        for one in self.entries:
            edges, atoms, rest = parts(one.buffer.size)
            counts = (atoms, 0) if id(one.buffer) in self.wide else (0, atoms)
            values = (edges, *counts, rest, one.buffer.dtype.itemsize, one.first, one.last, one.kind, one.when)
            rows.append("{" + ", ".join(map(str, values)) + "}")
        exchanges = [
            f"{{{HOW[one.how]}, {parts(one.buffer.size)[1]}, {one.written}, {one.after}, {int(one.gradients)}}}"
            for one in self.exchanges
        ]
        places = [
            "{" + ", ".join(str(self._place(one.buffer, stage)) for stage in range(len(self.steps))) + "}"
            for one in self.exchanges
        ]
        flags = []
        for steps in zip(self.again, self.steps, strict=True):
            names = {one.name for step in chain(*steps) for one in (*step.reads, *step.writes) if one.outside}
            flags.append(str(sum(1 << bit for bit, name in enumerate((*INPUTS, *OUTPUTS)) if name in names)))
        return (
            f"enum {{ STAGES = {len(self.steps)}, ENTRIES = {len(self.entries)}, EXCHANGES = {len(exchanges)}, "
            f"DIVIDED = {int(not self.undivided)} }};\n"
            f"static const int64_t entries[ENTRIES + 1][9] = {{{', '.join([*rows, '{0}'])}}};\n"
            f"static const int64_t exchanges[EXCHANGES + 1][5] = {{{', '.join([*exchanges, '{0}'])}}};\n"
            f"static const int64_t places_of[EXCHANGES + 1][STAGES] = {{{', '.join([*places, '{0}'])}}};\n"
            f"static const int64_t flags[STAGES] = {{{', '.join(flags)}}};\n"
        )

    def _place(self, buffer: Buffer, stage: int) -> int:
        """The entry of an exchanged buffer in a stage, or -1."""
        numbers = [n for n, one in enumerate(self.entries) if one.buffer is buffer and one.stage == stage]
        return numbers[0] if numbers else -1


def _order(one: Entry) -> tuple[int, float]:
    """The sort key of an entry: kept ones by size times lifetime, the largest first, others by their first use."""
    return one.kind, -bytes_of(one.buffer) * (one.last - one.first + 1) if one.kind == KEPT else one.first


def _writes(steps: list[ProgramStep], buffer: Buffer) -> bool:
    return any(one is buffer for step in steps for one in step.writes)
