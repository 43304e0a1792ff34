"""Checks of the arguments of form operators: everything that a kernel indexes by, before it runs.

Any code may call ``torch.ops.eqlayers.*`` with any tensors, and kernels read addresses. The same function stands in the
operators and in their fakes, so a graph that is traced refuses what the call would. What lies inside the tables of a
graph only a kernel can look at cheaply: see ``eqlayers_kernels.c.run.edges.GraphOffsets``. On a GPU neither tables nor
indices are checked, because the stream would wait: only the length of tables is.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eqlayers_kernels.forms.formula import Operand
from eqlayers_kernels.forms.product import AnyForm

from ..dtypes import ACCUMULATE
from ..errors import DeviceError, DTypeError, ShapeError
from ..forms.request import PLACES, Sizes
from .tables import check_graph_tables, length_of_intervals


def shape_of(one: Operand, sizes: Sizes) -> tuple[int, ...]:
    """The shape of an operand or result in a call of these sizes."""
    return (one.width,) if one.rows == "one" else (sizes[PLACES[one.rows]], one.width)


def with_table(form: AnyForm, operands: Sequence[Tensor], sizes: Sizes) -> Sizes:
    """The sizes with the rows of the table, if one is among the operands."""
    if form.reading is None:
        return sizes
    tables = (t for one, t in zip(form.operands, operands, strict=False) if one.rows == "table" and t.ndim)
    return sizes._replace(table=next((t.shape[0] for t in tables), 0))


def check_operands(form: AnyForm, operands: Sequence[Tensor], graph: Tensor | bool | None, sizes: Sizes) -> None:
    """Raise unless the tensors fit a form: kernels read addresses.

    ``graph`` are the tables, or None; or whether there is a graph. ShapeError, DTypeError or DeviceError: a tensor has
    another shape, dtype or device than the others want.
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
            f"rows, num_src and num_dst must be 0 or more, got {rows}, {senders} and {receivers}. Count the rows and "
            f"nodes."
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
        behind = 0
        if form.reading is not None:
            behind = length_of_intervals(rows, form.reading.intervals(sizes.table), first.device)
        check_graph_tables(graph, sizes, first.device, behind)
    for one, tensor in zip(wanted, operands, strict=True):
        shape = shape_of(one, sizes)
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
