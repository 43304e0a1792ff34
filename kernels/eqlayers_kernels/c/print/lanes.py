"""Prints how the lanes of a formula come to its function, and its results back: rows, channels, sums.

Lanes are channels of one row, or rows where these have no channels. Operands that already lie lane beside lane are read
where they are; others are copied to the scratch first, gathered ones once for all rows of a node: a row of many
components is as far apart in memory as a cache can do with worst.
"""

from __future__ import annotations

from ...forms.formula import Block, Formula, Operand
from ...forms.traversal import TRAVERSALS
from .loops import DONE, NO_ROOM, NO_TABLES, SEGMENT, run_function

#: Blocks of so many components, at least as many as there are lanes, come to lanes in squares; smaller ones by a
#: function for each number.
SQUARE = 16
#: What brings lanes to the scratch, and back.
COPY = {"in": "pack", "out": "unpack", "add": "unpack_add"}


def merged(one: Operand) -> tuple[Block, ...]:
    """The blocks of an operand; blocks that continue each other are one."""
    out: list[Block] = []
    for block in one.blocks:
        if out and block[2:] == out[-1][2:] and block.start == out[-1].start + out[-1].dim * block.component:
            out[-1] = out[-1]._replace(dim=out[-1].dim + block.dim)
        elif block.dim:
            out.append(block)
    return tuple(out)


class FormulaDriver:
    """Shared code of both kinds of lanes: arguments, scratch, the loop over chunks."""

    def __init__(self, base: Formula, walk: str) -> None:
        self.formula = base
        self.node = TRAVERSALS[walk].rows  # of operands and results that belong to the node whose edges are walked
        self.inward: set[int] = set()
        self.outward: set[int] = set()
        self.squares = False
        self.scratch: dict[str, int] = {}  # in vectors
        self.by_rows = walk == "rows"

    def row(self, rows: str) -> str:
        """Index of the row of an operand or result."""
        if rows in ("each", "one"):
            return ("n" if self.by_rows else "edge") if rows == "each" else "0"
        return "n" if rows == self.node else "other"

    def adds(self, one: Operand) -> bool:
        """Whether the tile adds to a result."""
        raise NotImplementedError

    def chunk(self) -> list[str]:
        """The work for one chunk."""
        raise NotImplementedError

    def reserve(self, name: str, one: Operand) -> str:
        """Scratch for all components of an operand or result."""
        self.scratch[name] = max(one.components, 1)
        return name

    def small(self, way: str, block: Block, near: str, far: str) -> str:
        """Whole vectors of lanes that lie one behind the other, with few components each."""
        (self.inward if way == "in" else self.outward).add(block.dim)
        return f"{way}{block.dim}({far if way == 'in' else near}, {near if way == 'in' else far}, LANES);"

    def square(self, way: str, block: Block, near: str, start: int) -> str:
        """Whole vectors of lanes at the addresses ``at``, with many components each; '' if they are few."""
        if block.dim < SQUARE or block.component != 1:
            return ""
        self.squares = True
        places = f"at, {start}, {near}" if way == "in" else f"{near}, at, {start}"
        return f"rows_{way}({places}, {block.dim});"

    def text(self) -> str:
        """The driver."""
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
            setup.append(f"if (!(ptr[0] == 0 && {last} && ptr[arg[0] + 1] == -1 - nodes)) return {NO_TABLES};")
        vectors = sum(self.scratch.values())
        if vectors:
            setup.append(f"T *const scratch = aligned_alloc(64, ({vectors} * VECTOR + 63) / 64 * 64);")
            setup.append(f"if (scratch == NULL) return {NO_ROOM};")
            setup.append(f"memset(scratch, 0, {vectors} * VECTOR);")
            place = 0
            for name, size in self.scratch.items():
                setup.append(f"T *const {name} = scratch + {place} * LANES;")
                place += size
        lines = [*setup, f"int64_t status = {DONE};"]
        lines += ["for (int64_t chunk = begin; chunk < end; chunk++) {", *chunk, "}"]
        lines += ["" if self.by_rows else "leave:;", *(["free(scratch);"] if vectors else []), "return status;"]
        return f"{'' if self.by_rows else SEGMENT}\n{run_function(lines)}"

    def check(self) -> list[str]:
        """Leave if what the tables name is not there."""
        condition = "outside(edges, others, start, stop, count, nodes)"
        return [f"if ({condition}) {{ status = {NO_TABLES}; goto leave; }}"]


