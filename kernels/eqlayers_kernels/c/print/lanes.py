"""Prints how the lanes of a formula are loaded, stored and summed; lanes are channels of a row, or rows.

Operands whose lanes are contiguous are read in place; others are copied to scratch memory first, because strides of
many components use caches badly. Operands of a node are copied once for all rows of the node.
"""

from __future__ import annotations

from ...forms.formula import TRAVERSALS, Block, Formula, Operand
from .loops import DONE, NO_MEMORY, SEGMENT, WRONG_TABLES, run_function

#: Blocks of at least so many components (there are no more lanes) are transposed in squares; smaller ones by a function
#: for each number of components.
SQUARE = 16
#: C functions that copy lanes to scratch memory, back, and add them.
COPY = {"in": "pack", "out": "unpack", "add": "unpack_add"}


def merged(operand: Operand) -> tuple[Block, ...]:
    """The blocks of an operand, with adjacent blocks merged."""
    out: list[Block] = []
    for block in operand.blocks:
        if out and block[2:] == out[-1][2:] and block.start == out[-1].start + out[-1].dim * block.component:
            out[-1] = out[-1]._replace(dim=out[-1].dim + block.dim)
        elif block.dim:
            out.append(block)
    return tuple(out)


class FormulaDriver:
    """Prints arguments, scratch memory and the loop over chunks; subclasses print the work for one chunk."""

    def __init__(self, base: Formula, traversal: str) -> None:
        self.formula = base
        self.node = TRAVERSALS[traversal].rows  # rows of operands and results that belong to the node of the traversal
        self.inward: set[int] = set()
        self.outward: set[int] = set()
        self.squares = False
        self.scratch: dict[str, int] = {}  # in vectors
        self.by_rows = traversal == "rows"

    def row(self, rows: str) -> str:
        """C expression for the row index of an operand or result with rows 'each', 'one', 'src' or 'dst'."""
        if rows in ("each", "one"):
            return ("n" if self.by_rows else "edge") if rows == "each" else "0"
        return "n" if rows == self.node else "other"

    def adds(self, operand: Operand) -> bool:
        """Whether the C function ``tile`` adds to this result instead of writing it.

        It does not where lanes of one vector may be rows of one node: these are added behind it.
        """
        return False

    def chunk(self) -> list[str]:
        """C lines that process one chunk."""
        raise NotImplementedError

    def reserve(self, name: str, operand: Operand) -> str:
        """Reserve scratch memory for all components of an operand or result; returns ``name``."""
        self.scratch[name] = max(operand.components, 1)
        return name

    def small(self, direction: str, block: Block, near: str, far: str) -> str:
        """C call that transposes a full vector of contiguous lanes with few components each."""
        (self.inward if direction == "in" else self.outward).add(block.dim)
        source, target = (far, near) if direction == "in" else (near, far)
        return f"{direction}{block.dim}({source}, {target}, LANES);"

    def square(self, direction: str, block: Block, near: str, start: int) -> str:
        """C call that transposes a full vector of lanes at addresses ``at``; '' for few components."""
        if block.dim < SQUARE or block.component != 1:
            return ""
        self.squares = True
        pair = f"at, {start}, {near}" if direction == "in" else f"{near}, at, {start}"
        return f"rows_{direction}({pair}, {block.dim});"

    def text(self) -> str:
        """The C text of the driver."""
        formula = self.formula
        chunk = self.chunk()
        setup = []
        pointers = [(f"p{n}", "const ") for n in range(len(formula.operands))]
        pointers += [(f"r{n}", "") for n in range(len(formula.results))]
        for number, (pointer, const) in enumerate(pointers):
            setup.append(f"{const}T *const {pointer} = ({const}T *)arg[{3 + 2 * number}]; (void){pointer};")
            setup.append(f"const int64_t {pointer}_step = arg[{4 + 2 * number}]; (void){pointer}_step;")
        if not self.by_rows:
            tables = 3 + 2 * len(pointers)
            setup += [f"const int64_t *const {name} = (const int64_t *)arg[{tables + i}];"
                      for i, name in enumerate(("ptr", "edges", "others"))]  # fmt: skip
            setup.append(f"const int64_t count = arg[{tables + 3}], nodes = arg[{tables + 4}];")
            # see driver.py: tables come through an operator that any code may call
            last = "ptr[arg[0]] >= 0 && ptr[arg[0]] <= count"
            setup.append(f"if (!(ptr[0] == 0 && {last} && ptr[arg[0] + 1] == -1 - nodes)) return {WRONG_TABLES};")
        vectors = sum(self.scratch.values())
        if vectors:
            setup.append(f"T *const scratch = aligned_alloc(64, ({vectors} * VECTOR + 63) / 64 * 64);")
            setup.append(f"if (scratch == NULL) return {NO_MEMORY};")
            setup.append(f"memset(scratch, 0, {vectors} * VECTOR);")
            offset = 0
            for name, size in self.scratch.items():
                setup.append(f"T *const {name} = scratch + {offset} * LANES;")
                offset += size
        lines = [*setup, f"int64_t status = {DONE};"]
        lines += ["for (int64_t chunk = begin; chunk < end; chunk++) {", *chunk, "}"]
        lines += ["" if self.by_rows else "leave:;", *(["free(scratch);"] if vectors else []), "return status;"]
        return f"{'' if self.by_rows else SEGMENT}\n{run_function(lines)}"

    def check(self) -> list[str]:
        """C lines that return an error if an index in the tables of a graph is out of range."""
        condition = "outside(edges, others, start, stop, count, nodes)"
        return [f"if ({condition}) {{ status = {WRONG_TABLES}; goto leave; }}"]


