"""Backend ``cpu``: generated C, compiled at first use; a whole tensor product or convolution is one call."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from eqlayers_kernels.arithmetic.writer import RESULTS
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.build.errors import CompilerError
from eqlayers_kernels.c.print.printer import Kernel
from eqlayers_kernels.c.run import launch, memory
from eqlayers_kernels.c.run.edges import sort_edges, tables
from eqlayers_kernels.c.run.launch import Compiled
from eqlayers_kernels.forms.program import OPERANDS

from ..errors import BackendError, IndexRangeError
from ..forms.program import FormCall, find_form
from ..ops.call import ACCUMULATE, DTYPES, ProductCall, ScaleCall
from .operands import not_of_this_graph
from .registry import Backend, Call, FormUse, Runner

#: Results larger than this are stored past the caches: whoever reads them finds them in memory anyway.
PAST_CACHES_BYTES = 4 << 20
NAMES = {torch.float32: "float32", torch.float64: "float64"}

_runners: dict[FormUse, Runner] = {}
_said: set[str] = set()


def refuse(call: Call) -> str | None:
    """None if generated C can run the call, else why not."""
    whole = isinstance(call, FormCall)
    device, dtype = (call.device, call.dtype) if isinstance(call, FormCall) else (call.x.device.type, call.x.dtype)
    if device != "cpu":
        return f"needs CPU tensors, got {device}"
    if dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {dtype}"
    no_compiler = _no_compiler()
    if whole or no_compiler:
        return no_compiler
    return "runs whole tensor products and convolutions; a single sparse product has no generated kernel"


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


def find_runner(use: FormUse, device: torch.device) -> Runner:
    """The kernel of a form; sums have a fixed order in any case.

    Raises:
        BackendError: The compiler failed.
    """
    found = _runners.get(use)
    if found is None:
        with as_backend_error():
            found = _runners[use] = _make_runner(use)
    return found


def _make_runner(use: FormUse) -> Runner:
    if not use.graph or use.kind.order < 2:
        return _Runner(use, "rows" if not use.graph else "by_src" if use.kind.order else "by_dst")
    walks = (("by_dst", ("z",)), ("by_src", ("x", "y", "w")))  # z belongs to receivers, gradients to senders
    kinds = [
        (walk, use.kind._replace(results=tuple(name for name in use.kind.results if name in part)))
        for walk, part in walks
    ]
    runners = [_Runner(use._replace(kind=kind), walk) for walk, kind in kinds if kind.results]

    def run(tensors: Mapping[str, Tensor], graph: Tensor | None, rows: Mapping[str, int]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for runner in runners:
            out |= runner(tensors, graph, rows)
        return out

    return runners[0] if len(runners) == 1 else run


@contextmanager
def as_backend_error() -> Iterator[None]:
    """Errors of the compiler are those of this backend."""
    try:
        yield
    except CompilerError as error:
        raise BackendError(f"{error}. Or pass backend='torch'.") from error


class _Runner:
    """A kernel that is loaded, and all that its calls have in common.

    Args:
        use: What is asked for; half precision is computed in float32.
        walk: 'rows', 'by_dst' (edges of every receiver) or 'by_src' (of every sender).
    """

    def __init__(self, use: FormUse, walk: str) -> None:
        program, kind, shared = find_form(use.form).program, use.kind, use.shared
        self.dtype, self.compute = use.dtype, ACCUMULATE[use.dtype]
        name = NAMES[self.compute]
        kernel = Kernel(program, kind, name, walk, shared)
        self.compiled = launch.load(kernel)
        widths = dict(zip(OPERANDS, program.widths, strict=True))
        pointers = kernel.kind.pointers
        made = {RESULTS[operand]: operand for operand in kind.results}
        self.made = [(operand, widths[operand]) for pointer, operand in pointers if pointer in made]
        turned = kernel.wants_ir_mul
        self.given = [
            (
                pointer,
                shared and operand == "w",
                launch.load_import(program, operand, name) if operand in turned else None,
            )
            for pointer, operand in pointers
            if pointer not in made
        ]
        self.elements = sum(widths[operand] for _, operand in pointers)
        self.walk = walk
        self.sums_weights = shared and "w" in kind.results
        self.item = self.compute.itemsize

    def __call__(
        self, tensors: Mapping[str, Tensor], graph: Tensor | None, rows: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Results by operand."""
        edges, senders, receivers = rows["y"], rows["x"], rows["z"]
        workers, compute = torch.get_num_threads(), self.compute
        chunks = launch.chunks_for(edges * self.elements, workers, self.sums_weights)
        packed: list[int] = []
        keep = []
        for pointer, shared, turn in self.given:
            tensor = tensors[pointer]
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
            packed += (tensor.data_ptr(), 0 if shared else steps[0])
        results, largest = {}, 0
        for operand, width in self.made:
            count = chunks if operand == "w" and self.sums_weights else rows[operand]
            made = results[operand] = empty(keep[0], count, width)
            packed += (made.data_ptr(), width)
            largest = max(largest, count * width)
        segments = edges
        if graph is not None:
            graph = graph.contiguous()
            first, by_dst = graph.data_ptr(), self.walk == "by_dst"
            segments, others = (receivers, senders) if by_dst else (senders, receivers)
            ptr, numbers, ends = getattr(tables(edges, senders, receivers), self.walk)
            packed += (first + 8 * ptr, first + 8 * numbers, first + 8 * ends, edges, others)
            last = ctypes.c_int64.from_address(first + 8 * (ptr + segments)).value
            if last != edges:  # rows would be left as they are
                raise not_of_this_graph()
        try:
            self.compiled(segments, packed, chunks, workers, past_caches=largest * self.item > PAST_CACHES_BYTES)
        except IndexError as error:
            raise not_of_this_graph() from error
        if self.sums_weights:
            results["w"] = results["w"].sum(0) if chunks > 1 else results["w"][0]
        if compute is not self.dtype:
            results = {name: value.to(self.dtype) for name, value in results.items()}
        return results


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


def _never(call: ProductCall | ScaleCall) -> Tensor:
    raise BackendError("backend 'cpu' must be given whole forms, got a sparse product. Let select() choose.")


BACKEND = Backend("cpu", _never, _never, refuse, form=find_runner)