class ByChannel(FormulaDriver):
    """Lanes are channels: a unit of work is a block of channels of one row, or of all rows of one node."""

    def _by_node(self, one: Operand) -> bool:
        return one.rows == "one" or (one.rows == self.node)

    def adds(self, one: Operand) -> bool:
        """Sums are kept in the scratch for as long as their node is walked."""
        return self._by_node(one)

    def _direct(self, one: Operand) -> bool:
        blocks = merged(one)
        return not self._by_node(one) and len(blocks) == 1 and blocks[0].channel == 1

    def chunk(self) -> list[str]:
        """Units from the first to the last of the chunk."""
        base = self.formula
        at_node: list[str] = []
        at_row: list[str] = []
        behind_row: list[str] = []
        behind_node: list[str] = []
        call: list[str] = []
        for number, one in enumerate(base.operands):
            source = f"(p{number} + {self.row(one.rows)} * p{number}_step)"
            scratch = self.reserve(f"sp{number}", one)
            lines = self._moves(one, scratch, source, "in")
            (at_node if self._by_node(one) else at_row).extend(self._guarded(one, lines))
            call.append(self._place(one, source, scratch))
        for number, one in enumerate(base.results):
            target = f"(r{number} + {'chunk' if one.rows == 'one' else self.row(one.rows)} * r{number}_step)"
            scratch = self.reserve(f"sr{number}", one)
            lines = self._moves(one, scratch, target, "add" if one.rows == "one" else "out")
            if self._by_node(one):
                at_node.append(f"memset({scratch}, 0, {one.components} * VECTOR);")
                behind_node += lines
            else:
                behind_row += self._guarded(one, lines)
            call.append(self._place(one, target, scratch))
        inner = [*at_row, f"tile({', '.join(call)});", *behind_row]
        if not self.by_rows:
            inner = [
                "const int64_t start = ptr[n], stop = ptr[n + 1];",
                *self.check(),
                *(["if (start == stop) continue;"] if not any(self._by_node(one) for one in base.results) else []),
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
            f"const int64_t blocks = ({base.channels} + LANES - 1) / LANES, units = blocks * arg[0];",
            "for (int64_t unit = units * chunk / arg[1]; unit < units * (chunk + 1) / arg[1]; unit++) {",
            "const int64_t n = unit % arg[0], c = unit / arg[0] * LANES;",
            f"const int lanes = {base.channels} - c < LANES ? (int)({base.channels} - c) : LANES;",
            *inner,
            "}",
        ]

    def _guarded(self, one: Operand, lines: list[str]) -> list[str]:
        """Operands and results that lie lane beside lane are copied in the last, ragged block alone."""
        if not self._direct(one):
            return lines
        return ["if (lanes < LANES) {", *lines, "}"] if lines else []

    def _place(self, one: Operand, memory: str, scratch: str) -> str:
        if not self._direct(one):
            return f"{scratch}, LANES"
        (block,) = merged(one)
        there = f"{memory} + {block.start} + c"
        return f"lanes < LANES ? {scratch} : {there}, lanes < LANES ? LANES : {block.component}"

    def _moves(self, one: Operand, scratch: str, row: str, way: str) -> list[str]:
        lines, place = [], 0
        for block in merged(one):
            far, near = f"{row} + {block.start} + c * {block.channel}", f"{scratch} + {place} * LANES"
            places = f"{far}, {near}" if way == "in" else f"{near}, {far}"
            general = f"{COPY[way]}({places}, {block.dim}, {block.component}, {block.channel}, lanes);"
            if block.channel == block.dim > 1 and block.component == 1:
                whole = self._whole(block, way, near, far)
                general = f"if (lanes == LANES) {whole} else {general}" if whole else general
            lines.append(general)
            place += block.dim
        return lines

    def _whole(self, block: Block, way: str, near: str, far: str) -> str:
        """A vector of channels whose components lie side by side."""
        if square := self.square(way, block, near, 0):
            at = f"{'const ' if way == 'in' else ''}T *at[LANES];"
            return f"{{ {at} for (int l = 0; l < LANES; l++) at[l] = {far} + l * {block.dim}; {square} }}"
        return self.small(way, block, near, far) if way != "add" else ""


