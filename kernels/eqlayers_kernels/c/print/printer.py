"""Prints a program as C: one function per path, and a driver that runs all of them for every row or edge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...arithmetic.writer import Task
from ...forms.program import Program, Slot
from .driver import ProductDriver
from .layout import SUMS, TYPES, head, print_transposes, wide
from .loops import run_function
from .table import print_tables

UNIT_STATEMENTS = 1500  # per translation unit: large programs are compiled side by side


@dataclass(frozen=True)
class Kernel:
    """A program, a task, a dtype and a traversal, from which one C kernel is printed."""

    program: Program
    task: Task
    dtype: str  # 'float32' or 'float64'
    #: A key of `TRAVERSALS`. Along a graph, operands and results of nodes are indexed, others have a row per edge.
    traversal: str = "rows"
    shared: bool = False  # whether one row of weights serves all rows; its gradient is summed per chunk
    reads: int = 0  # rows of a table that give an edge's weights, see `Reading`; 0 without a table

    @property
    def name(self) -> str:
        """Identifier for files and profilers."""
        step = ("forward", "backward", "double_backward")[self.task.order]
        return f"{step}_{self.traversal}_{self.dtype}"

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """C sources of the translation units; the first has the driver ``run(arguments, begin, end)``.

        ``arguments`` are int64: rows (or segments), chunks, whether to use non-temporal stores, then for each of
        ``task.pointers`` its address and row step, then by edges the addresses of ptr, edges and others, the number
        of edges, and of nodes at the other endpoint. With a table follow the address of the edges' intervals and the
        number of intervals (by interval: the receivers and their number). It returns one of the status numbers in
        ``loops``.
        """
        functions: dict[tuple[str, str], str] = {}  # equal bodies are one function

        def define(body: str, parameters: Sequence[tuple[str, bool]]) -> str:
            declared = ", ".join(f"{'' if written else 'const '}T *restrict {name}" for name, written in parameters)
            return functions.setdefault((body, declared), f"p{len(functions)}")

        ctype, item = TYPES[self.dtype]
        driver = ProductDriver(self.program, self.task, self.traversal, self.shared, item, define, self.reads)
        run = driver.text()
        units: list[list[str]] = [[]]
        size = 0
        declarations = []
        for (body, parameters), name in functions.items():
            size += body.count(";")
            if size > UNIT_STATEMENTS and units[-1]:
                units.append([])
                size = body.count(";")
            units[-1].append(f"void __attribute__((noinline)) {name}({parameters}) {{\n  {body}\n}}\n")
            declarations.append(f"void {name}({parameters});")
        start = head(ctype)
        transposes = print_transposes(driver.inward, driver.outward, item)
        tables = print_tables(self.reads, self.program.widths[2]) if self.reads else ""
        tables += SUMS if "v_gy" in driver.scratch else ""
        first = [start, transposes, tables, *declarations, *units[0], run]
        return tuple("\n".join(unit) for unit in [first, *([start, *unit] for unit in units[1:])])

    @property
    def transposed(self) -> tuple[str, ...]:
        """Operands of nodes ('x', 'z') that a caller must transpose to ir_mul: along a graph, in layout mul_ir."""
        if self.traversal == "rows" or self.program.layout == "ir_mul":
            return ()
        return tuple(name for name in "xz" if any(wide(getattr(path, name)) for path in self.program.paths))


def print_import(slots: Iterable[Slot], width: int, dtype: str) -> str:
    """C source of a kernel ``run(arguments, begin, end)`` that transposes rows from mul_ir to ir_mul.

    ``arguments`` are int64: rows, chunks, 0, address and row step of the source, and of the target.
    """
    lines, position = [], 0
    changed = sorted(slot for slot in set(slots) if wide(slot))
    for slot in [*changed, Slot(width, 0, 0)]:
        if slot.start > position:
            lines.append(f"memcpy(z + {position}, x + {position}, {slot.start - position} * sizeof(T));")
        if slot.mul:
            lines.append(f"in{slot.dim}(x + {slot.start}, z + {slot.start}, {slot.mul});")
        position = slot.stop
    loop = [
        "for (int64_t n = arg[0] * begin / arg[1]; n < arg[0] * end / arg[1]; n++) {",
        "const T *x = (const T *)arg[3] + n * arg[4];",
        "T *z = (T *)arg[5] + n * arg[6];",
        *lines,
        "}",
        "return 0;",
    ]
    ctype, item = TYPES[dtype]
    return "\n".join([head(ctype), print_transposes([slot.dim for slot in changed], [], item), run_function(loop)])
