"""Rows moved by printed C: every transposition there and back, stores past the caches, alignment, margins."""

import ctypes
import re
from typing import Any

import numpy as np
import pytest

from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.print import layout
from eqlayers_kernels.c.print.layout import TYPES, head
from eqlayers_kernels.c.print.printer import print_import
from eqlayers_kernels.c.run import launch
from eqlayers_kernels.forms.program import Slot
from tests.each import each

DIMS = (1, 2, 3, 5, 7, 9, 11, 13)
MULS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33)  # around the widths of vectors


@pytest.fixture(scope="module", params=TYPES)
def moves(request: pytest.FixtureRequest) -> tuple[str, ctypes.CDLL]:
    """A library with every transposition, and the copy past the caches."""
    dtype = request.param
    if compiler.why_not() is not None:
        pytest.skip(f"C kernels: {compiler.why_not()}")
    exports = [
        f"EXPORT void {way}_{dim}(const T *from, T *to, int mul) {{ {way}{dim}(from, to, mul); }}"
        for way in ("in", "out")
        for dim in DIMS
    ]
    exports.append("EXPORT void past(const T *from, T *to, int64_t n) { store_past_caches(from, to, n); }")
    exports.append("EXPORT void done(void) { finish_stores(); fetch(0, 100); }")
    ctype, item = TYPES[dtype]
    parts = [head(ctype), layout.print_transposes(DIMS, DIMS, item), *exports]
    return dtype, compiler.load("\n".join(parts), f"moves_{dtype}")


def call(function: Any, source: np.ndarray, shift: int, *numbers: Any) -> np.ndarray:
    """The array that a function writes from an array of the same size, at an address off by ``shift`` elements."""
    buffer = np.full(source.size + 64 + shift, np.nan, dtype=source.dtype)
    target = buffer[32 + shift : 32 + shift + source.size]
    function(ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(target.ctypes.data), *numbers)
    assert np.isnan(buffer[: 32 + shift]).all()
    assert np.isnan(buffer[32 + shift + source.size :]).all()
    return target


@each("dim", DIMS)
def test_transpositions_move_every_element(moves: tuple[str, ctypes.CDLL], dim: int) -> None:
    dtype, library = moves
    for mul in MULS:
        inside = np.arange(dim * mul, dtype=dtype)
        outside = np.ascontiguousarray(inside.reshape(dim, mul).T).reshape(-1)
        for shift in (0, 1):
            np.testing.assert_array_equal(call(getattr(library, f"in_{dim}"), outside, shift, mul), inside)
            np.testing.assert_array_equal(call(getattr(library, f"out_{dim}"), inside, shift, mul), outside)


def test_copies_past_the_caches(moves: tuple[str, ctypes.CDLL]) -> None:
    dtype, library = moves
    library.past.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    for size in (0, 1, 3, 8, 15, 16, 17, 64, 100, 1001):
        source = np.arange(size, dtype=dtype)
        for shift in range(17):  # every alignment within a vector
            target = call(library.past, source, shift, size)
            library.done()
            np.testing.assert_array_equal(target, source)


@each("item", [4, 8])
@each("dim", DIMS[1:])
def test_shuffles_for_every_width_of_vectors(item: int, dim: int) -> None:
    """The printed shuffles, replayed: also for processors other than this one."""

    def replay(text: str, sources: dict[str, list[int]]) -> list[int]:
        first, second, *index = text.removeprefix("__builtin_shufflevector(").rsplit(")", 1)[0].rsplit(", ", lanes + 1)
        left = replay(first, sources) if first.startswith("__") else sources[first]
        both = left + sources[second]
        return [both[int(i)] if int(i) >= 0 else -1 for i in index]

    for size in layout.VECTOR_BYTES:
        lanes = size // item
        flat = np.arange(dim * lanes)
        for way in ("in", "out"):
            block = layout._block(way, dim, lanes).splitlines()
            inputs = flat.reshape(dim, lanes)  # vectors as they are read
            sources = {f"s{n}": inputs[n].tolist() for n in range(dim)}
            stored = [line.strip().split(" = ", 1)[1].rstrip(";") for line in block if line.strip().startswith("*")]
            got = np.array([replay(text, sources) if text.startswith("__") else sources[text] for text in stored])
            turned = flat.reshape(lanes, dim).T if way == "in" else flat.reshape(dim, lanes).T
            np.testing.assert_array_equal(got.reshape(-1), turned.reshape(-1))


@pytest.mark.parametrize("lanes", sorted({size // item for size in layout.VECTOR_BYTES for item in (4, 8)}))
def test_squares_are_turned_for_every_width_of_vectors(lanes: int) -> None:
    """The printed steps, replayed."""
    vectors = np.arange(lanes * lanes).reshape(lanes, lanes)
    for line in layout._steps(lanes).splitlines():
        a, b = map(int, re.findall(r"\b[ab] = v\[(\d+)\]", line))
        both = np.concatenate([vectors[a], vectors[b]])
        for target, index in re.findall(r"v\[(\d+)\] = __builtin_shufflevector\(a, b, (.*?)\);", line):
            vectors[int(target)] = both[[int(i) for i in index.split(", ")]]
    np.testing.assert_array_equal(vectors, np.arange(lanes * lanes).reshape(lanes, lanes).T)


def test_import_turns_wide_blocks_and_copies_the_rest(kernels: Any) -> None:
    """Blocks of one channel or one component, and columns of no block, are the same in both layouts."""
    slots = [Slot(2, 5, 3), Slot(17, 1, 5), Slot(22, 4, 1), Slot(30, 9, 5), Slot(2, 5, 3)]
    source = print_import(slots, 80, "float32")
    rows = np.random.default_rng(0).normal(size=(7, 80)).astype("float32")
    want = rows.copy()
    for slot in slots:
        want[:, slot.columns("ir_mul")] = rows[:, slot.columns("mul_ir")]
    assert (want != rows).any()
    inputs, turned = kernels.padded(rows), kernels.padded(np.full_like(rows, np.nan))
    launch.Compiled("import_test", (source,))(7, [*kernels.rows_of(inputs), *kernels.rows_of(turned)], chunks=3)
    np.testing.assert_array_equal(turned, want)


def test_small_headers_only() -> None:
    """<immintrin.h>, for two instructions, took longer to parse than all else in a small kernel."""
    text = head("float") + layout.print_transposes(DIMS, DIMS, 4)
    assert sorted(re.findall(r"#include <(.+)>", text)) == ["stdint.h", "stdlib.h", "string.h", "time.h"]
