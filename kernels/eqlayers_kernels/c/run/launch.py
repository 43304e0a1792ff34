"""Calls printed C kernels: compiles at first use, packs addresses, divides rows into chunks for the threads."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

from ...forms.program import Program, Slot
from ..build import compiler
from ..print.formula import FormulaKernel
from ..print.loops import NO_MEMORY
from ..print.maps import MapKernel
from ..print.printer import Kernel, print_import
from . import threads

#: Chunks for the gradient of shared weights, which is summed over them: fixed, so that threads do not change results.
SHARED_CHUNKS = 16
#: Balances unequal segments and busy processors: a thread that waits holds one chunk only.
CHUNKS_PER_THREAD = 16
#: Least elements, read and written, of a chunk: about ten microseconds. Starting a second thread costs as much, so a
#: call of less than two chunks runs on one thread.
CHUNK_ELEMENTS = 1 << 14
#: Least elements of a chunk for each element that all chunks read or write.
TIMES_SHARED = 8


class Compiled:
    """A compiled and loaded C kernel with ``run(arguments, begin, end)``; CompilerError if compiling fails."""

    def __init__(self, name: str, sources: Sequence[str]) -> None:
        library = compiler.load_many(sources, name)
        self._run = library.run
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._run.restype = ctypes.c_int64
        self._take = library.work
        self._take.argtypes, self._take.restype = (ctypes.c_void_p,), None
        self._work = ctypes.cast(library.work, ctypes.c_void_p).value or 0

    def __call__(
        self, rows: int, addresses: Sequence[int], chunks: int = 1, workers: int = 1, past_caches: bool = False
    ) -> None:
        """Run over ``rows`` rows (or segments), divided into ``chunks``, on ``workers`` threads.

        ``addresses`` has for each of the kernel's pointers the address of the first row and the elements between rows;
        then, along a graph, the addresses of the int64 tables ptr, edges and others, the number of edges, and of nodes
        at the other endpoint. MemoryError without memory for scratch rows; IndexError if the tables belong to another
        graph.
        """
        packed = array("q", (rows, chunks, past_caches, *addresses))
        address = packed.buffer_info()[0]
        workers = min(workers, chunks)
        if workers == 1:
            if status := self._run(address, 0, chunks):
                raise _error(status)
            return
        # see Job in print/loops.py: arguments, chunks, next, status, begun, busy, lost
        job = (ctypes.c_int64 * 7)(address, chunks, 0, 0, threads.clock(), 0, 0)
        if (parallel := threads.parallel()) is not None:
            parallel(self._work, ctypes.addressof(job), workers, 0)
            threads.note(job[5], job[6], workers)
        else:
            threads.run(self._take, ctypes.addressof(job), workers)
        if job[3]:
            raise _error(job[3])


def _error(status: int) -> Exception:
    if status == NO_MEMORY:
        return MemoryError("expected room for the scratch of a kernel, found none; free memory, or use fewer channels")
    return IndexError("expected the tables of a graph of these sizes, got others; make them with sort_edges")


def chunks_for(elements: int, workers: int, summed: bool = False, shared: int = 0) -> int:
    """Number of chunks of a call that reads and writes ``elements`` elements on ``workers`` threads.

    ``summed`` says whether results are summed over chunks, ``shared`` how many elements every chunk has besides its
    rows: a row of such results, or packed weights.
    """
    most = elements // max(CHUNK_ELEMENTS, TIMES_SHARED * shared)
    if most < 2:
        return 1
    if summed:
        return min(SHARED_CHUNKS, most)
    return min(CHUNKS_PER_THREAD * workers, most) if workers > 1 else 1


def load(kernel: Kernel | FormulaKernel | MapKernel) -> Compiled:
    """Print, compile and load a kernel, from the cache if it is there; CompilerError if the compiler fails."""
    return Compiled(kernel.name, kernel.sources)


def load_import(program: Program, operand: str, dtype: str) -> Compiled:
    """The compiled function that transposes rows of operand 'x' or 'z' from mul_ir to ir_mul."""
    slots: list[Slot] = [getattr(path, operand) for path in program.paths]
    width = program.widths[0 if operand == "x" else 3]
    return Compiled(f"import_{dtype}", (print_import(slots, width, dtype),))
