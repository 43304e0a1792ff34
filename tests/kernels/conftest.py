"""Random programs in all modes, what they must give by the interpreter, and one way to run printed kernels."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from eqlayers_kernels.arithmetic.writer import RESULTS, Task
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.print.printer import Kernel
from eqlayers_kernels.c.run import launch
from eqlayers_kernels.forms.program import OPERANDS, Axis, Path, Program, Slot
from tests.by_hand import contract

Arrays = dict[str, np.ndarray]
WORKERS = [1]  # the last is the number of threads that work at once
MARGIN = 32  # elements around every buffer, and columns between its rows, that no kernel may touch


def axes_of(mode: str, u: int, v: int, w: int, weighted: bool) -> tuple[tuple[Axis, ...], int]:
    """Axes of a connection mode, and the multiplicity of z."""
    one = int(weighted)
    return {
        "uvw": ((Axis(u, x=1, w=v * w), Axis(v, y=1, w=w), Axis(w, w=1, z=1)), w),
        "uvu": ((Axis(v, y=1, w=one), Axis(u, x=1, w=one * v, z=1)), u),
        "uvv": ((Axis(u, x=1, w=one * v), Axis(v, y=1, w=one, z=1)), v),
        "uuw": ((Axis(u, x=1, y=1, w=w), Axis(w, w=1, z=1)), w),
        "uuu": ((Axis(u, 1, 1, one, 1),), u),
        "uvuv": ((Axis(u, x=1, w=one * v, z=v), Axis(v, y=1, w=one, z=1)), u * v),
        "uvu<v": ((Axis(u, 1, 1, one, 1, pairs=True),), u * (u - 1) // 2),
        "u<vw": ((Axis(u, 1, 1, w, 0, pairs=True), Axis(w, w=1, z=1)), w),
    }[mode]


def random_terms(rng: np.random.Generator, dims: Sequence[int]) -> tuple[tuple[int, int, int, float], ...]:
    """Up to nine terms; some components have none."""
    terms = {tuple(int(rng.integers(d)) for d in dims): float(rng.normal()) for _ in range(9)}
    return tuple((i, j, k, s) for (i, j, k), s in sorted(terms.items()))


#: Mode, multiplicities and components: both sides of a vector's width, one channel, one component, unequal and odd.
SPECS = (
    ("uvu", (53, 1, 0), (3, 5, 3)), ("uvu", (6, 3, 0), (1, 3, 5)), ("uvv", (1, 37, 0), (5, 3, 3)),
    ("uuu", (18, 18, 0), (3, 3, 1)), ("uvw", (5, 2, 19), (3, 1, 7)), ("uvw", (1, 1, 1), (3, 3, 3)),
    ("uuw", (6, 6, 7), (3, 3, 5)), ("uvuv", (4, 7, 0), (1, 3, 3)), ("uvu<v", (6, 6, 0), (3, 3, 5)),
    ("u<vw", (5, 5, 11), (3, 3, 1)),
)  # fmt: skip


def random_program(
    layout: str, weighted: bool = True, specs: Sequence[Any] = SPECS, seed: int = 0, gap: int = 2
) -> Program:
    """Paths with gaps between their slots; every third slot of z has a second path, in another place of the list."""
    rng = np.random.default_rng(seed)
    paths: list[Path] = []
    ends = [1, 0, 0, 1]  # of x, y, w, z
    for mode, (u, v, w), dims in specs:
        has = weighted or mode in ("uvw", "uuw", "u<vw")
        axes, mul = axes_of(mode, u, v, w, has)
        x, y, z = Slot(ends[0], u, dims[0]), Slot(ends[1], v, dims[1]), Slot(ends[3], mul, dims[2])
        paths.append(Path(x, y, z, ends[2] if has else None, axes, random_terms(rng, dims)))
        ends = [x.stop + gap, y.stop, ends[2] + paths[-1].weight_count + gap * has, z.stop + gap]
    for path in paths[::3]:
        weight = None if path.weight is None else ends[2]
        dims = [slot.dim for slot in path[:3]]
        paths.append(path._replace(weight=weight, terms=random_terms(rng, dims)))
        ends[2] += path.weight_count
    return Program(tuple(paths), (ends[0], ends[1], ends[2] + 1, ends[3] + 1), layout)


@dataclass(frozen=True)
class Edges:
    """A graph, and its tables by receiver and by sender."""

    src: np.ndarray
    dst: np.ndarray
    senders: int
    receivers: int

    def tables(self, by: str) -> list[np.ndarray]:
        """ptr with its mark, edges, others; by NumPy's stable sort. Edges of a sender are sorted by receiver."""
        key, other, nodes = (
            (self.src, self.dst, self.senders) if by == "by_src" else (self.dst, self.src, self.receivers)
        )
        order = np.lexsort((np.arange(key.size), other if by == "by_src" else key, key))
        return [np.append(np.searchsorted(key[order], np.arange(nodes + 1)), -1 - self.others(by)), order, other[order]]

    def others(self, by: str) -> int:
        """Number of nodes at the other ends."""
        return self.receivers if by == "by_src" else self.senders

    def rows(self, operand: str) -> int:
        """Rows of an operand."""
        return {"x": self.senders, "z": self.receivers}.get(operand, self.src.size)


