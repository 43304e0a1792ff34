"""Prints the loop of a kernel: over rows, or over the edges of every node, with all paths inside.

Row by row, z and its cotangent pass through the nearest cache in regions of a few KiB; what a region computes is
stored when it is complete. Over edges, the results of a node are summed in place and stored when its edges are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...arithmetic.writer import RESULTS, Task
from ...forms.formula import TRAVERSALS
from ...forms.program import OPERANDS, Path, Program, Slot
from .calls import Common, Define, mixing, path_calls
from .layout import VECTOR_BYTES, wide
from .loops import DONE, NO_MEMORY, OUTSIDE, SEGMENT, WRONG_TABLES, gaps, run_function
from .path import takes_vectors
from .table import combine_lines, gradient_lines, numbers_of_edge, outside, spreads_both

REGION_BYTES = 8192  # of z at a time; with its cotangent and the weights it fits the nearest cache
FETCHED_WEIGHTS = 4096  # paths with more weights than this are read as they come
AHEAD = 2  # edges: how early the weights of a receiver's next edge are fetched
STREAMED_WEIGHTS = range(64, 8193)  # paths with so many weights have their gradient stored past the caches


@dataclass
class Region:
    """Consecutive columns of z: blocks that paths write (``slots``), and columns that no path writes (``gaps``)."""

    start: int
    stop: int
    slots: list[Slot] = field(default_factory=list)
    gaps: list[Slot] = field(default_factory=list)


class ProductDriver:
    """Prints the C function ``run`` of a kernel; `text` also collects dims of transposed blocks (inward, outward)."""

    def __init__(
        self, program: Program, task: Task, traversal: str, shared: bool, item: int, define: Define, reads: int = 0
    ) -> None:
        self.common, self.reads = Common(define, self._reserve, item, reads, program.widths[2]), reads
        self.program, self.task, self.traversal, self.shared, self.item = program, task, traversal, shared, item
        self.by_rows = traversal == "rows"
        self.node = TRAVERSALS[traversal].operand  # that a segment belongs to
        self.pointers = dict(task.pointers)
        self.added = {"gx"} & {*self.pointers} if traversal == "to_src" else set()  # to rows of the edges' other nodes
        self.of_paths = task.of_paths if reads else task
        self.width = dict(zip(OPERANDS, program.widths, strict=True))
        self.width |= {"t": reads * self.width["w"], "c": reads}  # the rows that an interval of the table reads
        self.slots = {name: sorted({getattr(path, name) for path in program.paths}) for name in "xyz"}
        self.scratch: dict[str, int] = {}
        self.inward: set[int] = set()
        self.outward: set[int] = set()

    # -- which pointers go through the scratch ------------------------------------------------------------------------

    def _converted(self, pointer: str) -> list[Slot]:
        """The blocks of columns that the printed C transposes between memory layouts mul_ir and ir_mul.

        ``pointer`` names an operand or a result of the kernel. The list is empty if the program's layout is ir_mul, for
        weights, and for operands with a row for each node: the caller passes those in ir_mul.
        """
        operand = self.pointers[pointer]
        by_node = not self.by_rows and operand in "xz" and pointer not in set(RESULTS.values()) - self.added
        if operand in "wtc" or by_node or self.program.layout == "ir_mul":
            return []
        return [slot for slot in self.slots[operand] if wide(slot)]

    def _by_region(self, pointer: str) -> bool:
        """Whether the kernel reads or writes the pointer's columns one `Region` after the other.

        True for z and its cotangent g row by row, and for z along the edges of receivers.
        """
        return self.pointers[pointer] == "z" and (self.by_rows or (self.traversal == "by_dst" and pointer == "z"))

    def _address(self, pointer: str, path: Path, region: Region) -> str:
        """The C expression for the address of a path's block of one pointer."""
        operand = self.pointers.get(pointer, "w")
        if operand in "tc":
            return f"t + {path.weight or 0}" if operand == "t" else pointer
        if operand == "w" and self.reads:
            self._reserve(f"s_{pointer}", self.width["w"])
            return f"s_{pointer} + {path.weight or 0}"
        if operand == "w":
            return "gw_" if pointer == "gw" and self._streams_weights(path) else f"{pointer} + {path.weight or 0}"
        slot = getattr(path, operand)
        start = slot.start - (region.start if self._by_region(pointer) else 0)
        if slot in self._converted(pointer):
            return f"s_{pointer} + {start}"
        return f"z_ + {start}" if pointer == "z" else f"{pointer} + {slot.start}"

    def _has_vectors(self, path: Path) -> bool:
        return mixing(path) is None and takes_vectors(path, self.task, self.item)

    def _streams_weights(self, path: Path) -> bool:
        return not self.shared and "gw" in self.pointers and path.weight_count in STREAMED_WEIGHTS

    # -- text ---------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The C text of the driver."""
        regions = self._regions()
        body: list[str] = []
        for number, region in enumerate(regions):
            following = regions[number + 1] if number + 1 < len(regions) else regions[0]
            calls = []
            for slot in region.slots:
                paths = [path for path in self.program.paths if path.z == slot]
                for path in paths:
                    calls += self._call(path, region, path is paths[0])
            if self.reads:
                others = self.task._replace(results=tuple(name for name in self.task.results if name != "c"))
                for vectors, task in ((False, self.task), (True, others)):
                    paths = [path for path in self.program.paths if self._has_vectors(path) is vectors]
                    calls += gradient_lines(task, self._weight_ranges(region, paths))
            if self.traversal == "by_dst":
                body += self._over_edges(region, following, calls)
            else:
                inside = [*self._enter(region), *calls, *self._leave(region)] if self.by_rows else calls
                body += [*self._fetch(region), *inside]
        return self._loops(body)

    def _regions(self) -> list[Region]:
        used = [(slot, True) for slot in self.slots["z"]]
        free = [(slot, False) for slot in gaps(self.slots["z"], self.width["z"])]
        out: list[Region] = []
        for slot, is_used in sorted([*used, *free]):
            if not out or (slot.stop - out[-1].start) * self.item > REGION_BYTES:
                out.append(Region(slot.start, slot.stop))
            (out[-1].slots if is_used else out[-1].gaps).append(slot)
            out[-1].stop = slot.stop
        return out

    def _over_edges(self, region: Region, following: Region, calls: list[str]) -> list[str]:
        """C lines that sum one region of a receiver's result over its edges, while the region stays in the cache."""
        begin, end = self._rows_of("edge")
        ahead = []
        if "w" in self.pointers and not self.shared:
            short = [path for path in self.program.paths if path.weight_count <= FETCHED_WEIGHTS]
            these_ranges, next_ranges = (self._weight_ranges(part, short) for part in (region, following))
            ahead = [
                f"if (e + {AHEAD} < stop) {{ const T *next = w0 + edges[e + {AHEAD}] * w_step; (void)next;",
                *(f"fetch(next + {start}, {count});" for start, count in these_ranges),
                f"}} else {{ const int64_t first_again = start + (e + {AHEAD} - stop) % (stop - start);",
                "const T *next = w0 + edges[first_again] * w_step; (void)next;",
                *(f"fetch(next + {start}, {count});" for start, count in next_ranges),
                "}",
            ]
        return [
            *self._enter(region),
            "for (int64_t e = start; e < stop; e++) {",
            numbers_of_edge(self.traversal, self.reads), *begin, *ahead, *calls, *end,
            "}",
            *self._leave(region),
        ]  # fmt: skip

    def _weight_ranges(self, region: Region, paths: Sequence[Path]) -> list[tuple[int, int]]:
        """First column and number of the weights of each of these paths that a region has."""
        return sorted({(p.weight, p.weight_count) for p in paths if p.z in region.slots and p.weight is not None})

    def _fetch(self, region: Region) -> list[str]:
        """C lines that prefetch the columns of a region in the next row; with the first region also the next x."""
        lines = []
        for pointer in self._ahead():
            if self.pointers[pointer] == "z":
                lines.append(f"fetch({pointer}_next + {region.start}, {region.stop - region.start});")
            elif self.pointers[pointer] == "x" and region.start == 0:
                lines.append(f"fetch({pointer}_next, {self.width['x']});")
        return lines

    def _ahead(self) -> list[str]:
        """Pointers whose next row is prefetched, row by row or along the edges of a sender."""
        if self.traversal == "by_dst":
            return []
        skipped = {"w"} if self.shared else set()
        skipped |= {"y", "t", "c", self.node}
        return [pointer for pointer, op in self.task.pointers if pointer not in RESULTS.values() and op not in skipped]

    def _enter(self, region: Region) -> list[str]:
        """C lines before the paths of a region: zero its columns of z, transpose its columns of the cotangent."""
        lines = ["{"]
        size = region.stop - region.start
        if "z" in self.pointers and self.by_rows:
            self._reserve("s_past", size)
            lines.append(f"T *const z_ = past ? s_past : z + {region.start};")
            lines += [f"memset(z_ + {gap.start - region.start}, 0, {gap.mul} * sizeof(T));" for gap in region.gaps]
        elif "z" in self.pointers:
            lines.append(f"T *const z_ = z + {region.start};")
            lines.append(f"memset(z_, 0, {size} * sizeof(T));")
        for pointer in self.pointers:
            converted = [slot for slot in self._converted(pointer) if slot in region.slots]
            if not self._by_region(pointer) or not converted:
                continue
            self._reserve(f"s_{pointer}", size)
            if pointer != "z":
                lines += self._moves("in", pointer, f"s_{pointer}", converted, region.start, inside=True)
            elif not self.by_rows:
                lines.append(f"memset(s_z, 0, {size} * sizeof(T));")
        return lines

    def _leave(self, region: Region) -> list[str]:
        """C lines after the paths of a region: transpose and store its columns of z."""
        lines = []
        if "z" in self.pointers:
            for slot in [slot for slot in self._converted("z") if slot in region.slots]:
                start = slot.start - region.start
                self.outward.add(slot.dim)
                lines.append(f"out{slot.dim}(s_z + {start}, z_ + {start}, {slot.mul});")
            if self.by_rows:
                lines.append(f"if (past) store_past_caches(s_past, z + {region.start}, {region.stop - region.start});")
        return [*lines, "}"]

    def _moves(self, direction: str, source: str, target: str, slots: list[Slot], base: int, inside: bool) -> list[str]:
        """C lines that transpose blocks; ``base`` is the first column that the scratch memory holds."""
        (self.inward if direction == "in" else self.outward).update(slot.dim for slot in slots)
        out = []
        for slot in slots:
            near, far = slot.start - base, slot.start
            first, second = (far, near) if inside else (near, far)
            out.append(f"{direction}{slot.dim}({source} + {first}, {target} + {second}, {slot.mul});")
        return out

    def _call(self, path: Path, region: Region, first: bool) -> list[str]:
        """C lines that compute one path for one row; ``first``: no path before it writes the same block of z."""
        every = all(axis.z or axis.length == 1 for axis in path.axes)  # no channel of z is visited twice
        overwritten = set() if self.shared else {"w"}
        before, after = [], []
        if self.by_rows and first and every:
            overwritten.add("z")
        elif self.by_rows and first and "z" in self.pointers:
            before.append(f"memset({self._address('z', path, region)}, 0, {path.z.mul * path.z.dim} * sizeof(T));")
        if self._streams_weights(path):
            self._reserve("s_gw", path.weight_count)
            before.append(f"{{ T *const gw_ = past ? s_gw : gw + {path.weight};")
            after.append(f"if (past) store_past_caches(s_gw, gw + {path.weight}, {path.weight_count}); }}")
        if path.weight is not None and path.weight_count <= FETCHED_WEIGHTS:
            weights = [pointer for pointer in self._ahead() if self.pointers[pointer] == "w"]
            before += [f"fetch({pointer}_next + {path.weight}, {path.weight_count});" for pointer in weights]
        task = self.of_paths
        if self.reads and mixing(path) is None:
            task = self.task.compared if self._has_vectors(path) else self.task.combined
        elif self.reads:
            before += combine_lines(self.task, path.weight or 0, path.weight_count)
        addresses = {pointer: self._address(pointer, path, region) for pointer, _ in task.pointers}
        if self._has_vectors(path):
            addresses |= {"gy": f"v_gy + {path.y.start} * LANES", "gc": "v_gc"}
        calls = path_calls(path, task, addresses, frozenset(overwritten), self.common)
        if self.reads and path.weight is not None and spreads_both(self.task):
            self._reserve("s_vw", self.width["w"])
            task = Task(1, ("w",), factors=task.factors)
            pointers = {name: f"s_vw + {path.weight}" if name == "gw" else addresses[name] for name, _ in task.pointers}
            calls += path_calls(path, task, pointers, frozenset({"w"}), self.common)
        return [*before, *calls, *after]

    def _reserve(self, name: str, elements: int) -> None:
        self.scratch[name] = max(self.scratch.get(name, 0), -(-elements // 16) * 16)

    def _rows_of(self, scope: str) -> tuple[list[str], list[str]]:
        """C lines at the begin and the end of a loop body for the operands and results with one row in each pass.

        ``scope`` is 'segment' for the loop over nodes, 'edge' for the loop over edges (or rows).
        """
        begin: list[str] = []
        end: list[str] = []
        for pointer, operand in self.task.pointers:
            if (operand == self.node) != (scope == "segment") or (pointer == "gw" and self.shared):
                continue
            result = pointer in RESULTS.values()
            row = self._row_of(operand)
            begin.append(f"{'' if result else 'const '}T *{pointer} = {pointer}0 + {row} * {pointer}_step;")
            if pointer in self._ahead():
                last = "ptr[arg[0]]" if self.traversal == "by_src" else "stop"
                following = "n + 1" if self.by_rows else f"{row}s[e + (e + 1 < {last})]"
                begin.append(f"const T *{pointer}_next = {pointer}0 + ({following}) * {pointer}_step;")
            if self._by_region(pointer):
                continue
            converted = self._converted(pointer)
            if converted:
                self._reserve(f"s_{pointer}", self.width[operand])
                if result:
                    begin.append(f"memset(s_{pointer}, 0, {self.width[operand]} * sizeof(T));")
                    end.extend(self._moves("out", f"s_{pointer}", pointer, converted, 0, inside=False))
                else:
                    begin.extend(self._moves("in", pointer, f"s_{pointer}", converted, 0, inside=True))
            if result and pointer not in self.added:
                begin.extend(self._zeros(pointer))
            if pointer in ("gy", "gc") and any(map(self._has_vectors, self.program.paths)):
                self._reserve(f"v_{pointer}", self.width[operand] * max(VECTOR_BYTES) // self.item)
                begin.append(f"memset(v_{pointer}, 0, {self.width[operand]} * VECTOR);")
                end.append(f"add_sums(v_{pointer}, {pointer}, {self.width[operand]});")
        return begin, end

    def _row_of(self, operand: str) -> str:
        if self.by_rows or operand == self.node:
            return "n"
        rows = {"x": "other", "z": "place" if self.traversal == "by_place" else "other", "t": "place"}
        return rows.get(operand, "edge")

    def _loops(self, body: list[str]) -> str:
        setup = ["const int past = (int)arg[2]; (void)past;"]
        for number, (pointer, _) in enumerate(self.task.pointers):
            const = "" if pointer in RESULTS.values() else "const "
            setup.append(f"{const}T *const {pointer}0 = ({const}T *)arg[{3 + 2 * number}];")
            setup.append(f"const int64_t {pointer}_step = arg[{4 + 2 * number}];")
        chunk = []
        if self.shared and "gw" in self.pointers:
            setup.append("T *gw = gw0;")  # its row is the chunk's
            chunk += ["gw = gw0 + chunk * gw_step;", f"memset(gw, 0, {self.width['w']} * sizeof(T));"]
        row_begin, row_end = self._rows_of("edge")
        if self.by_rows:
            chunk += [
                "const int64_t first = arg[0] * chunk / arg[1], last = arg[0] * (chunk + 1) / arg[1];",
                "for (int64_t n = first; n < last; n++) {", *row_begin, *body, *row_end, "}",
            ]  # fmt: skip
        else:
            tables = 3 + 2 * len(self.task.pointers)
            setup += [f"const int64_t *const {name} = (const int64_t *)arg[{tables + i}];"
                      for i, name in enumerate(("ptr", "edges", "others"))]  # fmt: skip
            setup.append(f"const int64_t count = arg[{tables + 3}], nodes = arg[{tables + 4}];")
            if self.reads:
                setup.append(f"const int64_t *const places = (const int64_t *)arg[{tables + 5}];")
                setup.append(f"const int64_t num_places = arg[{tables + 6}];")
            # Any code may call the operator with any numbers as tables. Checking indices where they are read costs less
            # than a check before the call. Repeated edges are not checked: they give wrong sums and no crash.
            last = "ptr[arg[0]] >= 0 && ptr[arg[0]] <= count"
            marked = f"ptr[0] == 0 && {last} && ptr[arg[0] + 1] == -1 - nodes"
            setup.append(f"if (!({marked})) return {WRONG_TABLES};")
            setup += self._of_senders([f"memset(gx, 0, {self.width['x']} * sizeof(T));"])
            begin, end = self._rows_of("segment")
            if self.traversal != "by_dst":
                body = [
                    "for (int64_t e = start; e < stop; e++) {",
                    numbers_of_edge(self.traversal, self.reads), *row_begin, *body, *row_end,
                    "}",
                ]  # fmt: skip
            chunk += [
                "const int64_t first = segment(ptr, arg[0], arg[1], chunk);",
                "const int64_t last = segment(ptr, arg[0], arg[1], chunk + 1);",
                "for (int64_t n = first; n < last; n++) {",
                "const int64_t start = ptr[n], stop = ptr[n + 1];",
                f"if ({outside(self.traversal, self.reads)}) {{ status = {WRONG_TABLES}; goto leave; }}",
                *begin, *body, *end,
                "}",
            ]  # fmt: skip
        behind = []
        if self.added and self.program.layout == "mul_ir" and (slots := [*filter(wide, self.slots["x"])]):
            self._reserve("s_gx", self.width["x"])
            moves = self._moves("out", "s_gx", "gx", slots, 0, inside=False)
            behind = self._of_senders([f"memcpy(s_gx, gx, {self.width['x']} * sizeof(T));", *moves])
        scratch, offset = [], 0
        for name, size in self.scratch.items():
            scratch.append(f"T *const {name} = scratch + {offset};")
            offset += size
        if scratch:
            allocation = f"T *const scratch = aligned_alloc(64, {offset} * sizeof(T));"
            scratch = [allocation, f"if (scratch == NULL) return {NO_MEMORY};", *scratch]
        lines = [*setup, *scratch, f"int64_t status = {DONE};"]
        lines += ["for (int64_t chunk = begin; chunk < end; chunk++) {", *chunk, "}", *behind]
        lines += ["" if self.by_rows else "leave:", "finish_stores();", *(["free(scratch);"] if offset else [])]
        lines.append("return status;")
        return f"{'' if self.by_rows else SEGMENT}\n{OUTSIDE if self.reads else ''}\n{run_function(lines)}"

    def _of_senders(self, lines: list[str]) -> list[str]:
        """C lines for every row to which the edges of receivers add."""
        loop = "for (int64_t n = 0; n < nodes; n++) { T *const gx = gx0 + n * gx_step;"
        return [loop, *lines, "}"] if self.added else []

    def _zeros(self, pointer: str) -> list[str]:
        """C lines that set a result to zero: all of it if paths add to it, else the columns that no path writes."""
        if pointer == "gw":
            used = [Slot(p.weight, p.weight_count, 1) for p in self.program.paths if p.weight is not None]
            free = gaps(used, self.width["w"])
        else:
            free = [Slot(0, self.width[self.pointers[pointer]], 1)]
        return [f"memset({pointer} + {slot.start}, 0, {slot.mul} * sizeof(T));" for slot in free]
