"""Backend ``cpu``: generated C, compiled at first use; a product, a convolution or a formula is one call."""

from __future__ import annotations

import ctypes
import warnings
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.arithmetic.writer import RESULTS
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.print.formula import FormulaKernel
from eqlayers_kernels.c.print.maps import MapKernel
from eqlayers_kernels.c.print.printer import Kernel
from eqlayers_kernels.c.run import launch
from eqlayers_kernels.c.run.edges import interval_offsets
from eqlayers_kernels.c.run.launch import Compiled
from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.forms.product import ProductForm

from .. import memory
from ..dtypes import ACCUMULATE, DTYPES
from ..errors import EqlayersWarning
from ..forms.description import ROW_MAPS
from ..forms.request import SIZE_INDEX, Request, Runner, Sizes
from .registry import as_backend_error
from .tables import not_of_this_graph, offsets_of

#: Results larger than this use non-temporal stores: they do not fit the caches.
PAST_CACHES_BYTES = 4 << 20
#: Results of fewer elements are never worth huge pages.
FEW = memory.WORTH_BYTES // 8

NAMES = {torch.float32: "float32", torch.float64: "float64"}

_warned: set[str] = set()


def refuse(request: Request) -> str | None:
    """None if generated C can run the call, else the reason, a phrase that follows the backend's name."""
    if request.device.type != "cpu":
        return f"needs CPU tensors, got {request.device.type}"
    if request.dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {request.dtype}"
    return _no_compiler()


@torch.compiler.assume_constant_result
def _no_compiler() -> str | None:
    return compiler.why_not()


