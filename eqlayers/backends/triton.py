"""Backend ``triton``: hands the sparse operations to the segment kernel; CUDA and HIP tensors.

In a process that runs Triton's interpreter (``TRITON_INTERPRET=1``) CPU tensors are taken as well, when the backend is
named: the interpreter shows that a kernel is right, and is far too slow to be chosen unasked.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from eqlayers_kernels.triton import availability, launch

from ..info.structs import SparseProductInfo
from ..ops.call import DTYPES, ProductCall, ScaleCall
from ..ops.channels import Channels, Sides, lookup
from ..ops.form import FormCall
from ..ops.table import NAMED
from ..ops.tracing import being_traced
from .registry import Backend, Call

#: Products with a kernel of the other order of operands: run with the operands swapped.
SWAPPED = {"scavec": "vecsca", "mat_t_vec": "vecmat"}


@cache
def _sides(channels: Channels) -> Sides | None:
    return lookup(channels, NAMED)


def refuse(call: Call) -> str | None:
    """None if the kernels can run the call, else why not."""
    kind = call.device if isinstance(call, FormCall) else call.x.device.type
    if kind != "cuda" and not (kind == "cpu" and availability.interpreted()):
        return f"needs CUDA or HIP tensors, got {kind}"
    if (reason := availability.why_not()) is not None:
        return reason
    if being_traced():
        return "launches its kernels by itself, which torch.compile, torch.export and make_fx cannot put into a graph"
    if isinstance(call, FormCall):
        return None  # composed of sparse products, each of which is asked for again
    if call.x.dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {call.x.dtype}"
    info_device, device = call.info.device, call.x.device
    if info_device is not None and info_device != device:
        return f"needs the info on the device of its operands, {device}, got {info_device}; move it with info.to(...)"
    if isinstance(call, ProductCall) and _sides(call.channels) is None:
        return f"has kernels for the seven named products ({', '.join(NAMED)}), got channels '{call.channels}'"
    return None


def only_named(call: Call) -> bool:
    """Whether the call would run in the interpreter, which nobody gets unasked."""
    return availability.interpreted()


def product(call: ProductCall) -> Tensor:
    """Run one product: the seven ops are five kernels, and a transposed matrix is a pair of strides."""
    sides = _sides(call.channels)
    assert sides is not None  # refuse() says so first
    info, dtype = call.info, call.x.dtype
    segments, rows = info.rows(*call.sparse_rows)[1:]
    x, y, index1, index2, batched = call.x, call.y, info.index1, info.index2, call.batched
    op = SWAPPED.get(sides.op, sides.op)
    if op != sides.op:
        x, y, index1, index2, batched = y, x, index2, index1, (batched[1], batched[0], batched[2])
    terms = launch.Terms(_scale(info, dtype), index1, index2, info.seg_out, info.gather_index, info.index_out)
    problem = launch.Problem(op, segments, rows, call.batch, batched, flip=any(sides.transposed))
    return launch.product(problem, x, y, terms)


def scale(call: ScaleCall) -> Tensor:
    """Run one scale: the same loop with one operand."""
    info = call.info.as_product()
    segments, rows = info.rows(call.x.shape[1], call.x.shape[1])[1:]
    terms = launch.Terms(_scale(info, call.x.dtype), info.index1, None, info.seg_out)
    return launch.product(
        launch.Problem("scale", segments, rows, call.x.shape[0], (True, True, True)), call.x, None, terms
    )


def _scale(info: SparseProductInfo, dtype: torch.dtype) -> Tensor | None:
    """The coefficients in the dtype of the sums: cast once, kept with the info."""
    if info.scale is None:
        return None
    wanted, values = launch.accumulator(dtype), info.scale
    cast = values if values.dtype == wanted else info.cached(("scale", wanted), lambda: values.to(wanted))
    assert isinstance(cast, Tensor)
    return cast


BACKEND = Backend("triton", product, scale, refuse, only_named=only_named)
