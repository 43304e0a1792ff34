"""Runs printed kernels of products: compiles at first use, allocates results, launches, and adds partial sums."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...arithmetic.writer import RESULTS, Task
from ...forms.product import Reading
from ...forms.program import OPERANDS, Program
from ...host import HostTensors
from ..print import tuning
from ..print.groups import plan
from . import segment
from .compiling import KernelCall, launched
from .edges import TraversalTables

#: Most columns that one program permutes.
MOST_COLUMNS = 4096
#: Columns of one program of the kernel that adds partial sums of split nodes, and rows that it reads at a time.
GATHERED = {"BLOCK": 1024, "AT_ONCE": 4, "enable_fp_fusion": True}


@cache
def function(source: str, name: str) -> Any:
    """The kernel ``name`` of a module's text; the text is put into `linecache`, where Triton reads it."""
    module = ModuleType(f"eqlayers_generated_{hashlib.sha256(source.encode()).hexdigest()[:16]}")
    path = f"<{module.__name__}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    exec(compile(source, path, "exec"), module.__dict__)
    return getattr(module, name)


class FormRunner:
    """Runs the kernels of one task of a product in one dtype; half precision is summed in float32."""

    def __init__(
        self,
        program: Program,
        task: Task,
        dtype: torch.dtype,
        graph: bool,
        shared: bool,
        on: tuning.Processor,
        atomic: bool = False,
        reading: Reading | None = None,
        stored: bool | None = None,
    ) -> None:
        self.reading = reading
        self.task, self.dtype, self.shared = task, dtype, shared
        self.column_order = column_order_of(program, graph)
        program = program if self.column_order is None else self.column_order.program
        self.acc = segment.accumulator(dtype)
        self._request = (program, task, graph, shared, self.acc == torch.float64), (atomic, reading, stored)
        self.plan_for(on)
        self.widths = dict(zip(OPERANDS, program.widths, strict=True))
        if reading is not None:  # the gradient of the table is computed per interval, whose rows overlap
            self.widths |= {"t": reading.reads * self.widths["w"], "c": reading.reads}
        self._numbers = all(path.y.mul == 1 for path in program.paths)

    def plan_for(self, on: tuning.Processor) -> None:
        """Divide the task into kernels that fit the resources ``on``."""
        what, how = self._request
        self.on = on
        self.compiled: set[torch.device] = set()
        self.plan = plan(*what, on.planned(self.task.order, self.dtype.itemsize), *how)

    def __call__(
        self, tensors: Mapping[str, Tensor], tables: Mapping[str, TraversalTables] | None
    ) -> dict[str, Tensor]:
        """Results by operand; KernelError if a kernel does not compile, also with fewer registers.

        ``tensors`` has contiguous rows by pointer, all on one device; ``tables`` are the sorted edges, by traversal.
        """
        x, order = tensors["x"], self.column_order
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():  # and its current stream
            if order is not None:
                tensors = {name: order.to(operand, tensors[name]) for name, operand in self.inputs}
            buffers, spaces = launched(self, x, lambda: self.prepare(tensors, tables))
            results = {name: self._result(name, buffer, spaces.get(name), tables) for name, buffer in buffers.items()}
            return results if order is None else {name: order.back(name, rows) for name, rows in results.items()}

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """Names of the pointers that are read, and the operands whose shapes they have."""
        written = {RESULTS[operand] for operand in self.task.results}
        return [(name, operand) for name, operand in self.task.pointers if name not in written]

    def prepare(
        self, tensors: Mapping[str, Tensor], tables: Mapping[str, TraversalTables] | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], list[KernelCall]]:
        """Buffers of the results, workspaces of split nodes, and the launches that fill them, in order."""
        rows = tensors["y"].shape[0]
        # numbers of 2 bytes cannot be copied asynchronously; y of an edge is small
        narrow = self._numbers and self.dtype.itemsize < 4
        tensors = {
            name: tensor.float() if narrow and name in ("y", "dy") else tensor for name, tensor in tensors.items()
        }
        chunk = tuning.row_chunk(rows, self.shared and "w" in self.task.results)
        segments = {"rows": -(-rows // chunk)}
        segments |= {traversal: table.nodes.shape[0] for traversal, table in (tables or {}).items()}
        buffers, workspaces = {}, {}
        for operand in self.task.results:
            count, table = rows, self._table(operand, tables)
            if table is not None:
                count = table.num_nodes
                workspaces[operand] = self._allocate(operand, tensors["x"], table.workspace_rows, True)
            elif operand in self.plan.added:
                count = tensors[operand].shape[0]
            elif operand == "w" and self.shared:
                count = min(segments[self.plan.traversals["w"]], tuning.SUMMED_SEGMENTS)
            buffers[operand] = self._allocate(operand, tensors["x"], count, table is not None)
        buffers_of = {**tensors, **{RESULTS[operand]: buffer for operand, buffer in buffers.items()}}
        buffers_of |= {f"{RESULTS[operand]}_room": workspace for operand, workspace in workspaces.items()}
        return buffers, workspaces, list(self._calls(buffers_of, tables or {}, rows, segments, chunk))

    def _table(self, operand: str, tables: Mapping[str, TraversalTables] | None) -> TraversalTables | None:
        """The sorted edges by which a result is summed at nodes in segments; None for other results."""
        if tables is None or operand not in "xzt" or operand in self.plan.added or self._is_stored(operand):
            return None
        return tables[self.plan.traversals[operand]]

    def _is_stored(self, operand: str) -> bool:
        return operand == "x" and self.plan.stored

    def _allocate(self, operand: str, like: Tensor, rows: int, node: bool) -> Tensor:
        """Allocate a result ``[parts, rows, width]``; in the dtype of the sums if its parts are added afterwards."""
        parts = self.plan.parts[operand]
        added = operand in self.plan.added
        summed = parts > 1 or node or added or (operand == "w" and self.shared) or self._is_stored(operand)
        written = self.plan.covered[operand] and not added
        dtype = self.acc if summed else self.dtype
        return segment.allocate(like, (parts, rows, self.widths[operand]), dtype, not written)

    def _result(
        self, operand: str, buffer: Tensor, workspace: Tensor | None, tables: Mapping[str, TraversalTables] | None
    ) -> Tensor:
        if operand == "w" and self.shared:
            return buffer.sum((0, 1)).to(self.dtype)
        out, table = _summed_parts(buffer), self._table(operand, tables)
        if self._is_stored(operand) and tables is not None:
            out = summed_rows(out, tables["by_src"])
        if table is not None and workspace is not None:
            add_split_nodes(out, _summed_parts(workspace), table)
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

        for planned in self.plan.kernels:
            text = planned.text
            sums = self.shared and "w" in text.task.results
            most = tuning.SUMMED_SEGMENTS if sums else segment.MAX_GRID // planned.blocks
            table = tables.get(text.traversal)
            pointers = [*(name for name, _ in text.task.pointers), *(f"{name}_room" for name in text.workspaces)]
            tensors = tuple(buffers_of[name] for name in pointers)
            if table is not None:
                tensors += (*table[:6], *(() if table.endpoints is None else (table.endpoints,)))
            nodes = (0, 0) if table is None else (table.num_nodes, table.workspace_rows)
            meta = {
                "ACC": tl.float64 if self.acc == torch.float64 else tl.float32,
                "BLOCK": planned.block,
                "STAGES": self.on.stages,
                "num_warps": 1,
                "enable_fp_fusion": self.on.fused,
                **self.on.options,
            }
            kernel, total = function(text.source, text.name), segments[text.traversal]
            for start in range(0, total, most):
                count = min(most, total - start)
                args = (*tensors, count, start, min(most, total), rows, *nodes, chunk, *planned.parts)
                yield KernelCall(kernel, (count * planned.blocks,), args, meta)


def _summed_parts(parts: Tensor) -> Tensor:
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def summed_rows(rows: Tensor, table: TraversalTables) -> Tensor:
    """Sums of the rows (edges) of every node, in the order of the table, ``[nodes, width]``."""
    from ..kernels import sum_rows

    width, counts = rows.shape[1], (table.num_nodes, table.workspace_rows)
    out, workspace = (segment.allocate(rows, (count, width), rows.dtype, False) for count in counts)
    block = min(tuning.SUMMED_COLUMNS, 1 << max(0, width - 1).bit_length())
    at_once = max(tuning.SUMMED_AT_ONCE, tuning.SUMMED_ELEMENTS // block)
    parts = table.nodes.shape[0]
    if parts and width:
        sizes = parts, table.num_nodes, width
        grid = (parts * -(-width // block),)
        meta = {"BLOCK": block, "AT_ONCE": at_once, "num_warps": 1, "enable_fp_fusion": True}
        sum_rows[grid](rows, out, workspace, *table[1:5], *sizes, **meta)
        add_split_nodes(out, workspace, table)
    return out


def add_split_nodes(rows: Tensor, workspace: Tensor, table: TraversalTables) -> None:
    """Write the rows of split nodes: the sums of their partial sums in the workspace."""
    nodes, width = rows.shape
    if workspace.shape[0] > 1 and nodes and width:  # the edges of some node may be split
        from ..kernels import add_parts

        grid = (nodes * -(-width // GATHERED["BLOCK"]),)
        add_parts[grid](rows, workspace, table.workspace_ptr, nodes, width, **GATHERED)


class ColumnOrder:
    """Permutations of the columns of x and z from 'mul_ir' to 'ir_mul' and back, and the program in 'ir_mul'.

    In 'mul_ir' the components of a channel are contiguous, and the channels of a component 12 to 28 bytes apart: of
    every 32 bytes that a warp loads, 4 to 11 are used. Rows of nodes are few beside the edges that read them, so they
    are transposed before the kernels, and results after them. Rows of edges are read once, and are not transposed.
    """

    def __init__(self, program: Program) -> None:
        self.program = replace(program, layout="ir_mul")
        self._columns: HostTensors[tuple[str, bool]] = HostTensors()  # key: (operand, whether it is the inverse)
        for operand in "xz":
            to = _columns(program, operand)
            for back, columns in ((False, to), (True, torch.argsort(to))):
                short = program.widths["xywz".index(operand)] < 2**15
                self._columns.on_host[operand, back] = columns.to(torch.int16 if short else torch.int32)

    def to(self, operand: str, rows: Tensor) -> Tensor:
        """Rows of x or z in 'ir_mul'; rows of other operands unchanged."""
        return self._permuted(operand, False, rows)

    def back(self, operand: str, rows: Tensor) -> Tensor:
        """Rows of x or z back in 'mul_ir'; rows of other operands unchanged."""
        return self._permuted(operand, True, rows)

    def _permuted(self, operand: str, back: bool, rows: Tensor) -> Tensor:
        if operand not in "xz" or not rows.numel():
            return rows
        count, width = rows.shape
        columns = self._columns.on_device((operand, back), rows.device)
        from ..kernels import permute_columns

        out = segment.allocate(rows, (count, width), rows.dtype, False)
        block = min(MOST_COLUMNS, 1 << max(5, (width - 1).bit_length()))
        grid, meta = (count * -(-width // block),), {"BLOCK": block, "enable_fp_fusion": True}
        permute_columns[grid](rows, out, columns, count, width, **meta)
        return out


def column_order_of(program: Program, graph: bool) -> ColumnOrder | None:
    """The column order for a program; None if nothing is gained, or y (rows of edges) has channels."""
    wide = any(slot.dim > 1 and slot.mul > 1 for path in program.paths for slot in (path.x, path.z))
    if not graph or program.layout != "mul_ir" or not wide or any(path.y.mul > 1 for path in program.paths):
        return None
    return ColumnOrder(program)


def _columns(program: Program, operand: str) -> Tensor:
    """The column in 'mul_ir' of each column of 'ir_mul'."""
    columns = torch.arange(program.widths["xywz".index(operand)])
    for slot in {getattr(path, operand) for path in program.paths}:
        block = columns[slot.start : slot.stop].view(slot.mul, slot.dim)
        columns[slot.start : slot.stop] = block.t().reshape(-1)
    return columns
