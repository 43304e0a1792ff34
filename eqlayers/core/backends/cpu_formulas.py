"""Formulas as generated C, compiled at first use."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from eqlayers_kernels.c.print.formula import FormulaKernel
from eqlayers_kernels.c.run import launch
from eqlayers_kernels.forms.formula import Formula, Operand

from ..dtypes import ACCUMULATE
from .cpu import FEW, NAMES, as_backend_error, empty, tables_of
from .operands import not_of_this_graph
from .request import Request, Runner


def walks_of(base: Formula) -> dict[str, list[int]]:
    """The results that each walk over a graph computes: sums at senders by these, at receivers by those."""
    maps = {one.rows for one in base.operands}
    out: dict[str, list[int]] = {}
    for number, one in enumerate(base.results):
        if one.rows in ("src", "dst"):
            out.setdefault(f"by_{one.rows}", []).append(number)
    others = [number for number, one in enumerate(base.results) if one.rows not in ("src", "dst")]
    if others:
        walk = next(iter(out), "by_src" if "src" in maps and "dst" not in maps else "by_dst")
        out.setdefault(walk, []).extend(others)
    return out


def make_runner(request: Request) -> Runner:
    """The kernels of a formula; sums have a fixed order.

    Raises:
        BackendError: The compiler failed.
    """
    base: Formula = request.form
    walks = walks_of(base) if request.graph else {"rows": list(range(len(base.results)))}
    with as_backend_error():
        parts = [(numbers, _Runner(base.part(numbers), request.dtype, walk)) for walk, numbers in walks.items()]
    if len(parts) == 1 and parts[0][0] == list(range(len(base.results))):
        return parts[0][1]

    def run(operands: Sequence[Tensor], tables: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
        out: dict[int, Tensor] = {}
        for numbers, runner in parts:
            out |= dict(zip(numbers, runner(operands, tables, sizes), strict=True))
        return [out[number] for number in range(len(base.results))]

    return run


def covered(one: Operand, outputs: Sequence[int | None], channels: int) -> bool:
    """Whether a kernel writes every column of a result."""
    columns = {c for channel in one.columns(max(channels, 1)) for c in channel}
    return None not in outputs and len(columns) == one.width


class _Runner:
    """A kernel that is loaded.

    Args:
        base: The formula.
        dtype: Of operands and results; half precision is computed in float32.
        walk: 'rows', 'by_src' or 'by_dst'.
    """

    def __init__(self, base: Formula, dtype: torch.dtype, walk: str) -> None:
        self.dtype, self.compute, self.walk = dtype, ACCUMULATE[dtype], walk
        self.compiled = launch.load(FormulaKernel(base, NAMES[self.compute], walk))
        self.given = [(one.width, one.rows == "one") for one in base.operands]
        self.made = [
            (one.rows, one.width, covered(one, outputs, base.channels) and one.rows != "one")
            for one, outputs in zip(base.results, base.outputs, strict=True)
        ]
        self.elements = sum(one.width for one in (*base.operands, *base.results)) + base.operations
        self.sums = [number for number, one in enumerate(base.results) if one.rows == "one"]

    def __call__(self, operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
        """Results; ``sizes`` are rows, senders and receivers."""
        rows, senders, receivers = sizes
        workers, compute = torch.get_num_threads(), self.compute
        chunks = 1
        if workers > 1 or self.sums:
            chunks = launch.chunks_for(rows * self.elements, workers, bool(self.sums))
        packed: list[int] = []
        keep = []
        for tensor, (width, shared) in zip(operands, self.given, strict=True):
            if tensor.dtype is not compute:
                tensor = tensor.to(compute)
            if tensor.is_contiguous():
                step = width
            elif tensor.stride()[-1] != 1 and width > 1:
                tensor, step = tensor.contiguous(), width
            else:  # rows may lie anywhere, the elements of a row side by side
                step = tensor.stride()[0]
            keep.append(tensor)  # lives until the kernel has read it
            packed += (tensor.data_ptr(), 0 if shared else step)
        first, results = keep[0], []
        count = {"each": rows, "src": senders, "dst": receivers, "one": chunks}
        for maps, width, whole in self.made:
            size = count[maps]
            if not whole:
                result = first.new_zeros(size, width)
            else:
                result = first.new_empty(size, width) if size * width < FEW else empty(first, size, width)
            results.append(result)
            packed += (result.data_ptr(), width)
        segments = rows
        if self.walk != "rows":
            assert graph is not None
            graph = graph.contiguous()
            table = graph.data_ptr()
            segments, others = (receivers, senders) if self.walk == "by_dst" else (senders, receivers)
            ptr, numbers, ends = getattr(tables_of(rows, senders, receivers), self.walk)
            packed += (table + 8 * ptr, table + 8 * numbers, table + 8 * ends, rows, others)
            if ctypes.c_int64.from_address(table + 8 * (ptr + segments)).value != rows:
                raise not_of_this_graph()
        try:
            self.compiled(segments, packed, chunks, workers)
        except IndexError as error:
            raise not_of_this_graph() from error
        for number in self.sums:
            results[number] = results[number].sum(0)
        return results if compute is self.dtype else [r.to(self.dtype) for r in results]
