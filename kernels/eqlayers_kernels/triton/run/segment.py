"""Launches the segment kernel: computes arguments, blocks and grid from shapes and strides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..print import tuning

#: Most programs along axis 0 of a grid, on every target; the other axes end at 65535 and are not used.
MAX_GRID = 2**31 - 1
#: Most rows of the batch that one program sums: it counts them in int32.
MAX_CHUNK = 2**30

#: Channel letters of (second operand, result) of each op; the first operand is a vector over u.
LETTERS = {
    "mul": ("u", "u"),
    "outer": ("v", "uv"),
    "inner": ("u", ""),
    "vecmat": ("uv", "v"),
    "vecsca": ("", "u"),
    "scale": ("", "u"),
}


class Terms(NamedTuple):
    """The terms of a sparse product in CSR form, as in `SparseProductInfo`."""

    scale: Tensor | None = None  # [T] in the dtype of the sums; None: 1
    index1: Tensor | None = None  # [T] int64; None: t
    index2: Tensor | None = None  # [T] int64; None: t
    seg_out: Tensor | None = None  # [S + 1] int64; None: segment M is term M
    gather_index: Tensor | None = None  # [seg_out[-1]] int64; None: k
    index_out: Tensor | None = None  # [S] int64; None: row M


class Problem(NamedTuple):
    """The op and the sizes of one sparse product.

    ``flip`` says that the matrix of the op (second operand of vecmat, result of outer) has its channel axes in the
    order v, u. ``batched`` is (x, y, result); ``batch`` is N.
    """

    op: str
    segments: int
    rows: int
    batch: int
    batched: tuple[bool, bool, bool]
    flip: bool = False

    @property
    def letters(self) -> tuple[str, str]:
        """Channel letters of the second operand and of the result, in the order of their axes."""
        second, out = LETTERS[self.op]
        return (second[::-1], out[::-1]) if self.flip else (second, out)


class Launch(NamedTuple):
    """One launch of the segment kernel: grid, arguments and options."""

    grid: tuple[int, int, int]
    args: tuple[Any, ...]
    meta: dict[str, Any]


def product(problem: Problem, x: Tensor, y: Tensor | None, terms: Terms) -> Tensor:
    """Run a sparse product (or, with op ``scale`` and y None, a sparse scale): ``[N, rows, *channels]``.

    ``x`` is ``[N, M1, U]`` and ``y`` ``[N, M2, *channels]``, of one dtype and device, with any strides. What is not
    batched has no axis N: a result is then summed over it. ``terms.scale`` is in float64 for float64 operands.
    """
    z, launches = prepare(problem, x, y, terms, "cuda" if torch.version.hip is None else "hip")
    if launches:
        from ..kernels import segment_kernel

        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():  # and its current stream
            for launch in launches:
                segment_kernel[launch.grid](*launch.args, **launch.meta)
    if not any(problem.batched[:2]):  # computed once: every row of the batch is the same
        rows = z.expand(problem.batch, *z.shape[1:])
        return rows if problem.batched[2] else rows[0] * problem.batch if problem.batch else rows.sum(0)
    if problem.batched[2]:
        return z
    return z[0] if z.shape[0] == 1 else z.sum(0).to(x.dtype)


def prepare(problem: Problem, x: Tensor, y: Tensor | None, terms: Terms, backend: str) -> tuple[Tensor, list[Launch]]:
    """The buffer ``[N or chunks, rows, *channels]`` and the launches that fill it (none if the result is zero)."""
    if not any(problem.batched[:2]):
        problem = problem._replace(batch=min(problem.batch, 1), batched=(False, False, True))
    sizes = _sizes(problem, x, y)
    steps = -(-problem.batch // sizes.chunk)
    lead = problem.batch if problem.batched[2] else max(1, steps)
    shape = (lead, problem.rows, *(sizes.width_u if c == "u" else sizes.width_v for c in problem.letters[1]))
    if steps == 0 or problem.segments == 0 or sizes.width_u == 0 or sizes.width_v == 0:
        return x.new_zeros(shape), []
    # Rows that no segment names are zero; every element of the others is written by the kernel.
    fill = terms.index_out is not None or problem.rows > problem.segments
    # A sum over the batch in chunks: each into its own row, then one sum over the rows. No atomics: deterministic.
    dtype = x.dtype if problem.batched[2] or steps == 1 else accumulator(x.dtype)
    z = allocate(x, shape, dtype, fill)
    return z, list(_launches(problem, sizes, steps, x, y, z, terms, backend))


def allocate(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype, fill: bool) -> Tensor:
    """The buffer of a result, filled with zeros where the kernel does not write every element."""
    return like.new_zeros(shape, dtype=dtype) if fill else like.new_empty(shape, dtype=dtype)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the sums over operands of ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class _Sizes(NamedTuple):
    width_u: int
    width_v: int
    tiles_u: int
    tiles_v: int
    chunk: int  # rows of the batch that one program covers
    blocks: tuning.Tile


def _sizes(problem: Problem, x: Tensor, y: Tensor | None) -> _Sizes:
    second = problem.letters[0]
    width_u, width_v = x.shape[-1], 1
    if y is not None and "v" in second:
        width_v = y.shape[y.ndim - len(second) + second.index("v")]
    double = x.dtype == torch.float64
    blocks = tuning.blocks(problem.op, width_u, width_v, batched=any(problem.batched[:2]), double=double)
    tiles_u = -(-width_u // blocks.u) if "u" in problem.letters[1] else 1  # one program sums over a whole axis
    tiles_v = -(-width_v // blocks.v)
    tiles_n = -(-problem.batch // blocks.n)
    chunks = tiles_n
    if not problem.batched[2]:
        chunks = max(tuning.chunks(tiles_n, problem.segments * tiles_u * tiles_v), -(-problem.batch // MAX_CHUNK))
    return _Sizes(width_u, width_v, tiles_u, tiles_v, blocks.n * max(1, -(-tiles_n // max(1, chunks))), blocks)


def _launches(
    problem: Problem, sizes: _Sizes, steps: int, x: Tensor, y: Tensor | None, z: Tensor, terms: Terms, backend: str
) -> Iterator[Launch]:
    """The launches: one, or several if the grid would be too long."""
    import triton.language as tl

    second, out = problem.letters
    programs = problem.segments * sizes.tiles_u * sizes.tiles_v  # per step along the batch
    if programs > MAX_GRID:
        raise ValueError(
            f"segments times channel tiles must be at most {MAX_GRID}, the length of a grid, got {programs}. "
            f"Split the output rows over several calls."
        )
    meta = {
        "OP": problem.op,
        "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "BATCHED_X": problem.batched[0],
        "BATCHED_Y": problem.batched[1],
        "SUM_N": not problem.batched[2],
        "BLOCK_N": sizes.blocks.n,
        "BLOCK_U": sizes.blocks.u,
        "BLOCK_V": sizes.blocks.v,
        "num_warps": sizes.blocks.num_warps,
        "enable_fp_fusion": True,  # releases of triton differ in the default
        **tuning.PROCESSORS[backend].options,
    }
    rest = (
        *(problem.batch, sizes.chunk, problem.segments, *sizes[:4]),
        *_strides(x, "u", problem.batched[0])[:3],
        *((0, 0, 0, 0) if y is None else _strides(y, second, problem.batched[1])),
        *_strides(z, out, True),
    )
    most = MAX_GRID // programs
    for first in range(0, steps, most):
        yield Launch((min(most, steps - first) * programs, 1, 1), (x, y, z, *terms, first, *rest), meta)


def _strides(tensor: Tensor, letters: str, batched: bool) -> tuple[int, int, int, int]:
    """Strides (n, m, u, v); 0 along an axis that the tensor does not have."""
    strides = tensor.stride() if batched else (0, *tensor.stride())
    at = dict(zip(letters, strides[2:], strict=True))
    return strides[0], strides[1], at.get("u", 0), at.get("v", 0)
