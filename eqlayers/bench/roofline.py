"""Least times of calls: roofline limits, and stored bounds of kernels on GPUs.

A roofline limit is the longer of the times for bytes at copy bandwidth and for operations at peak rate. Stored bounds
are scaled to the memory bandwidth of this GPU. Goals of times are multiples of these bounds, so that goals apply to any
GPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.forms.program import Path as ProductPath
from eqlayers_kernels.forms.program import Program

from ..core.files.read_write import read_json
from .measure import alternate, summary

#: Number of independent chains of multiply-adds, enough to hide latency and few enough for registers.
CHAINS = 12
ROUNDS = 1_000_000
#: Goal of a time relative to its bound: overlap is imperfect, clocks fall under load, launches have gaps.
TIMES_BOUND = 1.3
#: Nodes and edges of the stored bounds, and memory bandwidth of their GPU in bytes per second.
GRAPH, MEMORY = (3000, 160_000), 4.8e12
ABOUT = ("problem", "operation", "layout", "direction")  # fields that identify a bound
#: Stored results in a source checkout.
STORED = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "kernels.json"
_NAMES = {"float32": ("float", 4), "float64": ("double", 8)}


class Limit(NamedTuple):
    """Least time in seconds, and its cause: 'bytes' or 'operations'."""

    seconds: float
    binds: str


def limit(moved: float, operations: float, bandwidth: float, peak: float | None) -> Limit:
    """The limit for moved bytes and floating-point operations; ``peak`` is None if unknown.

    Example:
        >>> limit(1e9, 4e9, 1e10, 1e10)
        Limit(seconds=0.4, binds='operations')
    """
    by_bytes, by_operations = moved / bandwidth, operations / peak if peak else 0.0
    return Limit(by_bytes, "bytes") if by_bytes >= by_operations else Limit(by_operations, "operations")


def peak_source(dtype: str) -> str:
    """C source of a function that runs chains of vector multiply-adds in registers."""
    name, size = _NAMES[dtype]
    chains = range(CHAINS)
    return f"""\
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef {name} lanes __attribute__((vector_size(BYTES)));
{compiler.EXPORT} double eqlayers_peak(long rounds, double factor, double term) {{
    lanes f = ({name})factor - (lanes){{0}}, t = ({name})term - (lanes){{0}};
    {" ".join(f"lanes a{i} = t * {i + 1};" for i in chains)}
    for (long round = 0; round < rounds; round++) {{
        {" ".join(f"a{i} = a{i} * f + t;" for i in chains)}
    }}
    lanes sum = {" + ".join(f"a{i}" for i in chains)};
    double out = 0;
    for (int i = 0; i < BYTES / {size}; i++) out += sum[i];
    return out;
}}
{compiler.EXPORT} int eqlayers_lanes(void) {{ return BYTES / {size}; }}
"""


def peak_rate(dtype: str, runs: int = 15) -> dict[str, float] | None:
    """Measure floating-point operations per second of one thread by vector multiply-adds.

    None without a C compiler, and for 16-bit dtypes, which kernels compute in float32.

    Example:
        >>> rate = peak_rate("float32", runs=3)
        >>> rate is None or rate["median"] > 1e8
        True
    """
    if dtype not in _NAMES or compiler.why_not() is not None:
        return None
    library = compiler.load(peak_source(dtype), "eqlayers_peak")
    call = library.eqlayers_peak
    call.argtypes, call.restype = (ctypes.c_long, ctypes.c_double, ctypes.c_double), ctypes.c_double
    (seconds,) = alternate([lambda: call(ROUNDS, 0.5, 0.25)], runs)
    operations = 2 * ROUNDS * CHAINS * library.eqlayers_lanes()
    return summary([operations / s for s in seconds])


def operations(
    base: Formula, moving: Sequence[bool], weights: Sequence[bool], with_cotangent: Sequence[bool]
) -> dict[str, int]:
    """Floating-point operations of a formula per row and channel, by direction.

    Flags select operands of the first gradient (``moving``), weights, and results with cotangents.
    """
    both = [a or b for a, b in zip(moving, weights, strict=True)]
    first = base.vjp(with_cotangent, both)
    force = base.vjp(with_cotangent, moving)
    cotangents = [True] * (len(force.operands) - len(both))
    second = force.vjp([True] * len(force.results), [*both, *cotangents])
    return {
        "fwd": base.operations,
        "fwd+bwd": base.operations + first.operations,
        "fwd+double": base.operations + force.operations + second.operations,
    }


def product_operations(program: Program) -> dict[str, int]:
    """Least number of floating-point operations of a product per row, by direction.

    The matrix A(y) of a path, from components of x to components of z, is shared by channels and not counted. Each
    channel multiplies by it and by its weights; second derivatives also by the matrix of the cotangent of y.

    Example:
        >>> from eqlayers import TensorProduct
        >>> layer = TensorProduct("8x1o", "1o", "8x0e", [(0, 0, 0, "uvu", True)])
        >>> product_operations(layer.plan.form.program)  # 8 channels of three pairs of components, and one weight
        {'fwd': 56, 'bwd': 136, 'double_bwd': 336}
    """
    paths = [_path_operations(path) for path in program.paths]
    return {direction: sum(path[direction] for path in paths) for direction in ("fwd", "bwd", "double_bwd")}


def _path_operations(path: ProductPath) -> dict[str, int]:
    """Operations of one path by direction; a multiply-add counts as two."""
    pairs = len({(i, k) for i, _, k, _ in path.terms})
    channels = math.prod(axis.length for axis in path.axes)
    alone = math.prod(axis.length for axis in path.axes if axis.x or axis.y)  # channels of A(y) x
    apply = 2 * pairs * alone
    if channels == alone:  # one weight for each channel, applied to x or z
        scale = min(path.x.dim, path.z.dim) * channels * (path.weight is not None)
        return {"fwd": apply + scale, "bwd": 2 * apply + 5 * scale, "double_bwd": 5 * apply + 12 * scale}
    mix = 2 * path.z.dim * channels  # weights are a matrix behind A(y) x
    return {"fwd": apply + mix, "bwd": 3 * apply + 2 * mix, "double_bwd": 7 * apply + 5 * mix}


def tensor_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Total bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


# -- stored bounds of kernels on GPUs ----------------------------------------------------------------------------------


@cache
def read_bounds(path: Path = STORED) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Read stored launches by request; an empty mapping without the file.

    Example:
        >>> bounds = read_bounds()
        >>> bounds == {} or ("mace-large", "conv", "ir_mul", "double_bwd") in bounds
        True
    """
    if not path.is_file():
        return {}
    rows: Iterable[dict[str, Any]] = read_json(path, "stored bounds", "Run the study printed_kernels.py again.")["rows"]
    return {tuple(row[name] for name in ABOUT): row["launches"] for row in rows if row.get("launches")}


def scaled_bound(launches: Sequence[dict[str, Any]], bandwidth: float) -> float:
    """Least seconds of launches on a GPU with a memory bandwidth in bytes per second.

    Example:
        >>> scaled_bound([{"seconds": {"HBM": 0.3, "L2": 0.4}}], MEMORY)
        0.4
        >>> scaled_bound([{"seconds": {"HBM": 0.3, "L2": 0.4}}], MEMORY / 2)
        0.6
    """
    factor = MEMORY / bandwidth
    return sum(
        max(seconds * (factor if limit == "HBM" else 1.0) for limit, seconds in launch["seconds"].items())
        for launch in launches
    )


def bound_of(about: dict[str, Any], bandwidth: float, nodes: int, edges: int) -> float | None:
    """Least seconds of a float32 request on this GPU; None if no bound is stored for it or its graph."""
    if about["dtype"] != "float32" or (nodes, edges) != GRAPH:
        return None
    launches = read_bounds().get(tuple(about[name] for name in ABOUT))
    return None if launches is None else scaled_bound(launches, bandwidth)
