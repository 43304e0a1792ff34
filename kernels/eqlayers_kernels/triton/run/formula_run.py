"""Runs the printed kernels of a formula: compiles them at first use, allocates results, launches, and adds up sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from ...forms.formula import Formula
from ...forms.traversal import traversal_of
from ..print import tuning
from ..print.formula import TABLES
from ..print.formula_plan import FormulaPiece, plan
from ..segment import launch
from .compiling import KernelCall, launched
from .edges import TraversalTables
from .forms import add_up_pieces, function, summed_rows


class FormulaRunner:
    """One formula for operands of one dtype; half precision is summed in float32."""

    def __init__(self, base: Formula, dtype: torch.dtype, on: tuning.Processor) -> None:
        self.base, self.dtype = base, dtype
        self.acc = launch.accumulator(dtype)
        self._covered = [base.covers(number) for number in range(len(base.results))]
        self.plan_for(on)

    def plan_for(self, on: tuning.Processor) -> None:
        """Cut the formula into kernels that take no more than a limit."""
        self.on = on
        self.pieces = plan(self.base, self.acc == torch.float64, on)
        #: Results that several kernels add to
        self._continued = {r for piece in self.pieces for r, _ in piece.text.begun.intersection(piece.text.slots)}
        self.compiled: set[torch.device] = set()

    def __call__(
        self, tensors: Sequence[Tensor], tables: Mapping[str, TraversalTables] | None, rows: int, nodes: tuple[int, int]
    ) -> list[Tensor]:
        """``[rows or nodes, width]`` of every result, ``[width]`` of a sum over all rows; or KernelError.

        Operands have contiguous rows (one for all may have no axis of rows), all on one device; ``tables`` are rows of
        the batch as edges, by walk, or None; ``nodes`` are the numbers of senders and receivers.
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
        """Buffers of the results, by pointer, and the launches that fill them, in the order of the pieces."""
        read = {f"in{number}": tensor for number, tensor in enumerate(tensors)}
        read |= _ends(self.pieces, tables)
        buffers: dict[str, Tensor] = {}
        for piece in self.pieces:
            for number in piece.text.results:
                if f"out{number}" not in buffers:
                    buffers |= self._allocate(number, piece, tensors[0], tables, rows)
        return buffers, list(self._calls({**read, **buffers}, tables or {}, rows))

    def _shape(self, number: int, rows: int, nodes: tuple[int, int]) -> tuple[int, ...]:
        one = self.base.results[number]
        count = {"each": (rows,), "one": (), "src": nodes[:1], "dst": nodes[1:]}[one.rows]
        return (*count, one.width)

    def _allocate(
        self, number: int, piece: FormulaPiece, like: Tensor, tables: Mapping[str, TraversalTables] | None, rows: int
    ) -> dict[str, Tensor]:
        """Allocate a result, in the dtype of the sums where more is to be added up."""
        one, fill = self.base.results[number], not self._covered[number]

        def buffer(count: int, dtype: torch.dtype) -> Tensor:
            return launch.allocate(like, (count, one.width), dtype, fill)

        if one.rows == "each":
            return {f"out{number}": buffer(rows, self.acc if number in self._continued else self.dtype)}
        if number in piece.text.rooms:
            assert tables is not None
            table = tables[piece.text.walk]
            return {
                f"out{number}": buffer(table.num_nodes, self.acc),
                f"room{number}": buffer(table.spare, self.acc),
            }
        return {f"out{number}": buffer(self._programs(piece, rows) if one.rows == "one" else rows, self.acc)}

    def _programs(self, piece: FormulaPiece, rows: int) -> int:
        """Runs of rows, for one block of channels."""
        return -(-rows // (piece.block if piece.text.walk == "lanes" else self._chunk(piece, rows)))

    @staticmethod
    def _chunk(piece: FormulaPiece, rows: int) -> int:
        """Rows of one run."""
        return tuning.row_chunk(rows, True) if piece.text.stay else 1

    def _held(self, piece: FormulaPiece) -> int:
        """Registers of a thread that values take."""
        per_thread = 1 if piece.text.walk == "lanes" else max(1, piece.block // self.on.lanes)
        return tuning.Cost(piece.text.order.alive, 0, 0).registers(per_thread, self.acc == torch.float64)

    def _calls(
        self, tensors: Mapping[str, Tensor], tables: Mapping[str, TraversalTables], rows: int
    ) -> Iterator[KernelCall]:
        import triton.language as tl

        for piece in self.pieces:
            text = piece.text
            table = tables[text.walk] if text.rooms else None
            segments = self._programs(piece, rows) if table is None else table.nodes.shape[0]
            of_table = dict(zip(TABLES, table or (), strict=False))
            names = [f"in{n}" for n in text.operands]
            names += [f"{kind}{n}" for kind, which in (("out", text.results), ("room", text.rooms)) for n in which]
            pointers = [*(tensors[name] for name in names), *({**tensors, **of_table}[name] for name in text.tables)]
            # the grid ends at 2**31 programs: no memory holds the rows of as many
            args = (*pointers, segments, rows, 0 if table is None else table.num_nodes, self._chunk(piece, rows), 0)
            meta = {
                "ACC": tl.float64 if self.acc == torch.float64 else tl.float32,
                "BLOCK": piece.block,
                "num_warps": tuning.LANE_WARPS if text.walk == "lanes" else 1,
                "enable_fp_fusion": self.on.fused,
                **tuning.formula_options(self.on, text.stay, self._held(piece)),
            }
            yield KernelCall(function(text.source, text.name), (segments * piece.blocks,), args, meta)

    def _result(
        self,
        number: int,
        buffers: Mapping[str, Tensor],
        tables: Mapping[str, TraversalTables] | None,
        nodes: tuple[int, int],
        rows: int,
        like: Tensor,
    ) -> Tensor:
        one, out = self.base.results[number], buffers.get(f"out{number}")
        if out is None:  # nothing computes it
            return like.new_zeros(self._shape(number, rows, nodes))
        if one.rows == "each":
            return out.to(self.dtype)
        if one.rows == "one":
            return out.sum(0).to(self.dtype)
        assert tables is not None
        table, room = tables[traversal_of(one.rows)], buffers.get(f"room{number}")
        if room is None:  # row by row
            return summed_rows(out, table).to(self.dtype)
        add_up_pieces(out, room, table)
        return out.to(self.dtype)


def _ends(pieces: Sequence[FormulaPiece], tables: Mapping[str, TraversalTables] | None) -> dict[str, Tensor]:
    """Senders and receivers of the batch's rows, where kernels ask for them."""
    wanted = {name for piece in pieces for name in piece.text.tables}
    out = {}
    for name, walk in (("senders", "by_dst"), ("receivers", "by_src")):
        if name in wanted:
            assert tables is not None
            table = tables[walk]
            out[name] = torch.empty_like(table.edges).scatter_(0, table.edges, table.others)
    return out