class ByRow(FormulaDriver):
    """Lanes are rows; rows of one node are added one after the other."""

    def adds(self, one: Operand) -> bool:
        """The lanes of a vector may be rows of one node: they are added behind the tile."""
        return False

    def chunk(self) -> list[str]:
        """Vectors of rows, the last ragged."""
        base = self.formula
        before: list[str] = []
        behind: list[str] = []
        for number, one in enumerate(base.operands):
            scratch = self.reserve(f"sp{number}", one)
            before += self._moves(one, scratch, f"p{number}", False)
        for number, one in enumerate(base.results):
            scratch = self.reserve(f"sr{number}", one)
            behind += self._moves(one, scratch, f"r{number}", True)
        places = [f"sp{n}, LANES" for n in range(len(base.operands))]
        places += [f"sr{n}, LANES" for n in range(len(base.results))]
        flush = [*before, f"tile({', '.join(places)});", *behind]
        if self.by_rows:
            return [
                "const int64_t last = arg[0] * (chunk + 1) / arg[1];",
                "for (int64_t n = arg[0] * chunk / arg[1]; n < last; n += LANES) {",
                "const int lanes = last - n < LANES ? (int)(last - n) : LANES;",
                *self._ahead(),
                *flush,
                "}",
            ]
        zero = [
            f"for (int64_t n = first; n < last; n++) memset(r{number} + n * {one.width}, 0, {one.width} * sizeof(T));"
            for number, one in enumerate(base.results)
            if one.rows == self.node
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
        """Ask for the next vector of rows, which the processor would do late at each page."""
        base = self.formula
        rows = [("fetch", f"p{n}", one) for n, one in enumerate(base.operands) if one.rows == "each"]
        rows += [("claim", f"r{n}", one) for n, one in enumerate(base.results) if one.rows == "each"]
        calls = [f"{how}({p} + (n + LANES) * {p}_step, LANES * {one.width});" for how, p, one in rows]
        return ["if (last - n >= 2 * LANES) {", *calls, "}"]

    def _index(self, rows: str) -> str:
        """The row of lane l."""
        if rows == "one":
            return "0"
        if self.by_rows:
            return "(n + l)"
        return "n_of[l]" if rows == self.node else "edges[e0 + l]" if rows == "each" else "others[e0 + l]"

    def _moves(self, one: Operand, scratch: str, pointer: str, out: bool) -> list[str]:
        if not one.components:
            return []
        summed = one.rows in ("one", self.node)
        way = "in" if not out else "add" if summed else "out"
        index = "chunk" if out and one.rows == "one" else self._index(one.rows)
        lines = ["{", f"{'' if out else 'const '}T *at[LANES];"]
        lines.append(f"for (int l = 0; l < lanes; l++) at[l] = {pointer} + {index} * {pointer}_step;")
        place, side_by_side = 0, way != "add" and self.by_rows and one.rows == "each"
        for block in merged(one):
            near, far = f"{scratch} + {place} * LANES", f"at[l] + {block.start}"
            places = f"{far}, {near} + l" if way == "in" else f"{near} + l, {far}"
            general = f"for (int l = 0; l < lanes; l++) {COPY[way]}({places}, {block.dim}, {block.component}, 1, 1);"
            if square := self.square(way, block, near, block.start):
                general = f"if (lanes == LANES) {square} else {general}"
            elif side_by_side and 1 < block.dim == one.width and block.component == 1:
                small = self.small(way, block, near, f"{pointer} + n * {block.dim}")
                general = f"if (lanes == LANES && {pointer}_step == {block.dim}) {small} else {general}"
            lines.append(general)
            place += block.dim
        return [*lines, "}"]
