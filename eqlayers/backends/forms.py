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
from .registry import FormUse, Runner, find, select

#: The backend that runs forms on each type of device.
BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}


def prepare(
    kind: Kind,
    tensors: Mapping[str, Tensor],
    graph: Tensor | None,
    key: str,
    backend: str = "",
    deterministic: bool = True,
) -> tuple[Runner, dict[str, int]]:
    """Look at the operands of a form, and find who runs it.

    Args:
        kind: What is wanted.
        tensors: By the kernels' names: x, y, w, g and the tangents dx, dy, dw. ``[N, width]``, or w and dw ``[width]``
            if shared. In a convolution x has a row per sender, g per receiver, y and w per edge.
        graph: None, or the tables of :func:`edge_tables`.
        key: Of a :class:`eqlayers.ops.form.Form`.
        backend: Who runs it; empty for the one of the tensors' device.
        deterministic: Whether sums must have a fixed order.

    Returns:
        A function of tensors, graph and rows, which gives the results by operand; and the rows.

    Raises:
        ShapeError, DTypeError, DeviceError: The tensors do not fit the form.
        BackendError: The compiler failed, or the backend runs no such forms. ConfigError: Nobody knows the key.
        IndexRangeError: (when it runs) The tables are others than those of its edges; found on CPU only.
    """
    rows = check_operands(find_form(key).program.widths, tensors, graph)
    x = tensors["x"]
    home = BY_DEVICE[x.device.type]
    find_runner = find(backend or home).form
    if find_runner is None:
        raise BackendError(f"backend must run whole forms here, got {backend!r}. Call it through a layer.")
    if backend and backend != home:  # on another device than its own it would read addresses that are none
        select(FormCall(x.dtype, x.device.type, key), backend)
    if not kind.results:
        return _nothing, rows
    use = FormUse(key, kind, x.dtype, graph is not None, tensors["w"].ndim == 1, deterministic)
    return find_runner(use, x.device), rows


def _nothing(tensors: Mapping[str, Tensor], graph: Tensor | None, rows: Mapping[str, int]) -> dict[str, Tensor]:
    return {}


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
