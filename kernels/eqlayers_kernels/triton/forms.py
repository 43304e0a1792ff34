"""Runs printed kernels: makes them at first use, allocates results, launches, and adds up partial sums."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..lines import RESULTS, Kind
from ..program import OPERANDS, Program
from . import launch, tuning
from .groups import Piece, plan


class Sizes(NamedTuple):
    """Rows of a call: of the edges (or of everything, without a graph), of the senders and of the receivers."""

    rows: int
    senders: int
    receivers: int

    def of(self, operand: str, graph: bool) -> int:
        """Rows of an operand."""
        return {"x": self.senders, "z": self.receivers}.get(operand, self.rows) if graph else self.rows


@cache
def function(source: str, name: str) -> Any:
    """The kernel of that name in a module's text; Triton reads the text from where tracebacks do."""
    module = ModuleType(f"eqlayers_generated_{hashlib.sha256(source.encode()).hexdigest()[:16]}")
    path = f"<{module.__name__}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    exec(compile(source, path, "exec"), module.__dict__)
    return getattr(module, name)


class FormRunner:
    """One request for one form.

    Args:
        program: The form.
        kind: What is wanted.
        dtype: Of operands and results; half precision is summed in float32.
        graph: Whether edges of nodes are walked, else rows.
        shared: Whether one row of weights serves all rows.
    """

    def __init__(self, program: Program, kind: Kind, dtype: torch.dtype, graph: bool, shared: bool) -> None:
        self.kind, self.dtype, self.graph, self.shared = kind, dtype, graph, shared
        self.acc = launch.accumulator(dtype)
        self.plan = plan(program, kind, graph, shared, self.acc == torch.float64)
        self.widths = dict(zip(OPERANDS, program.widths, strict=True))

    def __call__(
        self, tensors: Mapping[str, Tensor], sizes: Sizes, tables: Mapping[str, tuple[Tensor, Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        """Results by operand.

        Args:
            tensors: By pointer, rows contiguous, all on one device.
            sizes: Numbers of rows.
            tables: For 'by_z' and 'by_x': where each node's edges begin, their numbers, the nodes at their other ends.
        """
        buffers, launches = self.prepare(tensors, sizes, tables)
        x = tensors["x"]
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():  # and its current stream
            for kernel, grid, args, meta in launches:
                kernel[grid](*args, **meta)
        return {operand: self._summed(operand, buffer) for operand, buffer in buffers.items()}

    def prepare(
        self, tensors: Mapping[str, Tensor], sizes: Sizes, tables: Mapping[str, tuple[Tensor, Tensor, Tensor]]
    ) -> tuple[dict[str, Tensor], list[tuple[Any, tuple[int], tuple[Any, ...], dict[str, Any]]]]:
        """Buffers of the results, and the launches that fill them."""
        chunk = tuning.row_chunk(sizes.rows, self.shared and "w" in self.kind.results)
        buffers = {operand: self._allocate(operand, tensors["x"], sizes, chunk) for operand in self.kind.results}
        given = {**tensors, **{RESULTS[operand]: buffer for operand, buffer in buffers.items()}}
        return buffers, list(self._launches(given, sizes, tables, chunk))

    def _segments(self, walk: str, sizes: Sizes, chunk: int) -> int:
        return {"rows": -(-sizes.rows // chunk), "by_z": sizes.receivers, "by_x": sizes.senders}[walk]

    def _allocate(self, operand: str, like: Tensor, sizes: Sizes, chunk: int) -> Tensor:
        parts = self.plan.parts[operand]
        rows, dtype = sizes.of(operand, self.graph), self.dtype
        if operand == "w" and self.shared:
            walk = next(piece.text.walk for piece in self.plan.pieces if "w" in piece.text.kind.results)
            rows, dtype = self._segments(walk, sizes, chunk), self.acc
        if parts > 1:
            dtype = self.acc
        written = parts == 1 and self.plan.covered[operand]
        return launch.allocate(like, (parts, rows, self.widths[operand]), dtype, not written)

    def _summed(self, operand: str, buffer: Tensor) -> Tensor:
        if operand == "w" and self.shared:
            return buffer.sum((0, 1)).to(self.dtype)
        return buffer[0] if buffer.shape[0] == 1 else buffer.sum(0).to(self.dtype)

    def _launches(
        self, given: Mapping[str, Tensor], sizes: Sizes, tables: Mapping[str, tuple[Tensor, ...]], chunk: int
    ) -> Iterator[tuple[Any, tuple[int], tuple[Any, ...], dict[str, Any]]]:
        import triton.language as tl

        backend = "cuda" if torch.version.hip is None else "hip"
        for piece in self.plan.pieces:
            segments = self._segments(piece.text.walk, sizes, chunk)
            programs = segments * piece.blocks
            if programs > launch.MAX_GRID:
                raise ValueError(
                    f"segments times blocks of channels must be at most {launch.MAX_GRID}, the length of a grid, got "
                    f"{programs}. Split the batch."
                )
            if programs == 0:
                continue
            args = (
                *(given[pointer] for pointer, _ in piece.text.kind.pointers),
                *(tables[piece.text.walk] if piece.text.tables else ()),
                *(segments, sizes.rows, chunk, *piece.parts),
            )
            meta = {
                "ACC": tl.float64 if self.acc == torch.float64 else tl.float32,
                "BLOCK": piece.block,
                "STAGES": tuning.STAGES,
                "num_warps": 1,
                "enable_fp_fusion": True,  # releases of triton differ in the default
                **tuning.OPTIONS[backend],
            }
            yield kernel_of(piece), (programs,), args, meta


def kernel_of(piece: Piece) -> Any:
    """The kernel of a piece, for launching or compiling."""
    return function(piece.text.source, piece.text.name)
