"""Runs printed kernels of formulas: compiles at first use, allocates results, launches, and adds partial sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from ...forms.formula import Formula, traversal_of
from ..print import tuning
from ..print.formula import TABLES
from ..print.formula_plan import PlannedFormula, plan
from . import segment
from .compiling import KernelCall, launched
from .edges import TraversalTables
from .forms import add_split_nodes, function, summed_rows


class FormulaRunner:
    """Runs the kernels of one formula in one dtype; half precision is summed in float32."""

    def __init__(self, base: Formula, dtype: torch.dtype, on: tuning.Processor) -> None:
        self.base, self.dtype = base, dtype
        self.acc = segment.accumulator(dtype)
        self._covered = [base.covers(number) for number in range(len(base.results))]
        self.plan_for(on)

    def plan_for(self, on: tuning.Processor) -> None:
        """Divide the formula into kernels that fit the resources ``on``."""
        self.on = on
        self.kernels = plan(self.base, self.acc == torch.float64, on)
        #: Results that several kernels add to
        self._continued = {r for p in self.kernels for r, _ in p.text.begun.intersection(p.text.slots)}
        self.compiled: set[torch.device] = set()

    def __call__(
        self, tensors: Sequence[Tensor], tables: Mapping[str, TraversalTables] | None, rows: int, nodes: tuple[int, int]
    ) -> list[Tensor]:
        """``[rows or nodes, width]`` of every result, ``[width]`` of a sum over all rows; or KernelError.

        Operands have contiguous rows (rows 'one' may lack the axis of rows), on one device; ``tables`` are the sorted
        edges by traversal, or None; ``nodes`` are the numbers of senders and receivers.
        """
        like = tensors[0]
        if not rows:
            return [like.new_zeros(self._shape(number, 0, nodes)) for number in range(len(self.base.results))]
        with torch.cuda.device(like.device) if like.is_cuda else nullcontext():  # and its current stream
            (buffers,) = launched(self, like, lambda: self.prepare(tensors, tables, rows))
            numbers = range(len(self.base.results))
            return [self._result(number, buffers, tables, nodes, rows, like) for number in numbers]

    def prepare(
        self, tensors: Sequence[Tensor], tables: Mapping[str, TraversalTables] | None, rows: int
    ) -> tuple[dict[str, Tensor], list[KernelCall]]:
        """Buffers of the results, by pointer, and the launches that fill them, in order."""
        read = {f"in{number}": tensor for number, tensor in enumerate(tensors)}
        tables_read = {name for planned in self.kernels for name in planned.text.tables}
        for name, traversal in (("senders", "by_dst"), ("receivers", "by_src")):  # of the rows of the batch
            if name in tables_read:
                assert tables is not None
                read[name] = tables[traversal].in_order()
        buffers: dict[str, Tensor] = {}
        for planned in self.kernels:
            for number in planned.text.results:
                if f"out{number}" not in buffers:
                    buffers |= self._allocate(number, planned, tensors[0], tables, rows)
        return buffers, list(self._calls({**read, **buffers}, tables or {}, rows))

    def _shape(self, number: int, rows: int, nodes: tuple[int, int]) -> tuple[int, ...]:
        result = self.base.results[number]
        count = {"each": (rows,), "one": (), "src": nodes[:1], "dst": nodes[1:]}[result.rows]
        return (*count, result.width)

    def _allocate(
        self,
        number: int,
        planned: PlannedFormula,
        like: Tensor,
        tables: Mapping[str, TraversalTables] | None,
        rows: int,
    ) -> dict[str, Tensor]:
        """Buffers for a result, by name: the result, and a workspace if a kernel splits nodes.

        Buffers have the dtype of the sums if something is added to them afterwards.
        """
        result, fill = self.base.results[number], not self._covered[number]

        def buffer(count: int, dtype: torch.dtype) -> Tensor:
            return segment.allocate(like, (count, result.width), dtype, fill)

        if result.rows == "each":
            return {f"out{number}": buffer(rows, self.acc if number in self._continued else self.dtype)}
        if number in planned.text.workspaces:
            assert tables is not None
            table = tables[planned.text.traversal]
            return {
                f"out{number}": buffer(table.num_nodes, self.acc),
                f"room{number}": buffer(table.workspace_rows, self.acc),
            }
        return {f"out{number}": buffer(self._programs(planned, rows) if result.rows == "one" else rows, self.acc)}

    def _programs(self, planned: PlannedFormula, rows: int) -> int:
        """The number of programs of a kernel that process ``rows`` rows of the batch, for one block of channels."""
        return -(-rows // (planned.block if planned.text.traversal == "lanes" else self._chunk(planned, rows)))

    @staticmethod
    def _chunk(planned: PlannedFormula, rows: int) -> int:
        """The number of rows of the batch that one program of a kernel processes."""
        return tuning.row_chunk(rows, True) if planned.text.stay else 1

    def _calls(
        self, tensors: Mapping[str, Tensor], tables: Mapping[str, TraversalTables], rows: int
    ) -> Iterator[KernelCall]:
        import triton.language as tl

        for planned in self.kernels:
            text = planned.text
            table = tables[text.traversal] if text.workspaces else None
            segments = self._programs(planned, rows) if table is None else table.nodes.shape[0]
            of_table = dict(zip(TABLES, table or (), strict=False))
            names = [f"in{n}" for n in text.operands]
            written = (("out", text.results), ("room", text.workspaces))
            names += [f"{prefix}{n}" for prefix, which in written for n in which]
            pointers = [*(tensors[name] for name in names), *({**tensors, **of_table}[name] for name in text.tables)]
            # the grid ends at 2**31 programs: no memory holds the rows of as many
            args = (*pointers, segments, rows, 0 if table is None else table.num_nodes, self._chunk(planned, rows), 0)
            per_thread = 1 if text.traversal == "lanes" else max(1, planned.block // self.on.lanes)
            held = tuning.Cost(text.order.alive, 0, 0).registers(per_thread, self.acc == torch.float64)
            meta = {
                "ACC": tl.float64 if self.acc == torch.float64 else tl.float32,
                "BLOCK": planned.block,
                "num_warps": tuning.LANE_WARPS if text.traversal == "lanes" else 1,
                "enable_fp_fusion": self.on.fused,
                **tuning.formula_options(self.on, text.stay, held),
            }
            yield KernelCall(function(text.source, text.name), (segments * planned.blocks,), args, meta)

    def _result(
        self,
        number: int,
        buffers: Mapping[str, Tensor],
        tables: Mapping[str, TraversalTables] | None,
        nodes: tuple[int, int],
        rows: int,
        like: Tensor,
    ) -> Tensor:
        result, out = self.base.results[number], buffers.get(f"out{number}")
        if out is None:  # nothing computes it
            return like.new_zeros(self._shape(number, rows, nodes))
        if result.rows == "each":
            return out.to(self.dtype)
        if result.rows == "one":
            return out.sum(0).to(self.dtype)
        assert tables is not None
        table, workspace = tables[traversal_of(result.rows)], buffers.get(f"room{number}")
        if workspace is None:  # row by row
            return summed_rows(out, table).to(self.dtype)
        add_split_nodes(out, workspace, table)
        return out.to(self.dtype)
