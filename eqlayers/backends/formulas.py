"""Formulas: what operators may be given, and who runs them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eqlayers_kernels.formula import Formula

from ..errors import BackendError, DeviceError, DTypeError, ShapeError
from ..ops.call import ACCUMULATE
from . import cpu_formulas
from .cpu_formulas import Runner
from .operands import not_of_this_graph, receivers_of

#: The backend that runs formulas on each type of device.
BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}


def check_formula(
    base: Formula, operands: Sequence[Tensor], sizes: Sequence[int], graph: Tensor | bool | None
) -> None:
    """Raise unless the operands are those of a formula: kernels read addresses.

    Args:
        base: The formula.
        operands: ``[rows, width]`` each, ``[width]`` for one row that serves all.
        sizes: Rows of the batch, senders and receivers.
        graph: The tables of :func:`eqlayers.backends.forms.edge_tables`; or whether there is a graph.

    Raises:
        ShapeError, DTypeError, DeviceError: They are not.
    """
    if len(operands) != len(base.operands):
        names = ", ".join(one.name for one in base.operands)
        raise ShapeError(
            f"operands must be {len(base.operands)} tensors for this formula, {names}, got {len(operands)}. Call it "
            f"through a layer."
        )
    first = operands[0]
    if first.dtype not in ACCUMULATE:
        raise DTypeError(
            f"{base.operands[0].name} must be float64, float32, float16 or bfloat16, got {first.dtype}. Convert it with "
            f"`.to(...)`."
        )
    count = dict(zip(("each", "src", "dst"), sizes, strict=True))
    for one, t in zip(base.operands, operands, strict=True):
        wanted = (one.width,) if one.rows == "one" else (count[one.rows], one.width)
        if tuple(t.shape) != wanted:
            raise ShapeError(f"{one.name} must be {list(wanted)}, got {list(t.shape)}. Give it a row of {one.width} columns for each.")
        if t.dtype != first.dtype:
            raise DTypeError(f"{one.name} must be {first.dtype} as {base.operands[0].name}, got {t.dtype}. Convert it.")
        if t.device != first.device:
            raise DeviceError(f"{one.name} must be on {first.device} as {base.operands[0].name}, got {t.device}. Move it.")
    if isinstance(graph, Tensor):
        rows, senders, receivers = sizes
        if receivers_of(graph, senders, rows, first.device) != receivers:
            raise not_of_this_graph()
    elif not graph and any(one.rows in ("src", "dst") for one in (*base.operands, *base.results)):
        raise ShapeError("a formula with rows of senders or receivers must be given a graph, got None. Pass its tables.")


def runner_of(key: str, operands: Sequence[Tensor], graph: Tensor | None, backend: str) -> Runner:
    """Who runs a formula: the backend of the operands' device, or the named one."""
    first = operands[0]
    home = BY_DEVICE[first.device.type]
    if (backend or home) != "cpu" or home != "cpu":
        raise BackendError(f"backend must run formulas here, got {backend or home!r}. Pass backend='torch'.")
    return cpu_formulas.find_runner(key, first.dtype, graph is not None, first.device)
