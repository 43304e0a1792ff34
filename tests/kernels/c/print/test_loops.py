"""Printed loops: the columns that no slot covers, and edges and nodes that are not there to be read."""

import ctypes

import numpy as np
import pytest

from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.print.loops import OUTSIDE, SEGMENT, gaps
from eqlayers_kernels.forms.program import Slot

COUNT, NODES = 4, 3
CHECKS = f"""
#include <stdint.h>
#include <stddef.h>
{SEGMENT}{OUTSIDE}
{compiler.EXPORT} int edges_outside(const int64_t *edges, const int64_t *others, int64_t start, int64_t stop) {{
  return outside(edges, others, start, stop, {COUNT}, {NODES});
}}
{compiler.EXPORT} int index_beyond(const int64_t *index) {{ return beyond(index, NULL, {COUNT}, {NODES}); }}
{compiler.EXPORT} int64_t first(const int64_t *ptr, int64_t chunk) {{ return segment(ptr, {NODES}, 2, chunk); }}
"""


def test_columns_below_a_shorter_slot_are_covered() -> None:
    assert gaps([Slot(1, 5, 1), Slot(2, 1, 1)], 8) == [Slot(0, 1, 1), Slot(6, 2, 1)]
    assert gaps([Slot(0, 4, 2)], 8) == []
    assert gaps([], 2) == [Slot(0, 2, 1)]


@pytest.fixture(scope="module")
def checks() -> ctypes.CDLL:
    if compiler.why_not() is not None:
        pytest.skip(f"C kernels: {compiler.why_not()}")
    return compiler.load(CHECKS, "checks_of_edges")


def pointer(*numbers: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


@pytest.mark.parametrize(
    ("edges", "others", "start", "stop", "wrong"),
    [
        ((3, 2, 1, 0), (0, 1, 2, 2), 0, COUNT, False),
        ((3, 2, 1, 0), (0, 1, 2, 2), 2, 2, False),
        ((3, 2, COUNT, 0), (0, 1, 2, 2), 0, COUNT, True),
        ((3, 2, COUNT, 0), (0, 1, 2, 2), 0, 2, False),
        ((3, -1, 1, 0), (0, 1, 2, 2), 0, COUNT, True),
        ((3, 2, 1, 0), (0, NODES, 2, 2), 0, COUNT, True),
        ((3, 2, 1, 0), (0, -1, 2, 2), 0, COUNT, True),
        ((3, 2, 1, 0), (0, 1, 2, 2), -1, COUNT, True),
        ((3, 2, 1, 0), (0, 1, 2, 2), 0, COUNT + 1, True),
        ((3, 2, 1, 0), (0, 1, 2, 2), 3, 2, True),
    ],
)
def test_edges_that_are_not_there(
    checks: ctypes.CDLL, edges: tuple[int, ...], others: tuple[int, ...], start: int, stop: int, wrong: bool
) -> None:
    arguments = pointer(*edges), pointer(*others), ctypes.c_int64(start), ctypes.c_int64(stop)
    assert bool(checks.edges_outside(*arguments)) == wrong


@pytest.mark.parametrize(("index", "wrong"), [((0, 1, 2, 0), False), ((0, 1, NODES, 0), True), ((0, -1, 2, 0), True)])
def test_rows_that_are_not_there(checks: ctypes.CDLL, index: tuple[int, ...], wrong: bool) -> None:
    assert bool(checks.index_beyond(pointer(*index))) == wrong


def test_chunks_have_all_segments(checks: ctypes.CDLL) -> None:
    """For any numbers of the table, the first chunk begins at 0 and the last ends behind the last segment."""
    checks.first.restype = ctypes.c_int64
    for table in np.random.default_rng(0).integers(-9, 9, (20, NODES + 1)).tolist():
        assert checks.first(pointer(*table), ctypes.c_int64(0)) == 0
        assert checks.first(pointer(*table), ctypes.c_int64(2)) == NODES
    assert checks.first(pointer(0, 5, 5, 10), ctypes.c_int64(1)) == 1
