"""Printed C against the interpreter of programs: values, every column written, nothing written beyond."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from eqlayers_kernels.c import compiler
from eqlayers_kernels.c.printer import TYPES, print_forward
from eqlayers_kernels.program import Path, Program, Slot, run

pytestmark = pytest.mark.skipif(compiler.why_not() is not None, reason="no C compiler")

ROWS = 5


def random_path(rng: np.random.Generator, muls: tuple[int, int], starts: list[int], weight: int | None) -> Path:
    """A path of random terms; some output components have none."""
    dims = [int(d) for d in rng.choice([1, 3, 5], size=3)]
    mul = max(muls)
    slots = [Slot(s, m, d) for s, m, d in zip(starts, (*muls, mul), dims, strict=True)]
    count = int(rng.integers(1, 9))
    terms = {tuple(int(rng.integers(d)) for d in dims): float(rng.normal()) for _ in range(count)}
    return Path(slots[0], slots[1], slots[2], weight, tuple((i, j, k, s) for (i, j, k), s in sorted(terms.items())))


def random_program(seed: int, layout: str, weighted: bool) -> Program:
    """Paths of all three kinds and odd multiplicities; two of them add to one slot; gaps in z between others."""
    rng = np.random.default_rng(seed)
    paths: list[Path] = []
    ends = [0, 0, 0, 0]
    for muls in ((53, 1), (7, 1), (1, 4), (6, 6), (1, 1), (16, 1)):
        weight = ends[2] if weighted else None
        path = random_path(rng, muls, [ends[0], ends[1], ends[3] + int(rng.integers(3))], weight)
        paths.append(path)
        ends = [path.x.start + path.x.mul * path.x.dim, path.y.start + path.y.mul * path.y.dim, ends[2], ends[3]]
        ends[2] += max(muls) if weighted else 0
        ends[3] = path.z.start + path.z.mul * path.z.dim
    first = paths[0]
    paths.append(first._replace(terms=tuple((i, j, k, 2 * s + 0.1) for i, j, k, s in first.terms)))
    return Program(tuple(paths), (ends[0], ends[1], ends[2], ends[3] + 2), layout)


def call(program: Program, dtype: str, x: Any, y: Any, w: Any, begin: int = 0, end: int = ROWS) -> np.ndarray:
    """z of the printed kernel, NaN where it wrote nothing, inside a larger buffer that must stay NaN."""
    library = compiler.load(print_forward(program, dtype), "test")
    width = program.widths[3]
    buffer = np.full(ROWS * width + 64, np.nan, dtype=dtype)
    z = buffer[32 : 32 + ROWS * width].reshape(ROWS, width)
    x, y, w = (np.ascontiguousarray(a, dtype=dtype) for a in (x, y, w))
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, w, z)]
    step = w.shape[1] if w.shape[0] > 1 else 0
    numbers = [ctypes.c_int64(n) for n in (step, begin, end)]
    library.forward(*pointers[:3], numbers[0], pointers[3], *numbers[1:])
    assert np.isnan(buffer[:32]).all(), "written before the result"
    assert np.isnan(buffer[-32:]).all(), "written behind the result"
    return z


def operands(program: Program, dtype: str, shared: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    rows = (ROWS, ROWS, 1 if shared else ROWS)
    x, y, w = (rng.normal(size=(n, max(1, c))).astype(dtype) for n, c in zip(rows, program.widths, strict=False))
    return x, y, w


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("weights", ["none", "shared", "sample"])
@pytest.mark.parametrize("seed", range(2))
def test_forward_equals_the_interpreter(seed: int, weights: str, layout: str, dtype: str) -> None:
    program = random_program(seed, layout, weights != "none")
    x, y, w = operands(program, dtype, weights == "shared")
    want = run(program, x, y, w)
    magnitudes = tuple(p._replace(terms=tuple((i, j, k, abs(s)) for i, j, k, s in p.terms)) for p in program.paths)
    size = run(Program(magnitudes, program.widths, layout), abs(x), abs(y), abs(w))
    got = call(program, dtype, x, y, w)
    # at most 9 terms a path and two paths a slot; three factors and the coefficient are rounded
    bound = (2 * 9 + 4) * np.finfo(dtype).eps * size
    assert (np.abs(got - want) <= bound).all()


def test_only_the_rows_asked_for_are_written() -> None:
    program = random_program(3, "mul_ir", True)
    z = call(program, "float64", *operands(program, "float64", False), begin=1, end=3)
    assert np.isnan(z[[0, 3, 4]]).all()
    assert np.isfinite(z[1:3]).all()


def test_nan_and_infinity_stay_with_the_terms_that_read_them() -> None:
    program = random_program(4, "ir_mul", True)
    x, y, w = operands(program, "float32", False)
    x[2, program.paths[1].x.start] = np.nan
    w[3, 0] = np.inf
    with np.errstate(invalid="ignore"):
        want = run(program, x, y, w)
    np.testing.assert_array_equal(np.isfinite(call(program, "float32", x, y, w)), np.isfinite(want))


def test_equal_programs_print_equal_sources() -> None:
    first, second = random_program(5, "mul_ir", True), random_program(5, "mul_ir", True)
    assert print_forward(first, "float32") == print_forward(second, "float32")
    assert print_forward(first, "float32") != print_forward(first, "float64")
