"""Checks of the arguments of form operators: all sizes that a kernel computes addresses from.

Any code may call ``torch.ops.eqlayers.*`` with any tensors, and kernels read addresses. Operators and their fakes use
the same checks, so tracing refuses the same arguments. Indices inside the tables of a graph are checked by C kernels
(see ``eqlayers_kernels.c.run.edges.GraphOffsets``); on a GPU only the length of tables is checked, because reading
indices would wait for the stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eqlayers_kernels.forms.formula import Operand
from eqlayers_kernels.forms.product import AnyForm

from ..dtypes import ACCUMULATE
from ..errors import DeviceError, DTypeError, ShapeError
from ..forms.request import SIZE_INDEX, Sizes
from .tables import check_graph_tables, length_of_intervals


def shape_of(operand: Operand, sizes: Sizes) -> tuple[int, ...]:
    """The shape of an operand or result in a call of these sizes."""
    return (operand.width,) if operand.rows == "one" else (sizes[SIZE_INDEX[operand.rows]], operand.width)


def with_table(form: AnyForm, operands: Sequence[Tensor], sizes: Sizes) -> Sizes:
    """The sizes, completed by the number of rows of the table if weights are interpolated in one."""
    if form.reading is None:
        return sizes
    tables = (t for operand, t in zip(form.operands, operands, strict=False) if operand.rows == "table" and t.ndim)
    return sizes._replace(table=next((t.shape[0] for t in tables), 0))


def check_operands(form: AnyForm, operands: Sequence[Tensor], graph: Tensor | bool | None, sizes: Sizes) -> None:
    """Raise unless the tensors have the shapes, dtypes and device that a form needs.

    ``graph`` are the tables of a graph or None; or only whether there is a graph. Raises ShapeError, DTypeError or
    DeviceError.
    """
    expected = form.operands
    if len(operands) != len(expected):
        names = ", ".join(operand.name for operand in expected)
        raise ShapeError(
            f"operands must be {len(expected)} tensors for this form, {names}, got {len(operands)}. Call it through a "
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
        name = expected[0].name
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
    for o, tensor in zip(expected, operands, strict=True):
        shape = shape_of(o, sizes)
        if tensor.shape != shape:
            raise ShapeError(
                f"{o.name} must be {list(shape)} for this form, got {list(tensor.shape)}. Call it through a layer."
            )
        if shape[-1] == 0:  # weights of a layer that has none: nothing is read
            continue
        if tensor.dtype is not dtype and tensor.dtype is not sums:
            raise DTypeError(
                f"{o.name} must have the dtype of {expected[0].name}, {dtype}, got {tensor.dtype}. Convert it with "
                f"`.to({dtype})`."
            )
        if tensor is not first and tensor.device != first.device:
            raise DeviceError(
                f"{o.name} must be on the device of {expected[0].name}, {first.device}, got {tensor.device}. Move it "
                f"with `.to('{first.device}')`."
            )
