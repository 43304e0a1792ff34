"""Prints the loop of a kernel: over rows, or over the edges of every node, with all paths inside.

Row by row, z and its cotangent pass through the nearest cache in regions of a few KiB; what a region computes is
stored when it is complete. Over edges, the results of a node are summed in place and stored when its edges are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..program import OPERANDS, Path, Program, Slot
from .layout import wide
from .path import RESULTS, Kind

REGION_BYTES = 8192  # of z at a time; with its cotangent and the weights it fits the nearest cache
STREAMED_WEIGHTS = range(64, 8193)  # paths with so many weights have their gradient stored past the caches

_SEGMENT = """
static int64_t segment(const int64_t *ptr, int64_t segments, int64_t chunks, int64_t chunk) {
  /* first segment of a chunk: chunks have equal numbers of edges and segments together, as nearly as that goes */
  const int64_t total = ptr[segments] + segments, wanted = total * chunk / chunks;
  int64_t low = 0, high = segments;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ptr[middle] + middle < wanted) low = middle + 1; else high = middle;
  }
  return low;
}
"""


def indent(lines: Iterable[str], by: int) -> str:
    """Lines as text."""
    return ("\n" + " " * by).join(lines)


def run_function(lines: Iterable[str]) -> str:
    """The exported functions of a kernel: chunks of the rows, and all chunks that a thread can get hold of."""
    return f"""EXPORT int64_t run(const int64_t *arg, int64_t begin, int64_t end) {{
  {indent(lines, 2)}
}}
typedef struct {{ const int64_t *arg; int64_t chunks, next, status; }} Job;
EXPORT void work(void *data) {{
  Job *const job = data;
  for (;;) {{
    const int64_t chunk = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
    if (chunk >= job->chunks) return;
    if (run(job->arg, chunk, chunk + 1)) __atomic_store_n(&job->status, 1, __ATOMIC_RELAXED);
  }}
}}
"""


def gaps(slots: Iterable[Slot], width: int) -> list[Slot]:
    """The columns that no slot covers."""
    out, position = [], 0
    for start, stop in [*sorted((slot.start, slot.stop) for slot in slots), (width, width)]:
        if start > position:
            out.append(Slot(position, start - position, 1))
        position = max(position, stop)
    return out


@dataclass
class Region:
    """Consecutive columns of z and the paths that write there."""

    start: int
    stop: int
    slots: list[Slot] = field(default_factory=list)
    gaps: list[Slot] = field(default_factory=list)


class Driver:
    """Prints one kernel's ``run``; see ``printer.Kernel`` for the arguments.

    Attributes:
        inward, outward: Numbers of components of the blocks whose layout changes, filled by `text`.
    """

    def __init__(self, program: Program, kind: Kind, walk: str, shared: bool, item: int) -> None:
        self.program, self.kind, self.walk, self.shared, self.item = program, kind, walk, shared, item
        self.by_rows = walk == "rows"
        self.node = {"rows": "", "by_z": "z", "by_x": "x"}[walk]  # the operand that a segment belongs to
        self.pointers = dict(kind.pointers)
        self.width = dict(zip(OPERANDS, program.widths, strict=True))
        self.slots = {name: sorted({getattr(path, name) for path in program.paths}) for name in "xyz"}
        self.scratch: dict[str, int] = {}
        self.inward: set[int] = set()
        self.outward: set[int] = set()

    # -- which pointers go through the scratch ------------------------------------------------------------------------

    def _converted(self, pointer: str) -> list[Slot]:
        """Blocks of a pointer whose layout changes here; node operands of a walk by segments come in ir_mul."""
        operand = self.pointers[pointer]
        given = not self.by_rows and operand in "xz" and pointer not in RESULTS.values()
        if operand == "w" or given or self.program.layout == "ir_mul":
            return []
        return [slot for slot in self.slots[operand] if wide(slot)]

    def _by_region(self, pointer: str) -> bool:
        return self.by_rows and self.pointers[pointer] == "z"

    def _address(self, pointer: str, path: Path, region: Region) -> str:
        """Where a path finds its block."""
        operand = self.pointers[pointer]
        if operand == "w":
            return "gw_" if pointer == "gw" and self._streams_weights(path) else f"{pointer} + {path.weight or 0}"
        slot = getattr(path, operand)
        start = slot.start - (region.start if self._by_region(pointer) else 0)
        if slot in self._converted(pointer):
            return f"s_{pointer} + {start}"
        return f"{'z_' if pointer == 'z' and self.by_rows else pointer} + {start if pointer == 'z' else slot.start}"

    def _streams_weights(self, path: Path) -> bool:
        return not self.shared and "gw" in self.pointers and path.weight_count in STREAMED_WEIGHTS

    # -- text ---------------------------------------------------------------------------------------------------------

    def text(self, function: Callable[[Path, frozenset[str]], str]) -> str:
        """The driver; ``function`` names the function of a path that overwrites the given results."""
        regions = self._regions() if self.by_rows else [Region(0, self.width["z"], self.slots["z"])]
        body: list[str] = []
        for number, region in enumerate(regions):
            following = regions[number + 1] if number + 1 < len(regions) else regions[0]
            body += self._region(region, following, number + 1 == len(regions), function)
        return self._loops(body)

    def _regions(self) -> list[Region]:
        pieces = sorted([*((slot, True) for slot in self.slots["z"]), *((s, False) for s in self._z_gaps())])
        out: list[Region] = []
        for slot, used in pieces:
            if not out or (slot.stop - out[-1].start) * self.item > REGION_BYTES:
                out.append(Region(slot.start, slot.stop))
            (out[-1].slots if used else out[-1].gaps).append(slot)
            out[-1].stop = slot.stop
        return out

    def _z_gaps(self) -> list[Slot]:
        return gaps(self.slots["z"], self.width["z"])

    def _region(
        self, region: Region, following: Region, last: bool, function: Callable[[Path, frozenset[str]], str]
    ) -> list[str]:
        lines: list[str] = []
        if self.by_rows:
            lines += self._fetch(following, last)
            lines += self._enter(region)
        for slot in region.slots:
            paths = [path for path in self.program.paths if path.z == slot]
            for number, path in enumerate(paths):
                lines += self._call(path, region, number == 0, function)
        return lines + (self._leave(region) if self.by_rows else [])

    def _paths(self, region: Region) -> list[Path]:
        return [path for path in self.program.paths if path.z in region.slots]

    def _fetch(self, region: Region, of_next_row: bool) -> list[str]:
        """Read what the next region needs, ahead of its use."""
        lines = []
        for pointer, operand in self.kind.pointers:
            if pointer in RESULTS.values():
                continue
            ahead = f"{pointer} + {pointer}_step" if of_next_row else pointer
            if operand == "z":
                lines.append(f"fetch({ahead} + {region.start}, {region.stop - region.start});")
            elif operand == "w" and not self.shared:
                ranges = sorted({(p.weight, p.weight_count) for p in self._paths(region) if p.weight is not None})
                lines += [f"fetch({ahead} + {start}, {count});" for start, count in ranges if count <= 4096]
            elif operand == "x" and of_next_row:
                lines.append(f"fetch({ahead}, {self.width['x']});")
        return lines

    def _enter(self, region: Region) -> list[str]:
        lines = []
        size = region.stop - region.start
        if "z" in self.pointers:
            self._reserve("s_past", size)
            lines.append(f"T *const z_ = past ? s_past : z + {region.start};")
            lines += [f"memset(z_ + {gap.start - region.start}, 0, {gap.mul} * sizeof(T));" for gap in region.gaps]
        for pointer in self.pointers:
            converted = [slot for slot in self._converted(pointer) if slot in region.slots]
            if not self._by_region(pointer) or not converted:
                continue
            self._reserve(f"s_{pointer}", size)
            if pointer != "z":
                lines += self._moves("in", pointer, f"s_{pointer}", converted, region.start, inside=True)
        return ["{", *lines]

    def _leave(self, region: Region) -> list[str]:
        lines = []
        if "z" in self.pointers:
            converted = [slot for slot in self._converted("z") if slot in region.slots]
            for slot in converted:
                start = slot.start - region.start
                self.outward.add(slot.dim)
                lines.append(f"out{slot.dim}(s_z + {start}, z_ + {start}, {slot.mul});")
            lines.append(f"if (past) store_past_caches(s_past, z + {region.start}, {region.stop - region.start});")
        return [*lines, "}"]

    def _moves(self, way: str, source: str, target: str, slots: list[Slot], base: int, inside: bool) -> list[str]:
        """Change the layout of blocks; ``base`` is the first column that the scratch holds."""
        (self.inward if way == "in" else self.outward).update(slot.dim for slot in slots)
        out = []
        for slot in slots:
            near, far = slot.start - base, slot.start
            first, second = (far, near) if inside else (near, far)
            out.append(f"{way}{slot.dim}({source} + {first}, {target} + {second}, {slot.mul});")
        return out

    def _call(
        self, path: Path, region: Region, first: bool, function: Callable[[Path, frozenset[str]], str]
    ) -> list[str]:
        """The call of a path, inside the loops over its outer axes."""
        every = all(axis.z or axis.count == 1 for axis in path.axes)  # no channel of z is visited twice
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
        steps: dict[str, list[str]] = {name: [] for name in OPERANDS}
        loops = []
        for number, axis in enumerate(path.outer):
            index = dict.fromkeys(OPERANDS, f"c{number}")
            if axis.pairs:
                i, j = f"i{number}", f"j{number}"
                loops.append(f"for (int c{number} = 0, {i} = 0; {i} < {axis.extent}; {i}++)")
                loops.append(f"for (int {j} = {i} + 1; {j} < {axis.extent}; {j}++, c{number}++)")
                index |= {"x": i, "y": j}
            else:
                loops.append(f"for (int c{number} = 0; c{number} < {axis.extent}; c{number}++)")
            for operand, step in zip("xywz", axis.steps, strict=True):
                if step:
                    steps[operand].append(f" + {index[operand]} * {step}")
        given = [self._address(pointer, path, region) + "".join(steps[op]) for pointer, op in self.kind.pointers]
        name = function(path, frozenset(overwritten))
        return [*before, " ".join([*loops, f"{name}({', '.join(given)});"]), *after]

    def _reserve(self, name: str, elements: int) -> None:
        self.scratch[name] = max(self.scratch.get(name, 0), -(-elements // 16) * 16)

    def _loops(self, body: list[str]) -> str:
        setup: list[str] = []
        segment_begin: list[str] = []
        segment_end: list[str] = []
        row_begin: list[str] = []
        row_end: list[str] = []
        for number, (pointer, operand) in enumerate(self.kind.pointers):
            result = pointer in RESULTS.values()
            const = "" if result else "const "
            setup.append(f"{const}T *const {pointer}0 = ({const}T *)arg[{3 + 2 * number}];")
            setup.append(f"const int64_t {pointer}_step = arg[{4 + 2 * number}];")
            of_segment = operand == self.node
            row = "n" if self.by_rows or of_segment else "other" if operand in "xz" else "edge"
            if pointer == "gw" and self.shared:
                setup.append("T *gw = gw0;")  # its row is the chunk's
                continue
            begin, end = (segment_begin, segment_end) if of_segment else (row_begin, row_end)
            begin.append(f"{const}T *{pointer} = {pointer}0 + {row} * {pointer}_step;")
            converted = [] if self._by_region(pointer) else self._converted(pointer)
            if converted:
                self._reserve(f"s_{pointer}", self.width[operand])
                if result:
                    begin.append(f"memset(s_{pointer}, 0, {self.width[operand]} * sizeof(T));")
                    end.extend(self._moves("out", f"s_{pointer}", pointer, converted, 0, inside=False))
                else:
                    begin.extend(self._moves("in", pointer, f"s_{pointer}", converted, 0, inside=True))
            if result and not self._by_region(pointer):
                begin.extend(self._zeros(pointer))
        chunk = []
        if self.shared and "gw" in self.pointers:
            chunk = ["gw = gw0 + chunk * gw_step;", f"memset(gw, 0, {self.width['w']} * sizeof(T));"]
        row = [*row_begin, *body, *row_end]
        if self.by_rows:
            chunk += [
                "const int64_t first = arg[0] * chunk / arg[1], last = arg[0] * (chunk + 1) / arg[1];",
                "for (int64_t n = first; n < last; n++) {", *row, "}",
            ]  # fmt: skip
        else:
            tables = 3 + 2 * len(self.kind.pointers)
            setup += [f"const int64_t *const {name} = (const int64_t *)arg[{tables + i}];"
                      for i, name in enumerate(("ptr", "edges", "others"))]  # fmt: skip
            chunk += [
                "const int64_t first = segment(ptr, arg[0], arg[1], chunk);",
                "const int64_t last = segment(ptr, arg[0], arg[1], chunk + 1);",
                "for (int64_t n = first; n < last; n++) {", *segment_begin,
                "for (int64_t e = ptr[n]; e < ptr[n + 1]; e++) {",
                "const int64_t edge = edges[e], other = others[e]; (void)edge; (void)other;",
                *row, "}", *segment_end, "}",
            ]  # fmt: skip
        room, offset = [], 0
        for name, size in self.scratch.items():
            room.append(f"T *const {name} = scratch + {offset};")
            offset += size
        if room:
            taken = [f"T *const scratch = aligned_alloc(64, {offset} * sizeof(T));", "if (scratch == NULL) return 1;"]
            room = [*taken, *room]
        lines = ["const int past = (int)arg[2]; (void)past;", *setup, *room]
        lines += ["for (int64_t chunk = begin; chunk < end; chunk++) {", *chunk, "}"]
        lines += ["finish_stores();", *(["free(scratch);"] if offset else []), "return 0;"]
        return f"""{"" if self.by_rows else _SEGMENT}
{run_function(lines)}"""

    def _zeros(self, pointer: str) -> list[str]:
        """Zero what is added to, and of gradients of weights the columns that no path writes."""
        if pointer == "gw":
            used = [Slot(p.weight, p.weight_count, 1) for p in self.program.paths if p.weight is not None]
            free = gaps(used, self.width["w"])
        else:
            free = [Slot(0, self.width[self.pointers[pointer]], 1)]
        return [f"memset({pointer} + {slot.start}, 0, {slot.mul} * sizeof(T));" for slot in free]
