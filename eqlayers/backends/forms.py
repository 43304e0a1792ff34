"""Whole forms and the tables of graphs, whoever runs them: the tensors' device says who, or the caller."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from eqlayers_kernels.c import edges as c_edges
from eqlayers_kernels.triton import edges as triton_edges
from eqlayers_kernels.writer import Kind

from ..errors import BackendError
from ..ops.form import FormCall, find_form
from . import cpu
from .operands import check_edges, check_operands
from .registry import find, select

#: The backend that runs forms on each type of device.
BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}


def run_form(
    kind: Kind,
    tensors: Mapping[str, Tensor],
    graph: Tensor | None,
    key: str,
    backend: str = "",
    deterministic: bool = True,
) -> dict[str, Tensor]:
    """Run one form.

    Args:
        kind: What is wanted.
        tensors: By the kernels' names: x, y, w, g and the tangents dx, dy, dw. ``[N, width]``, or w and dw ``[width]``
            if shared. In a convolution x has a row per sender, g per receiver, y and w per edge.
        graph: None, or the tables of :func:`edge_tables`.
        key: Of a :class:`eqlayers.ops.form.Form`.
        backend: Who runs it; empty for the one of the tensors' device.
        deterministic: Whether sums must have a fixed order.

    Returns:
        The results by operand, in the order of the kind.

    Raises:
        ShapeError, DTypeError, DeviceError: The tensors do not fit the form.
        IndexRangeError: The graph's tables are others than those of its edges (found on CPU only).
        BackendError: The compiler failed, or the backend runs no such forms. ConfigError: Nobody knows the key.
    """
    rows = check_operands(find_form(key).program.widths, tensors, graph)
    device = tensors["x"].device.type
    name = backend or BY_DEVICE[device]
    run = find(name).form
    if run is None:
        raise BackendError(f"backend must run whole forms here, got {name!r}. Call it through a layer.")
    if name != BY_DEVICE[device]:  # on another device than its own it would read addresses that are none
        select(FormCall(tensors["x"].dtype, device, key), name)
    if not kind.results:
        return {}
    found: dict[str, Tensor] = run(key, kind, tensors, graph, rows, deterministic)
    return found if len(found) == 1 else {name: found[name] for name in kind.results}


def edge_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """The edges ``[2, E]`` sorted by receiver and by sender, as the kernels of their device read them.

    Raises:
        ShapeError, DTypeError: ``edge_index`` is no ``[2, E]`` tensor of integers, or a number of nodes is negative.
        IndexRangeError: An index lies outside its nodes (found on CPU only).
    """
    check_edges(edge_index, num_src, num_dst)
    if edge_index.device.type == "cpu":
        return cpu.edge_tables(edge_index, num_src, num_dst)
    return triton_edges.pack(edge_index, num_src, num_dst)


def length_of(edge_index: Tensor, num_src: int, num_dst: int) -> int:
    """Elements of :func:`edge_tables`, which raises the same errors but for what lies inside."""
    check_edges(edge_index, num_src, num_dst)
    if edge_index.device.type == "cpu":
        return c_edges.tables(edge_index.shape[1], num_src, num_dst).length
    return triton_edges.length(edge_index.shape[1], num_src, num_dst)