def warn_once(reason: str) -> None:
    """Warn, once in a process, that layers run on the torch backend, with the reason."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"expected to run layers as generated C, but backend 'cpu' {reason}. They run on backend 'torch', "
            f"which is several times slower; pass backend='torch' to choose it without this message",
            EqlayersWarning,
            stacklevel=5,
        )


def make_runner(request: Request) -> Runner:
    """Compile the C kernels of a form, which sum in a fixed order; BackendError if the compiler fails."""
    form = request.form
    everything = list(range(len(form.results)))
    parts = [
        (numbers, _Runner(form.part(numbers), request.dtype, traversal))
        for traversal, numbers in traversals_of(form, request.graph).items()
    ]
    if len(parts) == 1 and parts[0][0] == everything:
        return parts[0][1]

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sizes) -> list[Tensor]:
        out: dict[int, Tensor] = {}
        for numbers, runner in parts:
            out |= zip(numbers, runner(operands, graph, sizes), strict=True)
        return [out[number] for number in everything]

    return run


def traversals_of(form: Any, graph: bool) -> dict[str, list[int]]:
    """The numbers of the results that the kernel of each traversal computes."""
    if form.family == "product" and is_map(form):
        return {MAPS[form.rows]: list(range(len(form.results)))}
    traversals: dict[str, list[int]] = form.traversals(graph)
    return traversals


def alone(part: Any, traversal: str) -> str:
    """The traversal that replaces another on one thread: it has the same results, to the last bit.

    Receivers are walked for all gradients of a convolution, whose senders' rows are added to. Sums over chunks of edges
    would differ.
    """
    replaced = traversal == "by_src" and part.family == "product" and part.rows[0] == "src"
    return "to_src" if replaced and all(one.rows != "one" for one in part.results) else traversal


#: Traversal of a map's kernel, by rows of x, y, w and z: one row of weights for all rows, or one for every sender.
MAPS: dict[tuple[str, ...], str] = {ROW_MAPS["map", "one"]: "rows", ROW_MAPS["map", "src"]: "by_src"}


def is_map(form: ProductForm) -> bool:
    """Whether one kernel for all maps runs the form, see :mod:`eqlayers_kernels.c.print.maps`."""
    return form.rows in MAPS and MapKernel.of(form.program, form.task)


class _Pointer(NamedTuple):
    """The operand of a form that one pointer of a kernel reads, and its row step."""

    number: int  # number of the operand
    rows: int  # rows from one row that the kernel reads to the next: several in a table, 0 for one shared row
    width: int
    transpose: Compiled | None = None  # transposes its rows to the layout of the kernel


class _Printed(NamedTuple):
    """The C kernel of a form and a traversal, the pointers that it reads, and how it writes its results."""

    kernel: Kernel | FormulaKernel | MapKernel
    operands: list[_Pointer]  # in the order of its pointers; results follow
    written: list[bool]  # for each result, whether the kernel writes every element (else it must be zero before)
    operations: int = 0  # per row, added to the elements read and written to estimate the work
    table: array[int] | None = None  # read by the kernel of a map, before the pointers
    packed: int = 0  # weights that each chunk packs


def _of_product(form: ProductForm, dtype: str, traversal: str) -> _Printed:
    reading = form.reading
    if is_map(form):
        return _of_map(form, dtype)
    kernel = Kernel(form.program, form.task, dtype, traversal, form.shared, reading.reads if reading else 0)
    written = {RESULTS[operand] for operand in form.task.results}
    transposed = kernel.transposed
    pointers = []
    for name, operand in kernel.task.pointers:
        if name not in written:
            number = form.names.index(name)
            source = form.operands[number]
            rows = 0 if source.rows == "one" else reading.orders if reading and source.rows == "table" else 1
            transpose = launch.load_import(form.program, operand, dtype) if operand in transposed else None
            pointers.append(_Pointer(number, rows, source.width, transpose))
    return _Printed(kernel, pointers, [True] * len(form.results))


def _of_map(form: ProductForm, dtype: str) -> _Printed:
    kernel = MapKernel(form.program, form.task, dtype, MAPS[form.rows])
    read = {name for name, _ in form.task.pointers}  # all but g for z alone
    operands = [(number, o) for number, o in enumerate(form.operands) if o.name in read]
    pointers = [_Pointer(number, int(o.rows != "one"), o.width) for number, o in operands]
    packed = form.program.widths[2] if MAPS[form.rows] == "rows" else 0
    return _Printed(kernel, pointers, [True] * len(form.results), form.program.widths[2] // 8, kernel.table, packed)


def _of_formula(base: Formula, dtype: str, traversal: str) -> _Printed:
    pointers = [_Pointer(number, int(o.rows != "one"), o.width) for number, o in enumerate(base.operands)]
    written = [result.rows != "one" and base.covers(number) for number, result in enumerate(base.results)]
    return _Printed(FormulaKernel(base, dtype, traversal), pointers, written, base.operations)


_PRINT: dict[str, Callable[[Any, str, str], _Printed]] = {"product": _of_product, "formula": _of_formula}


class _Runner:
    """A loaded kernel of one form and traversal; half precision is computed in float32."""

    def __init__(self, form: Any, dtype: torch.dtype, traversal: str) -> None:
        self.form, self.dtype, self.compute, self.reading = form, dtype, ACCUMULATE[dtype], form.reading
        one, senders = alone(form, traversal), any(result.rows == "src" for result in form.results)
        #: Of one thread, and of several, which may not add to the same rows.
        self.traversals = one, traversal if senders else one
        self.kernels: dict[str, Compiled] = {}
        printed = self._load(self.traversals[torch.get_num_threads() > 1])
        self.operands, self.table = printed.operands, printed.table
        #: Width of every result, the entry of the sizes for its rows, and whether the kernel writes all of it.
        self.results = [
            (r.width, SIZE_INDEX.get(r.rows), whole) for r, whole in zip(form.results, printed.written, strict=True)
        ]
        widths = [o.width for o in self.operands if o.rows] + [r.width for r in form.results if r.rows != "one"]
        self.elements = sum(widths) + printed.operations
        self.shared = sum(result.width for result in form.results if result.rows == "one") + printed.packed
        self.sums = [number for number, result in enumerate(form.results) if result.rows == "one"]
        self.folds = [number for number, result in enumerate(form.results) if result.rows == "table"]
        self.item = self.compute.itemsize

    def _load(self, traversal: str) -> _Printed:
        """Print, compile and load the kernel of a traversal."""
        with as_backend_error():
            printed = _PRINT[self.form.family](self.form, NAMES[self.compute], traversal)
            self.kernels[traversal] = launch.load(printed.kernel)
        return printed

    def __call__(self, operands: Sequence[Tensor], graph: Tensor | None, sizes: Sizes) -> list[Tensor]:
        """Allocate the results, run the kernel, and return them in the order of the form."""
        workers, compute, reading = torch.get_num_threads(), self.compute, self.reading
        chunks = 1
        if workers > 1 or self.sums:
            chunks = launch.chunks_for(sizes[0] * self.elements, workers, bool(self.sums), self.shared)
        packed = [] if self.table is None else [self.table.buffer_info()[0], 0]
        alive = []
        for number, rows, width, transpose in self.operands:
            tensor = operands[number]
            if tensor.dtype is not compute:
                tensor = tensor.to(compute)
            step = width
            if not tensor.is_contiguous():  # rows may lie anywhere, the elements of a row side by side
                if tensor.stride()[-1] != 1 and width > 1:
                    tensor = tensor.contiguous()
                else:
                    step = tensor.stride()[0]
            if transpose is not None:
                tensor, step = _transposed(tensor, transpose, workers), width
            alive.append(tensor)  # lives until the kernel has read it
            packed += (tensor.data_ptr(), step * rows)
        first, results, largest = alive[0], [], 0
        intervals = 0 if reading is None else reading.intervals(sizes.table)
        for width, index, written in self.results:
            count = chunks if index is None else sizes[index]
            if index == 3:  # the rows that each interval reads
                count, width = intervals, reading.reads * width
            elements = count * width
            if not written:
                result = first.new_zeros(count, width)
            else:
                result = first.new_empty(count, width) if elements < FEW else empty(first, count, width)
            if index != 3 and elements > largest:
                largest = elements
            results.append(result)
            packed += (result.data_ptr(), width)
        segments, traversal = sizes[0], self.traversals[workers > 1]
        if graph is not None:
            graph = graph.contiguous()
            segments = self._pack_tables(packed, graph, sizes, intervals, traversal)
        if traversal not in self.kernels:
            self._load(traversal)
        past_caches = largest * self.item > PAST_CACHES_BYTES
        try:
            self.kernels[traversal](segments, packed, chunks, workers, past_caches)
        except IndexError as error:
            raise not_of_this_graph() from error
        for number in self.sums:
            results[number] = results[number].sum(0) if chunks > 1 else results[number][0]
        for number in self.folds:
            results[number] = reading.folded(results[number])
        return results if compute is self.dtype else [result.to(self.dtype) for result in results]

    def _pack_tables(self, packed: list[int], graph: Tensor, sizes: Sizes, intervals: int, traversal: str) -> int:
        """Add the addresses of a graph's tables; returns the number of nodes. IndexRangeError for another graph."""
        edges, senders, receivers, _ = sizes
        first, of_graph = graph.data_ptr(), offsets_of(edges, senders, receivers)
        of_intervals = None if self.reading is None else interval_offsets(edges, intervals)
        if traversal == "by_place" and of_intervals is not None:
            segments, others = intervals, senders
            ptr, numbers, endpoints = (of_graph.length + offset for offset in of_intervals[:3])
        else:
            segments, others = (senders, receivers) if traversal == "by_src" else (receivers, senders)
            ptr, numbers, endpoints = getattr(of_graph, traversal)
        packed += (first + 8 * ptr, first + 8 * numbers, first + 8 * endpoints, edges, others)
        if of_intervals is not None:
            by_interval = traversal == "by_place"
            far, count = (of_intervals.receivers, receivers) if by_interval else (of_intervals.interval, intervals)
            packed += (first + 8 * (of_graph.length + far), count)
        if ctypes.c_int64.from_address(first + 8 * (ptr + segments)).value != edges:  # rows would be left as they are
            raise not_of_this_graph()
        return segments


def empty(like: Tensor, rows: int, width: int) -> Tensor:
    """``[rows, width]``, in huge pages where that is worth it."""
    out = like.new_empty(rows, width)
    if (size := rows * width * out.itemsize) >= memory.WORTH_BYTES:
        memory.advise_huge_pages(out.data_ptr(), size)
    return out


def _transposed(tensor: Tensor, transpose: Compiled, workers: int) -> Tensor:
    out = empty(tensor, tensor.shape[0], tensor.shape[1])
    packed = [tensor.data_ptr(), tensor.stride(0), out.data_ptr(), out.stride(0)]
    transpose(tensor.shape[0], packed, launch.chunks_for(2 * tensor.numel(), workers), workers)
    return out
