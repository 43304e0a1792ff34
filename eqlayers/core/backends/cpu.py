"""Backend ``cpu``: generated C, compiled at first use; a whole tensor product or convolution is one call."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from eqlayers_kernels.arithmetic.writer import RESULTS
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.build.errors import CompilerError
from eqlayers_kernels.c.print.printer import Kernel
from eqlayers_kernels.c.run import launch, memory
from eqlayers_kernels.c.run.edges import place_tables, sort_edges, sort_places, tables
from eqlayers_kernels.c.run.launch import Compiled
from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import OPERANDS

from ..dtypes import ACCUMULATE, DTYPES
from ..errors import BackendError, IndexRangeError
from ..forms.program import FormCall
from .operands import not_of_this_graph
from .request import Request, Runner

#: Results larger than this are stored past the caches: a reader finds them in memory anyway.
PAST_CACHES_BYTES = 4 << 20
#: Results of fewer elements are never worth huge pages.
FEW = memory.WORTH_BYTES // 8

NAMES = {torch.float32: "float32", torch.float64: "float64"}

#: Along the edges of a graph: z belongs to receivers, the rows of a table to places in it, other gradients to senders.
WALKS = {"by_dst": "z", "by_src": "xywc", "by_place": "t"}

#: The places of tables, for calls over one graph.
tables_of = lru_cache(maxsize=64)(tables)
#: Places in the sizes of a call along a graph.
_SIZES = {"x": 1, "y": 0, "w": 0, "c": 0, "t": 3, "z": 2}
_said: set[str] = set()


def refuse(call: FormCall) -> str | None:
    """None if generated C can run the call, else why not."""
    if call.device != "cpu":
        return f"needs CPU tensors, got {call.device}"
    if call.dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {call.dtype}"
    return _no_compiler()


@torch.compiler.assume_constant_result
def _no_compiler() -> str | None:
    return compiler.why_not()


def warn_once(reason: str) -> None:
    """Say, once in a process, that layers run on the torch backend and why."""
    if reason not in _said:
        _said.add(reason)
        warnings.warn(
            f"expected to run layers as generated C, but backend 'cpu' {reason}. They run on backend 'torch', "
            f"which is several times slower; pass backend='torch' to choose it without this message",
            RuntimeWarning,
            stacklevel=5,
        )


def make_runner(request: Request) -> Runner:
    """The kernels of a product; sums have a fixed order in any case.

    Raises:
        BackendError: The compiler failed.
    """
    form: ProductForm = request.form
    with as_backend_error():
        if not request.graph:
            return _Runner(form, request.dtype, "rows")
        kinds = [
            (walk, form.kind._replace(results=tuple(name for name in form.kind.results if name in part)))
            for walk, part in WALKS.items()
        ]
        runners = [_Runner(replace(form, kind=kind), request.dtype, walk) for walk, kind in kinds if kind.results]
    if len(runners) == 1:
        return runners[0]

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
        out: dict[str, Tensor] = {}
        for runner in runners:
            out |= zip(runner.results, runner(operands, graph, sizes), strict=True)
        return [out[name] for name in form.kind.results]

    return run


@contextmanager
def as_backend_error() -> Iterator[None]:
    """Turn errors of the compiler into errors of this backend."""
    try:
        yield
    except CompilerError as error:
        raise BackendError(f"{error}. Or pass backend='torch'.") from error


class _Runner:
    """A kernel that is loaded, and all that its calls have in common.

    Args:
        form: What to compute.
        dtype: Of operands and results; half precision is computed in float32.
        walk: 'rows', or one of `WALKS`: edges of every receiver, of every sender, or of every place in a table.
    """

    def __init__(self, form: ProductForm, dtype: torch.dtype, walk: str) -> None:
        program, kind, shared = form.program, form.kind, form.shared
        self.dtype, self.compute = dtype, ACCUMULATE[dtype]
        name = NAMES[self.compute]
        kernel = Kernel(program, kind, name, walk, shared, form.reading.reads if form.reading else 0)
        self.compiled = launch.load(kernel)
        widths = dict(zip(OPERANDS, program.widths, strict=True))
        self.reading = form.reading
        if form.reading is not None:
            widths |= {"t": widths["w"], "c": form.reading.reads}
        pointers = kernel.kind.pointers
        made = {RESULTS[operand]: operand for operand in kind.results}
        self.made = [(operand, widths[operand], _SIZES[operand]) for pointer, operand in pointers if pointer in made]
        self.results, names = kind.results, kind.names
        self.in_order = tuple(name for name, _, _ in self.made) == kind.results
        turned = kernel.wants_ir_mul
        self.given = [
            (
                names.index(pointer),
                0 if shared and operand == "w" else form.reading.orders if form.reading and operand == "t" else 1,
                launch.load_import(program, operand, name) if operand in turned else None,
            )
            for pointer, operand in pointers
            if pointer not in made
        ]
        self.elements = sum(widths[operand] for _, operand in pointers)
        self.walk = walk
        self.sums_weights = shared and "w" in kind.results
        self.item = self.compute.itemsize

    def __call__(self, operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int]) -> list[Tensor]:
        """Results; ``sizes`` are rows, senders and receivers, and rows of a table."""
        edges, senders, receivers = sizes[:3]
        workers, compute = torch.get_num_threads(), self.compute
        chunks = launch.chunks_for(edges * self.elements, workers, self.sums_weights)
        packed: list[int] = []
        keep = []
        for number, orders, turn in self.given:
            tensor = operands[number]
            if tensor.dtype is not compute:
                tensor = tensor.to(compute)
            steps = tensor.stride()
            if steps[-1] != 1 and tensor.shape[-1] > 1:
                tensor = tensor.contiguous()  # rows may lie anywhere, the elements of a row side by side
                steps = tensor.stride()
            if turn is not None:
                tensor = _turned(tensor, turn, workers)
                steps = tensor.stride()
            keep.append(tensor)  # lives until the kernel has read it
            packed += (tensor.data_ptr(), steps[0] * orders)
        results, largest = {}, 0
        places = 0 if self.reading is None else self.reading.places(sizes[3])
        nodes = 0 if graph is None else 1
        for operand, width, place in self.made:
            if operand == "t" and self.reading is not None:
                made = results["t"] = empty(keep[0], places, self.reading.reads * width)
                packed += (made.data_ptr(), made.shape[1])
                continue
            count = chunks if operand == "w" and self.sums_weights else sizes[place * nodes]
            few = count * width < FEW
            made = results[operand] = keep[0].new_empty(count, width) if few else empty(keep[0], count, width)
            packed += (made.data_ptr(), width)
            largest = max(largest, count * width)
        segments = edges
        if graph is not None:
            graph = graph.contiguous()
            first, found = graph.data_ptr(), tables_of(edges, senders, receivers)
            own = place_tables(edges, places) if self.reading is not None else None
            if self.walk == "by_place" and own is not None:
                segments, others = places, senders
                ptr, numbers, ends = (found.length + place for place in own[:3])
            else:
                segments, others = (receivers, senders) if self.walk == "by_dst" else (senders, receivers)
                ptr, numbers, ends = getattr(found, self.walk)
            packed += (first + 8 * ptr, first + 8 * numbers, first + 8 * ends, edges, others)
            if own is not None:
                far = (own.receivers, receivers) if self.walk == "by_place" else (own.place, places)
                packed += (first + 8 * (found.length + far[0]), far[1])
            last = ctypes.c_int64.from_address(first + 8 * (ptr + segments)).value
            if last != edges:  # rows would be left as they are
                raise not_of_this_graph()
        try:
            self.compiled(segments, packed, chunks, workers, past_caches=largest * self.item > PAST_CACHES_BYTES)
        except IndexError as error:
            raise not_of_this_graph() from error
        if self.sums_weights:
            results["w"] = results["w"].sum(0) if chunks > 1 else results["w"][0]
        if "t" in results and self.reading is not None:
            results["t"] = self.reading.folded(results["t"])
        if compute is not self.dtype:
            return [results[name].to(self.dtype) for name in self.results]
        return [*results.values()] if self.in_order else [results[name] for name in self.results]


def empty(like: Tensor, rows: int, width: int) -> Tensor:
    """``[rows, width]``, in huge pages where that is worth it."""
    out = like.new_empty(rows, width)
    if (size := rows * width * out.itemsize) >= memory.WORTH_BYTES:
        memory.advise_huge_pages(out.data_ptr(), size)
    return out


def _turned(tensor: Tensor, turn: Compiled, workers: int) -> Tensor:
    out = empty(tensor, tensor.shape[0], tensor.shape[1])
    packed = [tensor.data_ptr(), tensor.stride(0), out.data_ptr(), out.stride(0)]
    turn(tensor.shape[0], packed, launch.chunks_for(2 * tensor.numel(), workers, False), workers)
    return out


def edge_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """The edges ``[2, E]`` sorted by receiver and by sender, as `eqlayers_kernels.c.run.edges.tables` describes.

    Raises:
        IndexRangeError: An index lies outside its nodes.
    """
    edges = edge_index.to(torch.int64).contiguous()
    count = edges.shape[1]
    out = torch.empty(tables(count, num_src, num_dst).length, dtype=torch.int64, device="cpu")
    with as_backend_error():
        wrong = sort_edges(edges.data_ptr(), count, num_src, num_dst, out.data_ptr())
    if wrong is not None:
        row, edge = wrong
        name, nodes, what = (("src", num_src, "senders"), ("dst", num_dst, "receivers"))[row]
        raise IndexRangeError(
            f"edge_index[{row}] ({name}) must lie in [0, {nodes}), the number of {what}, got "
            f"{int(edges[row, edge])} at edge {edge}. Check that the rows are (src, dst), and pass num_nodes if there "
            f"are more receivers than senders."
        )
    return out


def place_tables_of(graph: Tensor, edge_index: Tensor, place: Tensor, num_src: int, places: int) -> Tensor:
    """The tables of a graph, and behind them its edges ``[2, E]`` sorted by their places ``[E]`` in a table.

    Raises:
        IndexRangeError: A place lies outside the table.
    """
    edges, place = edge_index.to(torch.int64).contiguous(), place.to(torch.int64).contiguous()
    count, behind = edges.shape[1], graph.shape[0]
    out = torch.empty(behind + place_tables(count, places).length, dtype=torch.int64, device="cpu")
    out[:behind] = graph
    with as_backend_error():
        wrong = sort_places(edges.data_ptr(), place.data_ptr(), count, num_src, places, out.data_ptr() + 8 * behind)
    if wrong is not None:
        raise IndexRangeError(
            f"places must lie in [0, {places}), the places of the table, got {int(place[wrong])} at edge {wrong}. "
            "Clamp them."
        )
    return out
