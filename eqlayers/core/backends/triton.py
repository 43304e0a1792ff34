"""Backend ``triton``: printed kernels for whole products; CUDA and HIP tensors.

In a process that runs Triton's interpreter (``TRITON_INTERPRET=1``) CPU tensors are taken as well, when the backend is
named: the interpreter shows that a kernel is right, and is far too slow to be chosen by default.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from eqlayers_kernels.arithmetic.writer import RESULTS
from eqlayers_kernels.c.run.edges import place_tables as place_tables_of_c
from eqlayers_kernels.c.run.edges import tables as tables_of_c
from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.errors import KernelError
from eqlayers_kernels.triton.print import groups
from eqlayers_kernels.triton.run.edges import pack, pack_places, unpack, unpack_places
from eqlayers_kernels.triton.run.forms import FormRunner

from ..dtypes import DTYPES
from ..errors import IndexRangeError
from ..forms.program import FormCall, find_form
from . import cpu
from .multilinear import product_in_torch
from .operands import not_of_this_graph
from .request import Request, Runner

#: Bytes of which Triton has pointers be a multiple, in kernels with wide loads.
ALIGNMENT = 16
Result = TypeVar("Result")


def refuse(call: FormCall) -> str | None:
    """None if the kernels can run the call, else why not."""
    if call.device != "cuda" and not (call.device == "cpu" and availability.interpreted()):
        return f"needs CUDA or HIP tensors, got {call.device}"
    if (reason := availability.why_not()) is not None:
        return reason
    if call.dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {call.dtype}"
    return groups.why_not(find_form(call.key).program) if call.key else None


def only_named(call: FormCall) -> bool:
    """Whether another backend should run the call unless this backend is named: Triton's interpreter is slow."""
    return call.device == "cpu" or availability.interpreted()


def make_runner(request: Request) -> Runner:
    """Printed kernels for a product; see :func:`eqlayers.core.backends.forms.run_form`."""
    form: ProductForm = request.form
    program, kind, on = form.program, form.kind, availability.processor_of(request.device)
    reading = form.reading
    runner = FormRunner(
        program, kind, request.dtype, request.graph, form.shared, on, not request.deterministic, reading
    )
    made = {RESULTS[operand] for operand in kind.results}
    names = kind.names
    given = [(pointer, names.index(pointer)) for pointer, _ in kind.pointers if pointer not in made]
    without = TorchInstead(f"the convolution or product {program.key}")

    def run(operands: Sequence[Tensor], graph: Tensor | None, counts: Sequence[int]) -> list[Tensor]:
        sizes, tables = (counts[0], counts[1], counts[2]), None
        if graph is not None and reading is not None:
            places = reading.places(counts[3])
            tables = unpack_places(packed_places(graph.contiguous(), *sizes, places), *sizes, places)
        elif graph is not None:
            tables = unpack(packed(graph.contiguous(), *sizes), *sizes)
        own = {pointer: aligned(operands[number]) for pointer, number in given}
        found = without(own["x"].device, lambda: runner(own, tables), lambda: product_in_torch(request, own, tables))
        return [found[name] for name in kind.results]

    return run


class TorchInstead:
    """Torch in place of kernels that do not compile, from the first failure on; a warning then gives the reason.

    Args:
        what: The product or formula whose kernels they are, for the warning.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.on: set[torch.device] = set()

    def __call__(self, device: torch.device, kernels: Callable[[], Result], torch_: Callable[[], Result]) -> Result:
        """The result of the printed kernels, or of torch where they do not run."""
        if device not in self.on:
            try:
                return kernels()
            except KernelError as error:
                warnings.warn(
                    f"kernels of {self.what} must compile for {device}, with fewer registers if need be, got {error}. "
                    "Torch computes it from now on, slower and in more memory. Another release of Triton may.",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self.on.add(device)
        return torch_()


def aligned(tensor: Tensor) -> Tensor:
    """Contiguous rows at a 16-byte aligned address, so that slices use the same compiled kernels."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def packed(graph: Tensor, edges: int, senders: int, receivers: int) -> Tensor:
    """The tables of a graph as printed kernels read them.

    On CPUs, where only the interpreter runs, graphs have the tables of the C kernels, and are packed anew; there is
    time to see that they are what sorting gives.

    Raises:
        IndexRangeError: They are not.
    """
    if graph.device.type != "cpu":
        return graph
    return pack(edges_of_tables(graph, edges, senders, receivers), senders, receivers)


def packed_places(graph: Tensor, edges: int, senders: int, receivers: int, places: int) -> Tensor:
    """The packed graph, followed by the table intervals of its edges.

    Raises:
        IndexRangeError: They are not what sorting gives.
    """
    if graph.device.type != "cpu":
        return graph
    behind = tables_of_c(edges, senders, receivers).length
    index = edges_of_tables(graph[:behind], edges, senders, receivers)
    own = place_tables_of_c(edges, places)
    place = graph[behind + own.place : behind + own.length]
    with suppress(IndexRangeError):
        if torch.equal(cpu.place_tables_of(graph[:behind], index, place, senders, places), graph):
            return torch.cat([pack(index, senders, receivers), pack_places(index, place, places)])
    raise not_of_this_graph()


def edges_of_tables(graph: Tensor, edges: int, senders: int, receivers: int) -> Tensor:
    """``[2, E]``: the edges that tables of the C kernels are of.

    Raises:
        IndexRangeError: They are not what sorting gives.
    """
    start, numbers, others = tables_of_c(edges, senders, receivers).by_dst
    order, place = graph[numbers : numbers + edges], torch.arange(edges)
    if torch.equal(order.sort().values, place):
        index = graph.new_empty(2, edges)
        index[0, order] = graph[others : others + edges]
        index[1, order] = torch.searchsorted(graph[start + 1 : start + receivers + 1], place, right=True)
        with suppress(IndexRangeError):
            if torch.equal(cpu.edge_tables(index, senders, receivers), graph):
                return index
    raise not_of_this_graph()
