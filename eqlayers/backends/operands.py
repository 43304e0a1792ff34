"""What the operators of whole forms may be given: everything that a kernel indexes by, looked at before it runs.

Anybody may call ``torch.ops.eqlayers.*`` with any tensors, and kernels read addresses. The same function stands in the
operators and in their fakes, so a graph that is traced refuses what the call would. What lies inside the tables of a
graph only a kernel can look at cheaply: see ``eqlayers_kernels.c.edges.Tables``. On a GPU nobody does, as nobody looks
at indices there: it would make the stream wait. There tables are held to their length alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from eqlayers_kernels.c import edges as c_edges
from eqlayers_kernels.program import OPERANDS
from eqlayers_kernels.triton import edges as triton_edges

from ..errors import DeviceError, DTypeError, IndexRangeError, ShapeError
from ..info.graph import check_edge_index
from ..ops.call import ACCUMULATE

NAMES = OPERANDS[:-1]
_TABLES = "the tables that edge_tables(edge_index, num_src, num_dst) makes"
_REMAKE = "Make them anew from the edges of this graph."


def named_operands(
    operands: Sequence[Tensor], g: Tensor | None = None, tangents: Sequence[Tensor | None] | None = None
) -> dict[str, Tensor]:
    """The tensors of an operator by the kernels' names: the operands, g, and the tangents that are there.

    Raises:
        ShapeError: There is another number of them.
    """
    if len(operands) != len(NAMES) or (tangents is not None and len(tangents) != len(NAMES)):
        found = f"{len(operands)}" + ("" if tangents is None else f" and {len(tangents)} tangents")
        raise ShapeError(
            f"operands must be {len(NAMES)} tensors for this form, {', '.join(NAMES)}, with as many tangents, got "
            f"{found}. Call it through a layer."
        )
    out = dict(zip(NAMES, operands, strict=True))
    if g is not None:
        out["g"] = g
    if tangents is not None:
        out |= {f"d{name}": t for name, t in zip(NAMES, tangents, strict=True) if t is not None}
    return out


def check_operands(
    widths: tuple[int, int, int, int], tensors: Mapping[str, Tensor], graph: Tensor | None
) -> dict[str, int]:
    """The rows of each operand, if the tensors are those of a form.

    Args:
        widths: Columns of x, y, w and z.
        tensors: By the kernels' names; see :func:`eqlayers.backends.forms.run_form`.
        graph: None, or tables.

    Returns:
        By operand, 'z' for the result.

    Raises:
        ShapeError, DTypeError, DeviceError: A tensor has another shape, dtype or device than the others want.
    """
    x, y = tensors["x"], tensors["y"]
    dtype, device = x.dtype, x.device
    sums = ACCUMULATE.get(dtype)  # constants come in the dtype of the sums
    if sums is None:
        raise DTypeError(f"x must be float64, float32, float16 or bfloat16, got {dtype}. Convert it with `.to(...)`.")
    if x.ndim != 2 or y.ndim != 2:
        name, width = ("y", widths[1]) if x.ndim == 2 else ("x", widths[0])
        raise _unfit(name, f"[N, {width}]", tensors[name])
    senders, edges = x.shape[0], y.shape[0]
    rows = {"x": edges, "y": edges, "w": edges, "z": edges}
    if graph is not None:
        rows["x"], rows["z"] = senders, receivers_of(graph, senders, edges, device)
    wx, wy, ww, wz = widths
    shared = tensors["w"].ndim == 1
    shapes = {"x": (rows["x"], wx), "y": (edges, wy), "w": (ww,) if shared else (edges, ww), "g": (rows["z"], wz)}
    for name, tensor in tensors.items():
        shape = shapes[name[-1]]  # a tangent dx is shaped as x
        if tensor.shape != shape:
            raise _unfit(name, str(list(shape)), tensor)
        if shape[-1] == 0:  # nothing of it is read: weights that a layer does not have
            continue
        if tensor.dtype is not dtype and tensor.dtype is not sums:
            raise DTypeError(
                f"{name} must have the dtype of x, {dtype}, got {tensor.dtype}. Convert it with `.to({dtype})`."
            )
        if tensor.device != device:
            raise DeviceError(
                f"{name} must be on the device of x, {device}, got {tensor.device}. Move it with `.to('{device}')`."
            )
    return rows


def _unfit(name: str, wanted: str, tensor: Tensor) -> ShapeError:
    return ShapeError(f"{name} must be {wanted} for this form, got {list(tensor.shape)}. Call it through a layer.")


def receivers_of(graph: Tensor, senders: int, edges: int, device: torch.device) -> int:
    """Number of receivers of a graph's tables.

    Raises:
        ShapeError, DTypeError, DeviceError: They are no tables of so many senders and edges.
    """
    if graph.dtype is not torch.int64:
        raise DTypeError(f"graph must be {_TABLES}, int64, got {graph.dtype}. Pass them as they are.")
    if graph.device != device:
        raise DeviceError(f"graph must be on the device of x, {device}, got {graph.device}. Make it from edges there.")
    if graph.ndim == 1:
        length = graph.shape[0]
        if device.type == "cpu":
            receivers, rest = length - c_edges.tables(edges, senders, 0).length, 0
        else:
            receivers, rest = triton_edges.receivers_of(length, edges, senders)
        if receivers >= 0 and rest == 0:
            return receivers
    sizes = f"{edges} edges and {senders} senders"
    raise ShapeError(f"graph must be {_TABLES}, here of {sizes}, got shape {list(graph.shape)}. {_REMAKE}")


def not_of_this_graph() -> IndexRangeError:
    """The error of tables that fit by their length alone."""
    return IndexRangeError(f"graph must hold {_TABLES} of these x and y, got other numbers. {_REMAKE}")


def check_wanted(wanted: Sequence[bool], names: Sequence[str]) -> tuple[str, ...]:
    """The names of what is wanted.

    Raises:
        ShapeError: There is not one word for each of them.
    """
    if len(wanted) != len(names):
        raise ShapeError(
            f"wanted must have a bool for each of {', '.join(names)}, got {len(wanted)}. Say of each gradient whether "
            f"to compute it."
        )
    return tuple(name for name, want in zip(names, wanted, strict=True) if want)


def check_edges(edge_index: Tensor, num_src: int, num_dst: int) -> None:
    """Raise unless ``edge_index`` is ``[2, E]`` integers and the numbers of nodes are 0 or more.

    Raises:
        ShapeError, DTypeError: They are not.
    """
    check_edge_index(edge_index)
    if num_src < 0 or num_dst < 0:
        raise ShapeError(f"num_src and num_dst must be 0 or more, got {num_src} and {num_dst}. Count the nodes.")
