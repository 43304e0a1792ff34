"""Spherical harmonics of vectors and of edges: checks of operands, and calls of the formulas."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.backends import check_backend
from ...core.backends.rows import taken
from ...core.checks import check_choice, check_flag, check_floating, check_tensor, fixed
from ...core.dtypes import ACCUMULATE, check_same_dtype, device_error
from ...core.errors import DTypeError, IndexRangeError, ShapeError
from ...core.graph import Graph, check_range
from ...core.torch_internals import is_plain
from ..base.module import run_formula
from .lower import NORMALIZATIONS, harmonics_formula, read_degrees

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def run_harmonics(base: Formula, x: Tensor, backend: str | None) -> Tensor:
    """Evaluate a formula of spherical harmonics at vectors: ``[..., 3]`` to ``[..., dim]``."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.dtype not in ACCUMULATE:
        check_same_dtype(x=check_floating("x", x, "[..., 3]"))
    shape = x.shape
    if not shape or shape[-1] != 3:
        raise ShapeError(f"x must be [..., 3], vectors along the last axis, got {list(shape)}. Move the axis there.")
    if len(shape) == 2:
        return run_formula(base, (x,), None, backend)[0]
    (y,) = run_formula(base, (x.reshape(-1, 3),), None, backend)
    return y.reshape(*shape[:-1], y.shape[-1])


class Shift(NamedTuple):
    """How receivers of edges are shifted to other cells: a name of `SHIFTS`, and the tensors that it needs.

    The tensors are operands of `edge_formula` after both positions: shifts ``[E, 3]``, and cells ``[9]`` or ``[N, 9]``.
    """

    form: str
    operands: tuple[Tensor, ...]


def read_shifts(pos: Tensor, graph: Graph, shifts: Any, cell: Any, batch: Any) -> Shift:
    """Check the shifts of edges: none, vectors, or numbers of lattice vectors of one cell or of a cell of each node.

    See ``nn.EdgeGeometry.forward`` for the arguments, and for the errors if they do not fit each other.
    """
    if shifts is None:
        if cell is not None:
            raise ShapeError(
                "shifts must be [E, 3], how many lattice vectors an edge crosses, where there is a cell, got None. "
                "Pass zeros for none, or no cell."
            )
        return Shift("none", ())
    check_tensor("shifts", shifts, "[E, 3]")
    if shifts.shape != (graph.num_edges, 3):
        raise ShapeError(
            f"shifts must be [{graph.num_edges}, 3], a row for each edge, got {list(shifts.shape)}. Check edge_index."
        )
    if cell is None:
        if shifts.dtype in _INTEGERS:
            raise DTypeError(
                f"shifts must be vectors of {pos.dtype} without a cell, got {shifts.dtype}. Pass the cell as well."
            )
        check_same_dtype(pos=pos, shifts=shifts)
        return Shift("vector", (shifts,))
    check_same_dtype(pos=pos, cell=check_floating("cell", cell, "[3, 3] or [B, 3, 3]"))
    if cell.ndim not in (2, 3) or cell.shape[-2:] != (3, 3):
        raise ShapeError(
            f"cell must be [3, 3] or [B, 3, 3], one lattice vector a row, got {list(cell.shape)}. Reshape it."
        )
    if shifts.dtype in _INTEGERS:
        _check_size(shifts, pos.dtype)
        shifts = shifts.to(pos.dtype)
    check_same_dtype(pos=pos, shifts=shifts)
    if cell.ndim == 2 or (batch is None and cell.shape[0] == 1):
        return Shift("cell", (shifts, cell.reshape(9)))
    return Shift("cells", (shifts, _of_nodes(cell, batch, pos.shape[0])))


def _check_size(shifts: Tensor, dtype: torch.dtype) -> None:
    """Raise if a number of lattice vectors is not exact in ``dtype``; checked on the CPU only, and not in a trace."""
    most = int(2 / torch.finfo(dtype).eps)
    if shifts.is_cpu and shifts.numel() and is_plain((shifts,)):
        least, largest = (int(end) for end in shifts.aminmax())
        if least < -most or largest > most:
            raise IndexRangeError(
                f"shifts must be from {-most} to {most}, the integers that {dtype} holds, got {least} to {largest}. "
                "Fold the positions into the cell, or look for numbers that were never written."
            )


def _of_nodes(cell: Tensor, batch: Any, nodes: int) -> Tensor:
    """``[N, 9]``: the cell of every node."""
    if batch is None or check_tensor("batch", batch, f"[{nodes}]").shape != (nodes,):
        shown = "None" if batch is None else str(list(batch.shape))
        raise ShapeError(
            f"batch must be [{nodes}], the number of each node's cell among {cell.shape[0]}, got {shown}. "
            f"Pass it, or one cell [3, 3]."
        )
    if batch.dtype not in (torch.int32, torch.int64):
        raise DTypeError(f"batch must be an int64 or int32 tensor [{nodes}], got {batch.dtype}. Use `.long()`.")
    if batch.device != cell.device:
        raise device_error("batch", batch, "cell", cell)
    check_range("batch", batch, cell.shape[0], "cells")
    return taken(cell.reshape(-1, 9), batch)


def check_positions(pos: Any) -> Tensor:
    """Return positions ``[N, 3]`` of a supported dtype; raise ShapeError or DTypeError for others."""
    check_same_dtype(pos=check_floating("pos", pos, "[N, 3]"))
    if pos.ndim != 2 or pos.shape[1] != 3:
        raise ShapeError(f"pos must be [N, 3], a row for each node, got {list(pos.shape)}. Flatten batch axes into N.")
    return pos


def run_edges(base: Formula, pos: Tensor, graph: Graph, shift: Shift, backend: str | None) -> tuple[Tensor, ...]:
    """Evaluate an `edge_formula`: vectors and directions ``[E, 3]``, lengths ``[E]``, harmonics ``[E, dim]``."""
    if graph.edge_index.device != pos.device:
        raise device_error("edge_index", graph.edge_index, "pos", pos)
    vectors, lengths, directions, harmonics = run_formula(base, [pos, pos, *shift.operands], graph, backend)
    return vectors, lengths.squeeze(1), directions, harmonics


def spherical_harmonics(
    l: Any, x: Tensor, normalize: bool, normalization: str = "integral", *, backend: str | None = None
) -> Tensor:
    """:class:`eqlayers.nn.SphericalHarmonics` as a function, ``[..., 3]`` to ``[..., sum(2 l + 1)]``; errors as there.

    Args:
        l: Irreps, one degree or a list of degrees, in any order, each up to 20.
        x: ``[..., 3]``.
        normalize, normalization, backend: See the layer.

    Example:
        >>> import torch
        >>> spherical_harmonics([0, 1], torch.tensor([0.0, 2.0, 0.0]), True, "component")
        tensor([1.0000, 0.0000, 1.7321, 0.0000])
    """
    check_backend(backend)
    norm = check_choice("normalization", normalization, NORMALIZATIONS)
    base = _harmonics(fixed(l), check_flag("normalize", normalize), norm)
    return run_harmonics(base, x, backend)


@torch.compiler.assume_constant_result
def _harmonics(l: Any, normalize: bool, normalization: str) -> Formula:
    """The cached formula of harmonics; compilers do not trace this."""
    return harmonics_formula(read_degrees(l)[0], normalize, normalization)
