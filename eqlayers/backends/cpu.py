"""Backend ``cpu``: generated C, compiled at first use; a whole tensor product or convolution is one call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from eqlayers_kernels.c import compiler, launch, memory
from eqlayers_kernels.c.edges import sort_edges
from eqlayers_kernels.c.errors import CompilerError
from eqlayers_kernels.c.launch import Compiled, Rows
from eqlayers_kernels.c.path import RESULTS, Kind
from eqlayers_kernels.c.printer import Kernel
from eqlayers_kernels.program import OPERANDS

from ..errors import BackendError, IndexRangeError
from ..ops.call import ACCUMULATE, DTYPES, ProductCall, ScaleCall
from ..ops.form import Form, FormCall, Request, find_form
from .registry import Backend, Call

#: Results larger than this are stored past the caches: whoever reads them finds them in memory anyway.
PAST_CACHES_BYTES = 4 << 20
_NAMES = {torch.float32: "float32", torch.float64: "float64"}

_compiled: dict[tuple[object, ...], Compiled] = {}
_said: set[str] = set()


def refuse(call: Call) -> str | None:
    """None if generated C can run the call, else why not."""
    if not isinstance(call, FormCall):
        return "runs whole tensor products and convolutions; a single sparse product has no generated kernel"
    if call.device != "cpu":
        return f"needs CPU tensors, got {call.device}"
    if call.dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {call.dtype}"
    return compiler.why_not()


def warn_once(reason: str) -> None:
    """Say, once in a process, that layers run on the torch backend and why."""
    if reason not in _said:
        _said.add(reason)
        warnings.warn(
            f"expected to run tensor products as generated C, but backend 'cpu' {reason}. They run on backend 'torch', "
            f"which is several times slower; pass backend='torch' to choose it without this message",
            RuntimeWarning,
            stacklevel=5,
        )


def run_form(key: str, request: Request, tensors: Mapping[str, Tensor], graph: list[Tensor]) -> dict[str, Tensor]:
    """Run one form.

    Args:
        key: Of a :class:`Form`.
        request: What is wanted.
        tensors: By the kernel's names: x, y, w, g and the tangents dx, dy, dw. ``[N, width]``, or w and dw
            ``[width]`` if shared. In a convolution x has a row per sender, g per receiver, y and w per edge.
        graph: Empty, or the tables of :func:`edge_tables` for receivers, then for senders.

    Returns:
        The results by operand.

    Raises:
        BackendError: The compiler failed.
    """
    form = find_form(key)
    if graph and request.order == 2:  # z belongs to receivers, gradients to senders: two walks
        parts = [tuple(r for r in request.results if (r == "z") == is_z) for is_z in (True, False)]
        out: dict[str, Tensor] = {}
        for part in parts:
            if part:
                walk = "by_z" if "z" in part else "by_x"
                out |= _run(form, request._replace(results=part), tensors, graph, walk)
        return out
    walk = "rows" if not graph else "by_z" if request.order == 0 else "by_x"
    return _run(form, request, tensors, graph, walk)


def _run(
    form: Form, request: Request, tensors: Mapping[str, Tensor], graph: list[Tensor], walk: str
) -> dict[str, Tensor]:
    dtype = tensors["x"].dtype
    compute = ACCUMULATE[dtype]
    shared = tensors["w"].ndim == 1
    kernel, compiled = _load(form, request, _NAMES[compute], walk, shared)
    widths = dict(zip(OPERANDS, form.program.widths, strict=True))
    given = {name: _rows(tensors[name], compute) for name, _ in kernel.kind.pointers if name in tensors}
    tables = graph[:3] if walk == "by_z" else graph[3:]
    edges = given["y"].shape[0]
    segments = tables[0].shape[0] - 1 if graph else edges
    counts = {"x": given["x"].shape[0], "y": edges, "w": edges, "z": graph[0].shape[0] - 1 if graph else edges}
    workers = torch.get_num_threads()
    elements = edges * sum(widths[operand] for _, operand in kernel.kind.pointers)
    chunks = launch.chunks_for(elements, workers, shared and "w" in request.results)
    for operand in kernel.wants_ir_mul:
        turned = _load_import(form, operand, _NAMES[compute])
        for name in [n for n, o in kernel.kind.pointers if o == operand and n in given]:
            given[name] = _turned(given[name], turned, workers)
    results = {}
    for name in request.results:
        rows = chunks if name == "w" and shared else counts[name]
        results[name] = _empty(rows, widths[name], compute)
    pointers = []
    for name, operand in kernel.kind.pointers:
        tensor = given[name] if name in given else results[operand]
        step = 0 if operand == "w" and shared and name in given else tensor.stride(0)
        pointers.append(Rows(tensor.data_ptr(), step))
    largest = max(t.numel() for t in results.values()) * given["x"].element_size()
    addresses = [table.data_ptr() for table in tables]
    compiled(segments, pointers, addresses, chunks, workers, past_caches=largest > PAST_CACHES_BYTES)
    if shared and "w" in results:
        results["w"] = results["w"].sum(0)
    return results if compute == dtype else {name: value.to(dtype) for name, value in results.items()}


def _empty(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    out = torch.empty(rows, width, dtype=dtype, device="cpu")
    if (size := out.nbytes) >= memory.WORTH_BYTES:
        memory.advise_huge_pages(out.data_ptr(), size)
    return out


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor that kernels can read: rows anywhere in memory, elements of a row side by side."""
    tensor = tensor if tensor.dtype == dtype else tensor.to(dtype)
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _load(form: Form, request: Request, dtype: str, walk: str, shared: bool) -> tuple[Kernel, Compiled]:
    name = (form.key, request, dtype, walk, shared)
    if name not in _compiled:
        kernel = Kernel(form.program, Kind(*request), dtype, walk, shared)
        try:
            _compiled[name] = (kernel, launch.load(kernel))
        except CompilerError as error:
            raise BackendError(f"{error}. Or pass backend='torch'.") from error
    return _compiled[name]


