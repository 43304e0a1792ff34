"""Checks of the arguments of form operators: everything that a kernel indexes by, before it runs.

Any code may call ``torch.ops.eqlayers.*`` with any tensors, and kernels read addresses. The same function stands in the
operators and in their fakes, so a graph that is traced refuses what the call would. What lies inside the tables of a
graph only a kernel can look at cheaply: see ``eqlayers_kernels.c.run.edges.Tables``. On a GPU neither tables nor
indices are checked, because the stream would wait: only the length of tables is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eqlayers_kernels.c.run import edges as c_edges
from eqlayers_kernels.forms.formula import Operand
from eqlayers_kernels.forms.product import AnyForm
from eqlayers_kernels.triton.run import edges as triton_edges

from ..dtypes import ACCUMULATE
from ..errors import DeviceError, DTypeError, IndexRangeError, ShapeError
from ..forms.description import PLACES
from ..graph import check_edge_index

_TABLES = "the tables that edge_tables(edge_index, num_src, num_dst) makes"
_REMAKE = "Make them anew from the edges of this graph."


def shape_of(one: Operand, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of an operand or result in a batch of so many rows, senders, receivers and of a table."""
    return (one.width,) if one.rows == "one" else (sizes[PLACES[one.rows]], one.width)


def with_table(form: AnyForm, operands: Sequence[Tensor], sizes: Sequence[int]) -> Sequence[int]:
    """Rows, senders and receivers; and the rows of the table, if one is among the operands."""
    if form.reading is None:
        return sizes
    tables = (t for one, t in zip(form.operands, operands, strict=False) if one.rows == "table" and t.ndim)
    return *sizes, next((t.shape[0] for t in tables), 0)


def check_operands(
    form: AnyForm, operands: Sequence[Tensor], graph: Tensor | bool | None, sizes: Sequence[int]
) -> None:
    """Raise unless the tensors fit a form: kernels read addresses.

    Args:
        form: What they are for.
        operands: In its order.
        graph: Tables, or None; or whether there is a graph.
        sizes: Rows of the batch, senders and receivers, and of a table if there is one.

    Raises:
        ShapeError, DTypeError, DeviceError: A tensor has another shape, dtype or device than the others want.
    """
    wanted = form.operands
    if len(operands) != len(wanted):
        names = ", ".join(one.name for one in wanted)
        raise ShapeError(
            f"operands must be {len(wanted)} tensors for this form, {names}, got {len(operands)}. Call it through a "
            f"layer."
        )
    rows, senders, receivers = sizes[:3]
    if rows < 0 or senders < 0 or receivers < 0:
        raise ShapeError(
            f"rows, num_src and num_dst must be 0 or more, got {', '.join(map(str, sizes))}. Count the rows and nodes."
        )
    first = operands[0]
    dtype = first.dtype
    sums = ACCUMULATE.get(dtype)  # constants come in the dtype of the sums
    if sums is None:
        name = wanted[0].name
        raise DTypeError(
            f"{name} must be float64, float32, float16 or bfloat16, got {dtype}. Convert it with `.to(...)`."
        )
    if graph is None or graph is False:
        if form.of_nodes:
            raise ShapeError(
                "a form with rows of senders or receivers must be given a graph, got None. Pass its tables as graph."
            )
    elif graph is not True:
        own = 0
        if len(sizes) > 3:
            assert form.reading is not None
            own = length_of_places(rows, form.reading.places(sizes[3]), first.device)
        if receivers_of(graph, senders, rows, first.device, own) != receivers:
            raise _no_tables(graph, f"{rows} rows, {senders} senders and {receivers} receivers")
    for one, tensor in zip(wanted, operands, strict=True):
        shape = (one.width,) if one.rows == "one" else (sizes[PLACES[one.rows]], one.width)
        if tensor.shape != shape:
            raise ShapeError(
                f"{one.name} must be {list(shape)} for this form, got {list(tensor.shape)}. Call it through a layer."
            )
        if shape[-1] == 0:  # nothing of it is read: weights that a layer does not have
            continue
        if tensor.dtype is not dtype and tensor.dtype is not sums:
            raise DTypeError(
                f"{one.name} must have the dtype of {wanted[0].name}, {dtype}, got {tensor.dtype}. Convert it with "
                f"`.to({dtype})`."
            )
        if tensor is not first and tensor.device != first.device:
            raise DeviceError(
                f"{one.name} must be on the device of {wanted[0].name}, {first.device}, got {tensor.device}. Move it "
                f"with `.to('{first.device}')`."
            )


def length_of_places(edges: int, places: int, device: torch.device) -> int:
    """Length of the interval tables that are appended to the tables of a graph."""
    if device.type == "cpu":
        return c_edges.place_tables(edges, places).length
    return triton_edges.place_length(edges, places)


def receivers_of(graph: Tensor, senders: int, edges: int, device: torch.device, behind: int = 0) -> int:
    """Number of receivers of a graph's tables, with so many numbers behind them.

    Raises:
        ShapeError, DTypeError, DeviceError: They are no tables of so many senders and edges.
    """
    if graph.dtype is not torch.int64:
        raise DTypeError(f"graph must be {_TABLES}, int64, got {graph.dtype}. Pass them as they are.")
    if graph.device != device:
        raise DeviceError(f"graph must be on the device of x, {device}, got {graph.device}. Make it from edges there.")
    if graph.ndim == 1:
        length = graph.shape[0] - behind
        if device.type == "cpu":
            receivers, rest = length - c_edges.tables(edges, senders, 0).length, 0
        else:
            receivers, rest = triton_edges.receivers_of(length, edges, senders)
        if receivers >= 0 and rest == 0:
            return receivers
    raise _no_tables(graph, f"{edges} edges and {senders} senders")


def _no_tables(graph: Tensor, sizes: str) -> ShapeError:
    return ShapeError(f"graph must be {_TABLES}, here of {sizes}, got shape {list(graph.shape)}. {_REMAKE}")


def check_places(graph: Tensor, edge_index: Tensor, place: Tensor, num_src: int, num_dst: int) -> None:
    """Raise unless these are the tables of a graph, its edges, and a place in a table for each of them.

    Raises:
        ShapeError, DTypeError, DeviceError: They are not.
    """
    check_edges(edge_index, num_src, num_dst)
    count = edge_index.shape[1]
    if receivers_of(graph, num_src, count, edge_index.device) != num_dst:
        raise _no_tables(graph, f"{count} edges, {num_src} senders and {num_dst} receivers")
    if place.shape != (count,):
        raise ShapeError(f"place must be [{count}], one for each edge, got {list(place.shape)}. Look each up.")
    if place.dtype is not torch.int64:
        raise DTypeError(f"place must be int64, got {place.dtype}. Convert it with `.long()`.")


def not_of_this_graph() -> IndexRangeError:
    """The error of tables that fit by their length alone."""
    return IndexRangeError(f"graph must hold {_TABLES} of these operands, got other numbers. {_REMAKE}")


def check_edges(edge_index: Tensor, num_src: int, num_dst: int) -> None:
    """Raise unless ``edge_index`` is ``[2, E]`` integers and the numbers of nodes are 0 or more.

    Raises:
        ShapeError, DTypeError: They are not.
    """
    check_edge_index(edge_index)
    if num_src < 0 or num_dst < 0:
        raise ShapeError(f"num_src and num_dst must be 0 or more, got {num_src} and {num_dst}. Count the nodes.")