def draw(
    program: Program, dtype: str, rows: int = 5, shared: bool = False, edges: Edges | None = None, seed: int = 1
) -> Arrays:
    """Random x, y, w, g and tangents dx, dy, dw."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, operand in zip(("x", "y", "w", "g", "dx", "dy", "dw"), "xywzxyw", strict=True):
        count = 1 if shared and operand == "w" else edges.rows(operand) if edges else rows
        out[name] = rng.normal(size=(count, dict(zip(OPERANDS, program.widths, strict=True))[operand])).astype(dtype)
    return out


def _absolute(program: Program, coefficient: Any) -> Program:
    paths = tuple(p._replace(terms=tuple((*t[:3], coefficient(t[3])) for t in p.terms)) for p in program.paths)
    return Program(paths, program.widths, program.layout)


def expected(program: Program, task: Task, arrays: Arrays, edges: Edges | None = None) -> dict[str, list[np.ndarray]]:
    """Per result: its value by the interpreter, the sum of the magnitudes of its terms, and their number."""
    programs = (program, _absolute(program, abs), _absolute(program, lambda s: 1.0))
    changes = (lambda a: a, np.abs, np.ones_like)
    shared = arrays["w"].shape[0] == 1 != arrays["y"].shape[0]
    out = {}
    for result in task.results:
        found = []
        for form, change in zip(programs, changes, strict=True):
            operands = {name: change(a) for name, a in arrays.items()}
            if edges:
                operands |= {name: operands[name][edges.src] for name in ("x", "dx")}
                operands["g"] = operands["g"][edges.dst]
            total = _rows(form, task, result, operands)
            if edges and result in "xz":
                into = np.zeros((edges.rows(result), total.shape[1]))
                np.add.at(into, edges.src if result == "x" else edges.dst, total)
                total = into
            elif result == "w" and shared:
                total = total.sum(0, keepdims=True)
            found.append(total)
        out[result] = found
    return out


def _rows(program: Program, task: Task, result: str, operands: Arrays) -> np.ndarray:
    """One result row by row; of order 2 the sum over the tangents, as the result is linear in each of them."""
    rows = operands["y"].shape[0]
    for name in ("w", "dw"):  # one row that is shared would count as a row of the result
        operands[name] = np.broadcast_to(operands[name], (rows, operands[name].shape[1]))
    primal = {"x": operands["x"], "y": operands["y"], "w": operands["w"], "z": operands["g"]}
    primal.pop(result)
    if task.order < 2:
        return contract(program, result, **primal)
    total = np.zeros((rows, dict(zip(OPERANDS, program.widths, strict=True))[result]))
    for tangent in task.tangents:
        if tangent != result:
            weighted = tuple(p for p in program.paths if tangent != "w" or p.weight is not None)
            form = Program(weighted, program.widths, program.layout)
            total = total + contract(form, result, **{**primal, tangent: operands[f"d{tangent}"]})
    return total


def padded(array: np.ndarray) -> np.ndarray:
    """A copy with NaN around it and between its rows: who reads there shows."""
    rows, width = array.shape
    buffer = np.full(2 * MARGIN + rows * (width + MARGIN), np.nan, dtype=array.dtype)
    out = buffer[MARGIN : MARGIN + rows * (width + MARGIN)].reshape(rows, width + MARGIN)[:, :width]
    out[...] = array
    return out


def assert_margins_untouched(array: np.ndarray) -> None:
    """Nothing but the array itself was written in the buffer that `padded` made."""
    buffer = array.base
    while buffer.base is not None:
        buffer = buffer.base
    inside = np.zeros(buffer.shape, dtype=bool)
    rows, width = array.shape
    inside[MARGIN : MARGIN + rows * (width + MARGIN)].reshape(rows, width + MARGIN)[:, :width] = True
    assert np.isnan(buffer[~inside]).all(), "written outside the result"


def rows_of(array: np.ndarray) -> tuple[int, int]:
    """Address of the first row, and elements from row to row."""
    return array.ctypes.data, array.strides[0] // array.itemsize


def run(
    kernel: Kernel,
    arrays: Arrays,
    edges: Edges | None = None,
    chunks: int | None = None,
    workers: int | None = None,
    past: bool = False,
) -> Arrays:
    """Results of a printed kernel, by operand. Buffers have margins of NaN, and elements that no kernel wrote are NaN.

    The fixture `kernels` sets chunks and workers, unless a test is about them.
    """
    program, task = kernel.program, kernel.task
    workers = WORKERS[-1] if workers is None else workers
    chunks = (1 if workers == 1 else workers + 1) if chunks is None else chunks  # fewer than rows
    rows = arrays["y"].shape[0]
    inputs = {name: padded(arrays[name]) for name, _ in task.pointers if name in arrays}
    for operand in kernel.transposed:
        turn = launch.load_import(program, operand, kernel.dtype)
        for name in [n for n, o in task.pointers if o == operand and n in inputs]:
            turned = padded(np.full_like(arrays[name], np.nan))
            turn(turned.shape[0], [*rows_of(inputs[name]), *rows_of(turned)], chunks, workers)
            assert_margins_untouched(turned)
            inputs[name] = turned
    table = getattr(kernel, "table", None)  # of maps
    results, packed = {}, [] if table is None else [table.buffer_info()[0], 0]
    for name, operand in task.pointers:
        if name in RESULTS.values():
            count = chunks if name == "gw" and kernel.shared else edges.rows(operand) if edges else rows
            width = dict(zip(OPERANDS, program.widths, strict=True))[operand]
            results[operand] = padded(np.full((count, width), np.nan, dtype=kernel.dtype))
            packed += rows_of(results[operand])
        else:
            address, step = rows_of(inputs[name])
            packed += (address, 0 if operand == "w" and kernel.shared else step)
    tables = [np.ascontiguousarray(t) for t in edges.tables(kernel.traversal)] if edges else []
    segments = tables[0].size - 2 if edges else rows
    sizes = [rows, edges.others(kernel.traversal)] if edges else []
    workers = 1 if kernel.traversal == "to_src" else workers  # rows of senders have no owner
    launch.load(kernel)(segments, [*packed, *(t.ctypes.data for t in tables), *sizes], chunks, workers, past)
    for array in results.values():
        assert_margins_untouched(array)
    if kernel.shared and "w" in results:
        results["w"] = results["w"].sum(0, keepdims=True)
    return results


def check(kernel: Kernel, arrays: Arrays, edges: Edges | None = None, **how: Any) -> Arrays:
    """Run, and compare with the interpreter within the rounding bound of every element; returns the results."""
    got = run(kernel, arrays, edges, **how)
    compare(kernel.program, kernel.task, kernel.dtype, got, arrays, edges)
    return got


def compare(
    program: Program, task: Task, dtype: str, got: Arrays, arrays: Arrays, edges: Edges | None = None, eps: float = 0
) -> None:
    """Hold results against the interpreter; ``eps`` is one more rounding of each, relative to its size."""
    for name, (value, size, count) in expected(program, task, arrays, edges).items():
        # Higham 2002, section 3.1: the terms of a sum, and four factors and a rounded coefficient in each
        bound = ((count + 5) * np.finfo(dtype).eps + eps) * size
        error = np.abs(got[name] - value)
        off = int((~(error <= bound)).sum())
        assert not off, f"{name}: {off} of {error.size} elements are off, the worst by {np.nanmax(error)}"
        assert (np.abs(got[name][count == 0]) == 0).all(), f"{name}: what no term reaches must be zero"


@pytest.fixture(scope="session")
def programs() -> ModuleType:
    """The functions of this module, for kernels of another kind: only `run` and `check` need a C compiler."""
    return sys.modules[__name__]


@pytest.fixture(scope="session", params=[1, 2, 3], ids=["1 thread", "2 threads", "3 threads"])
def kernels(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The functions of this module, which make random programs, run their kernels, and compare with the interpreter.

    On several threads there are more chunks than threads, and more rows than chunks.
    """
    if compiler.why_not() is not None:
        pytest.skip(f"C kernels: {compiler.why_not()}")
    WORKERS.append(request.param)
    yield sys.modules[__name__]
    WORKERS.pop()