class ByChannel(FormulaDriver):
    """Lanes are channels: one unit of work is a block of channels of one row, or of all rows of one node."""

    def adds(self, operand: Operand) -> bool:
        """Results that are summed over all rows, or over the rows of a node, are summed in scratch memory."""
        return operand.rows in ("one", self.node)

    def _direct(self, operand: Operand) -> bool:
        blocks = merged(operand)
        return not self.adds(operand) and len(blocks) == 1 and blocks[0].channel == 1

    def chunk(self) -> list[str]:
        """C lines that process all units of work of one chunk."""
        base = self.formula
        at_node: list[str] = []
        at_row: list[str] = []
        behind_row: list[str] = []
        behind_node: list[str] = []
        call: list[str] = []
        for number, operand in enumerate(base.operands):
            source = f"(p{number} + {self.row(operand.rows)} * p{number}_step)"
            scratch = self.reserve(f"sp{number}", operand)
            lines = self._moves(operand, scratch, source, "in")
            (at_node if self.adds(operand) else at_row).extend(self._guarded(operand, lines))
            call.append(self._argument(operand, source, scratch))
        for number, operand in enumerate(base.results):
            target = f"(r{number} + {'chunk' if operand.rows == 'one' else self.row(operand.rows)} * r{number}_step)"
            scratch = self.reserve(f"sr{number}", operand)
            lines = self._moves(operand, scratch, target, "add" if operand.rows == "one" else "out")
            if self.adds(operand):
                at_node.append(f"memset({scratch}, 0, {operand.components} * VECTOR);")
                behind_node += lines
            else:
                behind_row += self._guarded(operand, lines)
            call.append(self._argument(operand, target, scratch))
        inner = [*at_row, f"tile({', '.join(call)});", *behind_row]
        if not self.by_rows:
            inner = [*self._ahead(), *inner]
            inner = [
                "const int64_t start = ptr[n], stop = ptr[n + 1];",
                *self.check(),
                *([] if any(map(self.adds, base.results)) else ["if (start == stop) continue;"]),
                *at_node,
                "for (int64_t e = start; e < stop; e++) {",
                "const int64_t edge = edges[e], other = others[e]; (void)edge; (void)other;",
                *inner,
                "}",
                *behind_node,
            ]
        else:
            inner = [*at_node, *inner, *behind_node]
        return [
            f"enum {{ BLOCKS = ({base.channels} + LANES - 1) / LANES }};",  # a constant, so that division is fast
            "const int64_t units = BLOCKS * arg[0], last = units * (chunk + 1) / arg[1];",
            "for (int64_t unit = units * chunk / arg[1]; unit < last; unit++) {",
            "const int64_t n = unit / BLOCKS, c = unit % BLOCKS * LANES;",
            f"const int lanes = {base.channels} - c < LANES ? (int)({base.channels} - c) : LANES;",
            *inner,
            "}",
        ]

    def _ahead(self) -> list[str]:
        """C lines that prefetch the next row of a node: hardware prefetchers miss strides as long as a component."""
        base = self.formula
        rows = [(f"p{n}", 0, operand) for n, operand in enumerate(base.operands)]
        rows += [(f"r{n}", 1, operand) for n, operand in enumerate(base.results)]
        return [
            f"for (int i = 0; i < {block.dim}; i++) __builtin_prefetch({pointer} + "
            f"edges[e + (e + 1 < stop)] * {pointer}_step + {block.start} + c + i * {block.component}, {write}, 3);"
            for pointer, write, operand in rows
            if operand.rows == "each" and self._direct(operand)
            for block in merged(operand)
        ]

    def _guarded(self, operand: Operand, lines: list[str]) -> list[str]:
        """C lines that copy an operand to or from scratch memory, under a condition if its lanes are contiguous.

        Contiguous lanes are read in place, but for the last, incomplete block of channels.
        """
        if not self._direct(operand):
            return lines
        return ["if (lanes < LANES) {", *lines, "}"] if lines else []

    def _argument(self, operand: Operand, memory: str, scratch: str) -> str:
        if not self._direct(operand):
            return f"{scratch}, LANES"
        (block,) = merged(operand)
        address = f"{memory} + {block.start} + c"
        return f"lanes < LANES ? {scratch} : {address}, lanes < LANES ? LANES : {block.component}"

    def _moves(self, operand: Operand, scratch: str, row: str, direction: str) -> list[str]:
        lines, offset = [], 0
        for block in merged(operand):
            far, near = f"{row} + {block.start} + c * {block.channel}", f"{scratch} + {offset} * LANES"
            pair = f"{far}, {near}" if direction == "in" else f"{near}, {far}"
            general = f"{COPY[direction]}({pair}, {block.dim}, {block.component}, {block.channel}, lanes);"
            if block.channel == block.dim > 1 and block.component == 1:
                whole = self._whole(block, direction, near, far)
                general = f"if (lanes == LANES) {whole} else {general}" if whole else general
            lines.append(general)
            offset += block.dim
        return lines

    def _whole(self, block: Block, direction: str, near: str, far: str) -> str:
        """C call that transposes a full vector of channels with contiguous components; '' to use the general copy."""
        if square := self.square(direction, block, near, 0):
            at = f"{'const ' if direction == 'in' else ''}T *at[LANES];"
            return f"{{ {at} for (int l = 0; l < LANES; l++) at[l] = {far} + l * {block.dim}; {square} }}"
        return self.small(direction, block, near, far) if direction != "add" else ""


