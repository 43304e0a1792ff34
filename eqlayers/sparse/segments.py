"""Backend ``triton``: a kernel that sums segments of terms, for CUDA and HIP tensors.

In a process with Triton's interpreter (``TRITON_INTERPRET=1``) it also takes CPU tensors, if a user names it as the
backend: the interpreter is for tests, and far too slow to be the default.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run import segment

from ..core.dtypes import DTYPES
from ..core.torch_internals import being_traced
from .call import Call, ProductCall, ScaleCall
from .info import SparseProductInfo
from .table import NAMED, lookup

#: Products without a kernel, and the product that equals each after swapping its operands.
SWAPPED = {"scavec": "vecsca", "mat_t_vec": "vecmat"}


def refuse(call: Call) -> str | None:
    """None if the segment kernel can run the call, else the reason, a phrase that follows the backend's name."""
    device = call.x.device
    if device.type != "cuda" and not (device.type == "cpu" and availability.interpreted()):
        return f"needs CUDA or HIP tensors, got {device.type}"
    if (reason := availability.why_not()) is not None:
        return reason
    if being_traced():
        return "launches its kernels by itself, which torch.compile, torch.export and make_fx cannot put into a graph"
    if call.x.dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {call.x.dtype}"
    if isinstance(call, ProductCall) and lookup(call.channels) is None:
        return f"has kernels for the seven named products ({', '.join(NAMED)}), got channels '{call.channels}'"
    return None


def only_named(call: Call) -> bool:
    """Whether another backend should run the call unless a user names this one.

    Triton's interpreter runs only on request, and CPU tensors run only in it. Products with one matrix for all
    rows, and the gradients of such a matrix, are matrix products: torch's are faster than a loop over segments, which
    reads the matrix anew for every few rows.
    """
    if call.x.device.type == "cpu" or availability.interpreted():
        return True
    operands = zip(call.channels, call.batched, strict=True) if isinstance(call, ProductCall) else ()
    return any(len(letters) == 2 and not batched for letters, batched in operands)


def product(call: ProductCall) -> Tensor:
    """Run a product; five kernels serve seven products, and a transposed matrix exchanges two strides."""
    sides = lookup(call.channels)
    assert sides is not None  # refuse() says so first
    info, dtype = call.info, call.x.dtype
    segments, rows = info.rows(*call.sparse_rows)[1:]
    x, y, index1, index2, batched = call.x, call.y, info.index1, info.index2, call.batched
    op = SWAPPED.get(sides.op, sides.op)
    if op != sides.op:
        x, y, index1, index2, batched = y, x, index2, index1, (batched[1], batched[0], batched[2])
    terms = segment.Terms(_scale(info, dtype), index1, index2, info.seg_out, info.gather_index, info.index_out)
    problem = segment.Problem(op, segments, rows, call.batch, batched, flip=any(sides.transposed))
    return segment.product(problem, x, y, terms)


def scale(call: ScaleCall) -> Tensor:
    """Run a scale by the kernel of products, with one operand."""
    info = call.info.as_product()
    segments, rows = info.rows(call.x.shape[1], call.x.shape[1])[1:]
    terms = segment.Terms(_scale(info, call.x.dtype), info.index1, None, info.seg_out)
    problem = segment.Problem("scale", segments, rows, call.x.shape[0], (True, True, True))
    return segment.product(problem, call.x, None, terms)


def _scale(info: SparseProductInfo, dtype: torch.dtype) -> Tensor | None:
    """The coefficients in the dtype of sums, cached with the info."""
    if info.scale is None:
        return None
    sum_dtype, values = segment.accumulator(dtype), info.scale
    cast = values if values.dtype == sum_dtype else info.cached(("scale", sum_dtype), lambda: values.to(sum_dtype))
    assert isinstance(cast, Tensor)
    return cast