def _load_import(form: Form, operand: str, dtype: str) -> Compiled:
    name = (form.key, operand, dtype)
    if name not in _compiled:
        _compiled[name] = launch.load_import(form.program, operand, dtype)
    return _compiled[name]


def _turned(tensor: Tensor, turn: Compiled, workers: int) -> Tensor:
    out = _empty(*tensor.shape, tensor.dtype)
    pointers = [Rows(tensor.data_ptr(), tensor.stride(0)), Rows(out.data_ptr(), out.stride(0))]
    turn(tensor.shape[0], pointers, chunks=launch.chunks_for(2 * tensor.numel(), workers, False), workers=workers)
    return out


def edge_tables(key: Tensor, other: Tensor, nodes: int, names: tuple[str, str]) -> list[Tensor]:
    """Edges in the order of ``key``: where each node's begin ``[nodes + 1]``, their numbers and other ends ``[E]``.

    Raises:
        IndexRangeError: ``key`` has an element outside ``[0, nodes)``; ``names`` say of what.
    """
    key, other = key.contiguous(), other.contiguous()
    ptr, edges = torch.empty(nodes + 2, dtype=torch.int64, device="cpu"), torch.empty_like(key)
    others = torch.empty_like(key)
    wrong = sort_edges(
        key.data_ptr(), other.data_ptr(), key.shape[0], nodes, ptr.data_ptr(), edges.data_ptr(), others.data_ptr()
    )
    if wrong >= 0:
        raise IndexRangeError(
            f"{names[0]} must lie in [0, {nodes}), the {names[1]}, got {int(key[wrong])} at edge {wrong}. Check that "
            f"edge_index is [src, dst], and pass num_nodes if some receivers have no edges."
        )
    return [ptr[:-1], edges, others]


def _never(call: ProductCall | ScaleCall) -> Tensor:
    raise BackendError("backend 'cpu' must be given whole forms, got a sparse product. Let select() choose.")


BACKEND = Backend("cpu", _never, _never, refuse, form=run_form)