class ByRow(FormulaDriver):
    """Formula kernels whose vector lanes are rows; results of rows of the same node are added one after the other."""

    def chunk(self) -> list[str]:
        """C lines that process the rows of one chunk in vectors; the last vector may be incomplete."""
        base = self.formula
        before: list[str] = []
        behind: list[str] = []
        for number, operand in enumerate(base.operands):
            scratch = self.reserve(f"sp{number}", operand)
            before += self._moves(operand, scratch, f"p{number}", False)
        for number, operand in enumerate(base.results):
            scratch = self.reserve(f"sr{number}", operand)
            behind += self._moves(operand, scratch, f"r{number}", True)
        arguments = [f"sp{n}, LANES" for n in range(len(base.operands))]
        arguments += [f"sr{n}, LANES" for n in range(len(base.results))]
        flush = [*before, f"tile({', '.join(arguments)});", *behind]
        if self.by_rows:
            return [
                "const int64_t last = arg[0] * (chunk + 1) / arg[1];",
                "for (int64_t n = arg[0] * chunk / arg[1]; n < last; n += LANES) {",
                "const int lanes = last - n < LANES ? (int)(last - n) : LANES;",
                *self._ahead(),
                *flush,
                "}",
            ]
        widths = [(number, result.width) for number, result in enumerate(base.results) if result.rows == self.node]
        zero = [
            f"for (int64_t n = first; n < last; n++) memset(r{number} + n * {width}, 0, {width} * sizeof(T));"
            for number, width in widths
        ]
        return [
            "const int64_t first = segment(ptr, arg[0], arg[1], chunk);",
            "const int64_t last = segment(ptr, arg[0], arg[1], chunk + 1);",
            *zero,
            "int64_t n_of[LANES]; int filled = 0;",
            "int64_t e0 = ptr[first];",
            "for (int64_t n = first; n < last; n++) {",
            "const int64_t start = ptr[n], stop = ptr[n + 1];",
            *self.check(),
            "for (int64_t e = start; e < stop || (e == stop && n == last - 1 && filled); e++) {",
            "if (e < stop) { n_of[filled++] = n; if (filled < LANES) continue; }",
            "const int lanes = filled;",
            *flush,
            "e0 += lanes; filled = 0;",
            "}",
            "}",
        ]  # fmt: skip

    def _ahead(self) -> list[str]:
        """C lines that prefetch the next vector of rows; the processor's own prefetch stops at each page."""
        base = self.formula
        rows = [("fetch", f"p{n}", operand) for n, operand in enumerate(base.operands) if operand.rows == "each"]
        rows += [("claim", f"r{n}", operand) for n, operand in enumerate(base.results) if operand.rows == "each"]
        calls = [f"{how}({p} + (n + LANES) * {p}_step, LANES * {operand.width});" for how, p, operand in rows]
        return ["if (last - n >= 2 * LANES) {", *calls, "}"]

    def _index(self, rows: str) -> str:
        """C expression for the row index of lane l."""
        if rows == "one":
            return "0"
        if self.by_rows:
            return "(n + l)"
        return "n_of[l]" if rows == self.node else "edges[e0 + l]" if rows == "each" else "others[e0 + l]"

    def _moves(self, operand: Operand, scratch: str, pointer: str, out: bool) -> list[str]:
        if not operand.components:
            return []
        summed = operand.rows in ("one", self.node)
        direction = "in" if not out else "add" if summed else "out"
        index = "chunk" if out and operand.rows == "one" else self._index(operand.rows)
        lines = ["{", f"{'' if out else 'const '}T *at[LANES];"]
        lines.append(f"for (int l = 0; l < lanes; l++) at[l] = {pointer} + {index} * {pointer}_step;")
        offset, side_by_side = 0, direction != "add" and self.by_rows and operand.rows == "each"
        for block in merged(operand):
            near, far = f"{scratch} + {offset} * LANES", f"at[l] + {block.start}"
            pair = f"{far}, {near} + l" if direction == "in" else f"{near} + l, {far}"
            general = (
                f"for (int l = 0; l < lanes; l++) {COPY[direction]}({pair}, {block.dim}, {block.component}, 1, 1);"
            )
            if square := self.square(direction, block, near, block.start):
                general = f"if (lanes == LANES) {square} else {general}"
            elif side_by_side and 1 < block.dim == operand.width and block.component == 1:
                small = self.small(direction, block, near, f"{pointer} + n * {block.dim}")
                general = f"if (lanes == LANES && {pointer}_step == {block.dim}) {small} else {general}"
            lines.append(general)
            offset += block.dim
        return [*lines, "}"]
