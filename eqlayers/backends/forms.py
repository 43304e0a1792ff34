"""Whole forms and the tables of graphs, whoever runs them: the tensors' device says who, or the key."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from eqlayers_kernels.c import edges as c_edges
from eqlayers_kernels.triton import edges as triton_edges

from ..errors import BackendError
from ..ops.form import FormCall, Request, find_form, split_key
from . import cpu
from .operands import check_edges, check_operands
from .registry import find, select

#: The backend that runs forms on each type of device.
BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}


def run_form(key: str, request: Request, tensors: Mapping[str, Tensor], graph: Tensor | None) -> dict[str, Tensor]:
    """Run one form.

    Args:
        key: Of a :class:`eqlayers.ops.form.Form`, after the wishes of a :class:`eqlayers.ops.form.How`.
        request: What is wanted.
        tensors: By the kernels' names: x, y, w, g and the tangents dx, dy, dw. ``[N, width]``, or w and dw ``[width]``
            if shared. In a convolution x has a row per sender, g per receiver, y and w per edge.
        graph: None, or the tables of :func:`edge_tables`.

    Returns:
        The results by operand.

    Raises:
        ShapeError, DTypeError, DeviceError: The tensors do not fit the form.
        IndexRangeError: The graph's tables are others than those of its edges (found on CPU only).
        BackendError: The compiler failed, or the backend runs no such forms. ConfigError: Nobody knows the key.
    """
    how, bare = split_key(key)
    rows = check_operands(find_form(bare).program.widths, tensors, graph)
    device = tensors["x"].device.type
    name = how.backend or BY_DEVICE[device]
    run = find(name).form
    if run is None:
        raise BackendError(f"the backend of a key must run whole forms, got {name!r}. Call it through a layer.")
    if name != BY_DEVICE[device]:  # on another device than its own it would read addresses that are none
        select(FormCall(tensors["x"].dtype, device, bare), name)
    if not request.results:
        return {}
    found: dict[str, Tensor] = run(bare, request, tensors, graph, rows, how.deterministic)
    return found


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
