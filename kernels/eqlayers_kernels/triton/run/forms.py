"""Runs printed kernels: makes them at first use, allocates results, launches, and adds up partial sums."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...arithmetic.writer import RESULTS, Kind
from ...forms.product import Reading
from ...forms.program import OPERANDS, Program
from ..print import tuning
from ..print.groups import plan
from ..segment import launch
from .compiling import KernelCall, launched
from .edges import TraversalTables
from .turn import turn_of

#: Columns that one program of the kernel that adds up pieces covers, and pieces that it reads at a time.
GATHERED = {"BLOCK": 1024, "AT_ONCE": 4}


@cache
def function(source: str, name: str) -> Any:
    """The kernel of that name in a module's text; Triton reads the text from where tracebacks do."""
    module = ModuleType(f"eqlayers_generated_{hashlib.sha256(source.encode()).hexdigest()[:16]}")
    path = f"<{module.__name__}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    exec(compile(source, path, "exec"), module.__dict__)
    return getattr(module, name)


class FormRunner:
    """One request of `plan` for one form, in a dtype; half precision is summed in float32."""

    def __init__(
        self,
        program: Program,
        kind: Kind,
        dtype: torch.dtype,
        graph: bool,
        shared: bool,
        on: tuning.Processor,
        atomic: bool = False,
        reading: Reading | None = None,
        stored: bool | None = None,
    ) -> None:
        self.reading = reading
        self.kind, self.dtype, self.shared = kind, dtype, shared
        self.turn = turn_of(program, graph)
        program = program if self.turn is None else self.turn.program
        self.acc = launch.accumulator(dtype)
        self._request = (program, kind, graph, shared, self.acc == torch.float64), (atomic, reading, stored)
        self.plan_for(on)
        self.widths = dict(zip(OPERANDS, program.widths, strict=True))
        if reading is not None:  # the gradient of the table has the rows of each place, which overlap in it
            self.widths |= {"t": reading.reads * self.widths["w"], "c": reading.reads}
        self._numbers = all(path.y.mul == 1 for path in program.paths)

    def plan_for(self, on: tuning.Processor) -> None:
        """Cut the request into kernels that take no more than a limit."""
        what, how = self._request
        self.on = on
        self.compiled: set[torch.device] = set()
        self.plan = plan(*what, on.planned(self.kind.order, self.dtype.itemsize), *how)

    def __call__(
        self, tensors: Mapping[str, Tensor], tables: Mapping[str, TraversalTables] | None
    ) -> dict[str, Tensor]:
        """Results by operand; KernelError if a kernel does not compile, with fewer registers either.

        Args:
            tensors: By pointer, rows contiguous, all on one device.
            tables: The edges of a graph, by walk.
        """
        x, turn = tensors["x"], self.turn
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():  # and its current stream
            if turn is not None:
                tensors = {name: turn.to(operand, tensors[name]) for name, operand in self.given}
            buffers, rooms = launched(self, x, lambda: self.prepare(tensors, tables))
            results = {name: self._result(name, buffer, rooms.get(name), tables) for name, buffer in buffers.items()}
            return results if turn is None else {name: turn.back(name, rows) for name, rows in results.items()}

    @property
    def given(self) -> list[tuple[str, str]]:
        """Pointers that are read, and the operands that they are shaped as."""
        made = {RESULTS[operand] for operand in self.kind.results}
        return [(name, operand) for name, operand in self.kind.pointers if name not in made]

    def prepare(
        self, tensors: Mapping[str, Tensor], tables: Mapping[str, TraversalTables] | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], list[KernelCall]]:
        """Buffers of the results, buffers of pieces, and the launches that fill them, in the order of the plan."""
        rows = tensors["y"].shape[0]
        # single numbers of 2 bytes are too small to be copied ahead of the loop; the attributes of an edge are few
        narrow = self._numbers and self.dtype.itemsize < 4
        tensors = {
            name: tensor.float() if narrow and name in ("y", "dy") else tensor for name, tensor in tensors.items()
        }
        chunk = tuning.row_chunk(rows, self.shared and "w" in self.kind.results)
        segments = {"rows": -(-rows // chunk)}
        segments |= {walk: table.nodes.shape[0] for walk, table in (tables or {}).items()}
        buffers, rooms = {}, {}
        for operand in self.kind.results:
            count, table = rows, self._table(operand, tables)
            if table is not None:
                count = table.num_nodes
                rooms[operand] = self._allocate(operand, tensors["x"], table.spare, True)
            elif operand in self.plan.added:
                count = tensors[operand].shape[0]
            elif operand == "w" and self.shared:
                count = min(segments[self.plan.walks["w"]], tuning.SUMMED_SEGMENTS)
            buffers[operand] = self._allocate(operand, tensors["x"], count, table is not None)
        buffers_of = {**tensors, **{RESULTS[operand]: buffer for operand, buffer in buffers.items()}}
        buffers_of |= {f"{RESULTS[operand]}_room": room for operand, room in rooms.items()}
        return buffers, rooms, list(self._calls(buffers_of, tables or {}, rows, segments, chunk))

    def _table(self, operand: str, tables: Mapping[str, TraversalTables] | None) -> TraversalTables | None:
        """The edges of the nodes that a result is summed at, if it is in pieces."""
        if tables is None or operand not in "xzt" or operand in self.plan.added or self._is_stored(operand):
            return None
        return tables[self.plan.walks[operand]]

    def _is_stored(self, operand: str) -> bool:
        return operand == "x" and self.plan.stored

    def _allocate(self, operand: str, like: Tensor, rows: int, node: bool) -> Tensor:
        """``[parts, rows, width]``, in the dtype of the sums where more is to be added up."""
        parts = self.plan.parts[operand]
        added = operand in self.plan.added
        summed = parts > 1 or node or added or (operand == "w" and self.shared) or self._is_stored(operand)
        written = self.plan.covered[operand] and not added
        dtype = self.acc if summed else self.dtype
        return launch.allocate(like, (parts, rows, self.widths[operand]), dtype, not written)

    def _result(
        self, operand: str, buffer: Tensor, room: Tensor | None, tables: Mapping[str, TraversalTables] | None
    ) -> Tensor:
        if operand == "w" and self.shared:
            return buffer.sum((0, 1)).to(self.dtype)
        out, table = _added_up(buffer), self._table(operand, tables)
        if self._is_stored(operand) and tables is not None:
            out = summed_rows(out, tables["by_src"])
        if table is not None and room is not None:
            add_up_pieces(out, _added_up(room), table)
        if operand == "t" and self.reading is not None:
            out = self.reading.folded(out)
        return out.to(self.dtype)

    def _calls(
        self,
        buffers_of: Mapping[str, Tensor],
        tables: Mapping[str, TraversalTables],
        rows: int,
        segments: Mapping[str, int],
        chunk: int,
    ) -> Iterator[KernelCall]:
        import triton.language as tl

        for piece in self.plan.pieces:
            walk = piece.text.walk
            sums = self.shared and "w" in piece.text.kind.results
            most = tuning.SUMMED_SEGMENTS if sums else launch.MAX_GRID // piece.blocks
            table = tables.get(walk)
            pointers = [*(name for name, _ in piece.text.kind.pointers), *(f"{name}_room" for name in piece.text.rooms)]
            tensors = tuple(buffers_of[name] for name in pointers)
            if table is not None:
                tensors += (*table[:6], *(() if table.ends is None else (table.ends,)))
            sizes = (rows, *((0, 0) if table is None else (table.num_nodes, table.spare)), chunk, *piece.parts)
            meta = {
                "ACC": tl.float64 if self.acc == torch.float64 else tl.float32,
                "BLOCK": piece.block,
                "STAGES": self.on.stages,
                "num_warps": 1,
                "enable_fp_fusion": self.on.fused,
                **self.on.options,
            }
            kernel = function(piece.text.source, piece.text.name)
            for start in range(0, segments[walk], most):
                count = min(most, segments[walk] - start)
                args = (*tensors, count, start, min(most, segments[walk]), *sizes)
                yield KernelCall(kernel, (count * piece.blocks,), args, meta)


def _added_up(parts: Tensor) -> Tensor:
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def summed_rows(rows: Tensor, table: TraversalTables) -> Tensor:
    """Sum of the rows of every node, in the order of the table."""
    from .gather import sum_rows

    width = rows.shape[1]
    out, room = (launch.allocate(rows, (count, width), rows.dtype, False) for count in (table.num_nodes, table.spare))
    block = min(tuning.SUMMED_COLUMNS, 1 << max(0, width - 1).bit_length())
    at_once = max(tuning.SUMMED_AT_ONCE, tuning.SUMMED_ELEMENTS // block)
    pieces = table.nodes.shape[0]
    if pieces and width:
        sum_rows[(pieces * -(-width // block),)](
            rows, out, room, *table[1:5], pieces, table.num_nodes, width, BLOCK=block, AT_ONCE=at_once, num_warps=1
        )
        add_up_pieces(out, room, table)
    return out


def add_up_pieces(rows: Tensor, pieces: Tensor, table: TraversalTables) -> None:
    """Write the rows of the nodes whose edges were cut."""
    nodes, width = rows.shape
    if pieces.shape[0] > 1 and nodes and width:  # some node may have pieces
        from .gather import add_pieces

        add_pieces[(nodes * -(-width // GATHERED["BLOCK"]),)](rows, pieces, table.room, nodes, width, **GATHERED)
