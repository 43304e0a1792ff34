"""Runs printed kernels under a sanitizer, in a process without torch: ``python sanitized.py PART``.

The sanitizer's runtime must be preloaded (see test_sanitizers.py). Every buffer is as long as its rows, and lies in
memory of its own: a read of one element past the last row ends the process.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.print import driver, layout
from eqlayers_kernels.c.print.printer import TYPES, Kernel
from eqlayers_kernels.c.run import edges, launch, threads
from eqlayers_kernels.forms.program import LAYOUTS, Program

os.environ.pop("LD_PRELOAD", None)  # the compiler runs as it is

SANITIZERS = {"address": "address,undefined", "thread": "thread"}
COMMON = ("-O1", "-g1", "-std=c11", "-fPIC", "-fvisibility=hidden", "-march=native", "-fno-omit-frame-pointer")

TEAM = f"""#define _POSIX_C_SOURCE 200112L
#include <pthread.h>
typedef struct {{ void (*function)(void *); void *data; pthread_barrier_t all; }} Task;
static void *begin(void *given) {{
  Task *const task = given;
  pthread_barrier_wait(&task->all); /* or the first would be done before the others are there */
  task->function(task->data);
  return 0;
}}
{compiler.EXPORT} void team(void (*function)(void *), void *data, unsigned threads, unsigned flags) {{
  /* what GNU's runtime does with a parallel region */
  pthread_t others[64];
  Task task = {{function, data}};
  pthread_barrier_init(&task.all, 0, threads);
  for (unsigned i = 1; i < threads; i++) pthread_create(&others[i], 0, begin, &task);
  begin(&task);
  for (unsigned i = 1; i < threads; i++) pthread_join(others[i], 0);
  pthread_barrier_destroy(&task.all);
}}
"""
#: Planted faults that the sanitizers must see, or what is clean says nothing.
FAULTS = {
    "read": "return ((const int64_t *)arg[3])[arg[0]];",
    "write": "((int64_t *)arg[3])[arg[0]] = 1; return 0;",
    "overflow": "const volatile int64_t sum = arg[4] + 1; return sum;",
    # pieces so long that no thread has done all of them before another one begins
    "race": "for (volatile int i = 0; i < 300000; i++); ((int64_t *)arg[3])[0] += begin; return 0;",
}

VALUES, GRADIENTS = Task(0, ("z",)), Task(1, ("x", "y", "w"))
SECOND = Task(2, ("x", "y", "w", "z"), ("x", "y", "w"))
#: Walks and kinds, by part.
PARTS = {
    "rows-0": ("rows", VALUES),
    "rows-1": ("rows", GRADIENTS),
    "rows-2": ("rows", SECOND),
    "by_dst-0": ("by_dst", VALUES),
    "by_dst-2": ("by_dst", Task(2, ("z",), ("x", "y", "w"))),
    "by_src-1": ("by_src", GRADIENTS),
    "by_src-2": ("by_src", Task(2, ("x", "y", "w"), ("x", "y", "w"))),
    "to_src-1": ("to_src", GRADIENTS),
}
#: Layout, dtype, and weights: a row for each row, one for all, or none (where a mode can do without).
VARIANTS = (
    ("mul_ir", "float32", "each"),
    ("mul_ir", "float64", "shared"),
    ("ir_mul", "float32", "none"),
    ("ir_mul", "float64", "each"),
)
SCALES = (("uuu", (17, 17, 0), (3, 1, 3)), ("uvu", (5, 1, 0), (5, 1, 5)), ("uuu", (4, 4, 0), (1, 1, 1)))
FORGERIES = 60


def _cases() -> Any:
    """Cases that the other tests of this folder share."""
    from tests.kernels import conftest as module

    module.MARGIN = 0
    real = module.rows_of
    module.rows_of = lambda rows: real(rows) if rows.size else (0, rows.shape[1])  # as torch has empty tensors
    return module


def sanitize(which: str) -> None:
    """From here on kernels are compiled with a sanitizer, and run on threads that it knows."""
    real = compiler.toolchain()
    flags = (*COMMON, f"-fsanitize={SANITIZERS[which]}", "-fno-sanitize-recover=all")
    tools = compiler.Toolchain(real.command, real.version, flags)
    compiler.toolchain = lambda: tools  # type: ignore[assignment]
    team = compiler.load(TEAM, "team").team
    team.argtypes, team.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    threads.parallel = lambda: team  # type: ignore[assignment]


def graphs(cases: Any) -> Iterator[Any]:
    """Nodes without edges at both ends, one node with all, edges in any order, and no edges."""
    rng = np.random.default_rng(0)
    yield cases.Edges(rng.integers(1, 6, 40), rng.integers(0, 8, 40), 6, 9)
    yield cases.Edges(np.zeros(9, np.int64), np.full(9, 2), 1, 3)
    yield cases.Edges(np.arange(7), np.arange(7), 7, 7)
    yield cases.Edges(np.zeros(0, np.int64), np.zeros(0, np.int64), 2, 3)


def fitted(program: Program) -> Program:
    """Without the column behind the last path that random programs have."""
    ends = [max((getattr(path, name).stop for path in program.paths), default=0) for name in "xyz"]
    weights = max((p.weight + p.weight_count for p in program.paths if p.weight is not None), default=0)
    return Program(program.paths, (ends[0], ends[1], weights, ends[2]), program.layout)


def traversals(cases: Any, kernel: Kernel) -> int:
    """One kernel over rows or graphs, in one chunk and in many, in both ways to store; the number of runs."""
    count = 0
    for edges_ in graphs(cases) if kernel.traversal != "rows" else (None,):
        for rows, (chunks, workers, past) in product(
            (0, 1, 13) if edges_ is None else (0,), ((1, 1, False), (5, 3, True), (16, 2, False))
        ):
            arrays = cases.draw(kernel.program, kernel.dtype, rows, kernel.shared, edges_)
            cases.check(kernel, arrays, edges_, chunks=chunks, workers=workers, past=past)
            count += 1
    return count


def forged(cases: Any, kernel: Kernel) -> int:
    """Tables with any numbers: refused, or what they name is there."""
    rng, count, real = np.random.default_rng(1), 0, cases.Edges.tables
    graph = next(graphs(cases))
    arrays = cases.draw(kernel.program, kernel.dtype, 0, kernel.shared, graph)
    values = np.array([-(2**63), -(2**40), -3, -2, -1, 0, 1, 5, 6, 8, 9, 39, 40, 41, 2**40, 2**63 - 1])
    for number in range(FORGERIES):

        def tables(self: Any, by: str, changes: int = 1 + number % 3) -> list[np.ndarray]:
            found = [np.array(table) for table in real(self, by)]
            for _ in range(changes):
                table = found[rng.integers(3)]
                table[rng.integers(table.size)] = rng.choice(values)
            return found

        cases.Edges.tables = tables
        try:
            cases.run(kernel, arrays, graph, chunks=1 + number % 4, workers=1 + number % 3)
        except IndexError:
            count += 1
        finally:
            cases.Edges.tables = real
    assert FORGERIES > count > FORGERIES // 3, count
    return FORGERIES


def kernels_of(part: str, forge: bool) -> int:
    """All families of one walk and order; forged tables too, though with those two threads may write one row."""
    cases, count = _cases(), 0
    traversal, task = PARTS[part]
    for layout_, dtype, weights in VARIANTS:
        if weights != "none" or "w" not in task.results:
            program = fitted(cases.random_program(layout_, weights != "none", gap=0))
        else:
            program = fitted(cases.random_program(layout_, True, cases.SPECS[:5], gap=0))
        count += traversals(cases, Kernel(program, task, dtype, traversal, weights == "shared"))
    for layout_ in LAYOUTS:  # one factor for each copy, as layers that scale have; there is nothing in w at all
        program = fitted(cases.random_program(layout_, False, SCALES, gap=0))
        drop = tuple(name for name in task.results if name != "w"), tuple(name for name in task.tangents if name != "w")
        kernel = Kernel(program, Task(task.order, *drop), "float32", traversal, True)
        assert program.widths[2] == 0
        count += traversals(cases, kernel)
        if forge and traversal != "rows":
            count += forged(cases, kernel)
    driver.REGION_BYTES, driver.STREAMED_WEIGHTS = 256, range(5, 18)
    program = fitted(cases.random_program("mul_ir", True, cases.SPECS[:5], gap=3))
    return count + traversals(cases, Kernel(program, task, "float32", traversal))


def moves() -> int:
    """Transpositions and copies past the caches, between blocks that end where their memory ends."""
    count, dims, muls = 0, (2, 3, 5, 7, 13), (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33)
    for dtype, (ctype, item) in TYPES.items():
        exports = [
            f"EXPORT void {way}_{dim}(const T *from, T *to, int mul) {{ {way}{dim}(from, to, mul); }}"
            for way in ("in", "out")
            for dim in dims
        ]
        exports.append("EXPORT void past(const T *from, T *to, int64_t n) { store_past_caches(from, to, n); }")
        parts = [layout.head(ctype), layout.print_transposes(dims, dims, item), *exports]
        library = compiler.load("\n".join(parts), f"moves_{dtype}")
        library.past.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        for dim, mul in product(dims, muls):
            inside = np.arange(dim * mul, dtype=dtype)
            outside = np.ascontiguousarray(inside.reshape(dim, mul).T).reshape(-1)
            for way, source, want in (("in", outside, inside), ("out", inside, outside)):
                got = np.empty_like(want)
                places = [ctypes.c_void_p(block.ctypes.data) for block in (source, got)]
                getattr(library, f"{way}_{dim}")(*places, mul)
                np.testing.assert_array_equal(got, want)
                count += 1
        for size, shift in product((0, 1, 3, 8, 15, 16, 17, 64, 101), range(17)):
            source, got = np.arange(size, dtype=dtype), np.empty(size + shift, dtype)
            library.past(source.ctypes.data, got.ctypes.data + shift * item, size)
            np.testing.assert_array_equal(got[shift:], source)
            count += 1
    return count


def sorting() -> int:
    """Edges into tables of their length, in range and out of it."""
    rng, count = np.random.default_rng(2), 0
    for number, senders, receivers, wrong in product((0, 1, 7, 200), (0, 1, 6), (0, 1, 9), (None, -1, 9, 2**40)):
        index = np.stack([rng.integers(0, max(senders, 1), number), rng.integers(0, max(receivers, 1), number)])
        if wrong is not None and number:
            index[rng.integers(2), rng.integers(number)] = wrong
        out = np.empty(edges.graph_offsets(number, senders, receivers).length, np.int64)
        found = edges.load("sort_edges")(index.ctypes.data, number, senders, receivers, out.ctypes.data)
        inside = number == 0 or ((index >= 0).all() and (index.max(1) < (senders, receivers)).all())
        assert (found == -1) == inside, (index, found)
        count += 1
    return count


def fault(name: str) -> int:
    """Do what a sanitizer must see."""
    from eqlayers_kernels.c.print.loops import run_function

    faulty = launch.Compiled("faulty", (layout.head("float") + run_function([FAULTS[name]]),))
    faulty._run.errcheck = lambda *_: 0
    data = np.zeros(1 if name == "race" else 4, np.int64)
    for _ in range(10):
        faulty(4, [data.ctypes.data, 2**63 - 1], 100000 if name == "race" else 1, 2 if name == "race" else 1)
    return 1


def tabled() -> int:
    """Kernels that read weights from a table."""
    from tests.kernels.sanitized_tables import tabled as run_tables

    return run_tables(_cases(), graphs, fitted)


OTHERS: dict[str, Callable[[], int]] = {"moves": moves, "sorting": sorting, "tabled": tabled}

if __name__ == "__main__":
    chosen, wanted = sys.argv[1:]
    sanitize(chosen)
    if wanted in FAULTS:
        fault(wanted)
    else:
        runs = OTHERS[wanted]() if wanted in OTHERS else kernels_of(wanted, chosen == "address")
        print(f"{runs} runs under {chosen}")
