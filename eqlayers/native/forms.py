"""Calls of the kernels of forms, and of the sorts of edges that they need, in a native program."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from eqlayers_kernels.c.print.maps import PACKED, PANEL_BYTES

from ..core.backends import cpu
from ..core.forms.description import describe
from ..core.forms.request import SIZE_INDEX
from ..core.traces.trace import fake_of
from .memory import Memory
from .sizes import ATOMS, Symbols, local, parts, product, rows_of, text_of
from .values import TYPES, Buffer, Elementwise, View

#: Operators whose result has the ends of edges that their operand has.
SAME_ENDS = ("view", "_to_copy", "clone", "expand", "unsqueeze", "slice", "alias", "detach", "contiguous")


class FormCalls(Memory):
    """The steps of forms.

    Args:
        size: Sizes of the graph as coded integers.
    """

    def __init__(self, size: Symbols) -> None:
        super().__init__(size)
        self.kernels: dict[tuple[str, ...], str] = {}  # sources -> name
        self.ends_of: dict[int, tuple[str, str]] = {}  # tables of a graph -> kinds of its senders and receivers
        self.tables: dict[int, tuple[View, Any]] = {}  # -> ends and sizes, or tables without intervals and intervals
        self.sorted: dict[tuple[int, str], View] = {}  # tables, and the end that they are sorted by

    # ---- ends of edges ----------------------------------------------------------------------------------------------

    def end_at(self, node: Any) -> str:
        """The kind of an index: 'src' and 'dst' of the senders and receivers, 'row' of all rows, else empty."""
        if not isinstance(node, fx.Node) or node.op != "call_function":
            return ""
        name, args = str(node.target), node.args
        ends = args[0].args[0] if node.target is operator.getitem and "unbind" in str(args[0].target) else args[0]  # type: ignore[union-attr]
        number = args[1] if node.target is operator.getitem else args[2] if name == "aten.select.int" else None
        if isinstance(ends, fx.Node) and ends.op == "placeholder" and fake_of(ends).ndim == 2 and number in (0, 1):
            return "dst" if number else "src"
        if name.startswith("aten.arange") and len([one for one in args if one != 0]) == 1:
            return "row"
        return self.end_at(args[0]) if name.split(".")[1:2] and name.split(".")[1] in SAME_ENDS else ""

    def ends_at(self, node: Any) -> tuple[str, str]:
        """The kinds of the two rows of ends."""
        if node.op == "placeholder":
            return "src", "dst"
        first, second = node.args[0] if str(node.target) == "aten.stack.default" else ("", "")
        return self.end_at(first), self.end_at(second)

    def sizes_of_tables(self, kinds: tuple[str, str], sizes: Sequence[int]) -> list[int]:
        """The numbers of edges, senders and receivers of tables: those that can be ghosts are senders of kind 'src'."""
        return [
            local(sizes[0]),
            *(size if kind == "src" else local(size) for kind, size in zip(kinds, sizes[1:], strict=True)),
        ]

    def sort(self, kind: str, first: Any, *args: Any) -> View:
        """The name of tables of edges, which are sorted when a form first reads them."""
        named = self.new([], torch.int64)
        if kind == "edge_tables":
            self.ends_of[id(named.buffer)] = self.ends_at(self.node.args[0])
            ends = self.stored(first)
            self.tables[id(named.buffer)] = ends if ends.strides[1] == 1 else self.packed(ends), args
            return named
        interval, end = self.packed(args[1]), text_of(args[4])
        name = interval.buffer.name
        loop = f"for (int64_t e = 0; e < {text_of(interval.shape[0])}; e++)"
        self.add(f"{loop} if ({name}[e] < 0 || {name}[e] >= {end}) return END;", [interval.buffer], [], "loop")
        self.ends_of[id(named.buffer)] = self.ends_of[id(first.buffer)]
        self.tables[id(named.buffer)] = first, interval
        return named

    def sorted_by(self, tables: View, end: str) -> tuple[View, list[int]]:
        """Edges sorted by the node at an end, 'dst' or 'src', and the numbers of edges, of these and of other nodes.

        First lies the first edge of each node and -1 - n, then the edges, then the nodes at their other ends.
        """
        ends, sizes = self.tables[id(tables.buffer)]
        row = int(end == "dst")
        count, *nodes = self.sizes_of_tables(self.ends_of[id(tables.buffer)], (ends.shape[1], *sizes))
        counts = [count, nodes[row], nodes[1 - row]]
        if (key := (id(tables.buffer), end)) in self.sorted:
            return self.sorted[key], counts
        reads, order = [ends.buffer], "NULL"
        if end == "src":  # edges of a sender are sorted by receiver
            by_dst, (_, receivers, _) = self.sorted_by(tables, "dst")
            reads, order = [ends.buffer, by_dst.buffer], f"{by_dst.buffer.name} + {text_of(receivers + 2)}"
        out = self.sorted[key] = self.new([sizes[row] + 2 + 2 * ends.shape[1]], torch.int64)
        starts = [View(ends.buffer, ends.offset + n * ends.strides[0], [], []) for n in (row, 1 - row)]
        edges = f"{out.buffer.name} + {text_of(counts[1] + 2)}"
        texts = ", ".join([*map(address, starts), order, *map(text_of, counts), out.buffer.name])
        text = f"if (sort({texts}, {edges}, {edges} + {text_of(count)}) >= 0) return END;"
        self.add(text, reads, [out.buffer], "sort")
        return out, counts

    def form(
        self,
        node: fx.Node,
        operands: Sequence[Any],
        tables: View | None,
        rows: int,
        senders: int,
        receivers: int,
        key: str,
        *_: Any,
    ) -> list[View]:
        """The steps of a form: a call of a kernel for each traversal."""
        dtype = fake_of(node.args[0][0]).dtype  # type: ignore[index, arg-type]
        if dtype not in cpu.NAMES:
            raise self.refuse(f"kernels have no {dtype}")
        form = describe(key).form
        sizes = [rows, senders, receivers, 0]
        stored = [self.rows_of(one) for one in operands]
        kinds = dict(zip(("src", "dst"), ("", "") if tables is None else self.ends_of[id(tables.buffer)], strict=True))
        by_sender = {
            end: self._is_known(kinds[end], size, rows) and kinds[end] == "src"
            for end, size in (("src", senders), ("dst", receivers))
            if any(one.rows == end for one in (*form.operands, *form.results))
        }
        stored = [
            self.seen_by_receivers(view) if by_sender.get(one.rows) else view
            for one, view in zip(form.operands, stored, strict=True)
        ]
        made = self._form(form, stored, tables, sizes, dtype)
        for result, view in zip(form.results, made, strict=True):
            view.buffer.everywhere = view.buffer.everywhere and tables is None
            self.check_sum(rows, product(view.shape[:-1]))
            if by_sender.get(result.rows):
                self.summed_for_senders(view)
        return made

    def rows_of(self, value: Any) -> View:
        """The rows of an operand in a buffer; equal numbers are one row."""
        if isinstance(value, Elementwise) and value.number is not None and len(value.shape) == 2:
            row = self.stored(torch.full((1, value.shape[1]), value.number, dtype=value.dtype))
            return View(row.buffer, 0, value.shape, [0, 1])
        return self.stored(value)

    def _is_known(self, kind: str, size: int, rows: int) -> bool:
        known = {"src": ATOMS, "dst": ATOMS, "row": rows}.get(kind)
        if parts(size)[:2] != (0, 0) and size != known:
            self.undivide("its index of atoms is not computed from the ends of edges alone")
        return size == known

    def _form(
        self, form: Any, operands: list[View], tables: View | None, sizes: list[int], dtype: torch.dtype
    ) -> list[View]:
        def new(result: Any) -> View:
            index = SIZE_INDEX.get(result.rows)
            return self.new([result.width] if index is None else [sizes[index], result.width], dtype)

        if form.family == "sum":
            out: list[View | None] = [None] * len(form.results)
            for part, picks, targets in form.parts:
                made = self._form(part, [operands[pick] for pick in picks], tables, sizes, dtype)
                for target, value in zip(targets, made, strict=True):
                    so_far = out[target]
                    if so_far is None:
                        out[target] = value
                    else:
                        self.fill(so_far, value, add=True)
            if any(one is None for one in out):
                raise self.refuse("a result of a sum of products is zero")
            return [one for one in out if one is not None]
        sizes = list(sizes)
        for one, view in zip(form.operands, operands, strict=True):
            if one.rows == "table":
                sizes[3] = view.shape[0]
        if form.family == "product" and not form.task.results:
            return []
        results = [new(result) for result in form.results]
        for walk, numbers in cpu.traversals_of(form, tables is not None).items():
            part = form.part(numbers)
            traversal = cpu.alone(part, walk)
            try:
                printed = cpu._PRINT[part.family](part, cpu.NAMES[dtype], traversal)
            except (ValueError, KeyError) as error:
                raise self.refuse(f"no kernel has its rows {getattr(part, 'rows', '')}") from error
            self._kernel(printed, part, traversal, operands, [results[n] for n in numbers], tables, sizes, dtype)
        return results

    def _kernel(
        self,
        printed: Any,
        part: Any,
        traversal: str,
        operands: list[View],
        results: list[View],
        tables: View | None,
        sizes: list[int],
        dtype: torch.dtype,
    ) -> None:
        name = self.kernels.setdefault(tuple(printed.kernel.sources), f"k{len(self.kernels)}")
        reads, words, before = [], [], []
        operands = list(operands)
        if printed.table is not None:
            numbers = torch.tensor(list(printed.table))
            for one in printed.operands:
                if part.operands[one.number].name == "w":
                    packed = panels_of(printed, operands[one.number])
                    if packed is not None:
                        operands[one.number], numbers[0] = self.stored(packed), numbers[0] + PACKED
            table = self.stored(numbers)
            reads.append(table.buffer)
            words += [f"(int64_t){table.buffer.name}", "0"]
        for pointer in printed.operands:
            if pointer.transpose is not None:
                raise self.refuse("a kernel wants its operand in another layout")
            view = operands[pointer.number]
            if printed.table is not None and part.task.results == (part.names[pointer.number],):
                words += ["0", "0"]  # the gradient of a linear map by its rows does not depend on them
                continue
            if view.strides[-1] != 1 and pointer.width > 1:
                view = self.packed(view)
            step = view.strides[0] if len(view.shape) > 1 and view.shape[0] != 1 else pointer.width
            reads.append(view.buffer)
            words += [f"(int64_t)({address(view)})", text_of(step * pointer.rows)]
        for view, one, written in zip(results, part.results, printed.written, strict=True):
            if one.rows == "table":
                raise self.refuse("a result has rows of a table")
            if not written:
                before.append(f"memset({view.buffer.name}, 0, SIZE({view.buffer.name}) * sizeof({TYPES[dtype]}));")
            words += [f"(int64_t){view.buffer.name}", str(one.width)]
        segments = rows_of(sizes[0])
        if tables is not None:
            segments = self._along(words, reads, part, traversal, tables, sizes)
        args = ", ".join([segments, "1", "0", *words])
        call = f"{{ const int64_t args[] = {{{args}}}; if ({name}_run(args, 0, 1)) return MEMORY; }}"
        self.add(" ".join([*before, call]), reads, [view.buffer for view in results], "form", sizes[0] * _work(part))

    def _along(
        self, words: list[str], reads: list[Buffer], part: Any, traversal: str, tables: View, sizes: list[int]
    ) -> str:
        """Add the tables that a walk along edges reads; the number of its nodes."""
        if traversal == "by_place":
            raise self.refuse("a result has rows of a table")
        interval = None
        if part.reading is not None:
            tables, interval = self.tables[id(tables.buffer)]
        at, (edges, segments, others) = self.sorted_by(tables, "src" if traversal == "by_src" else "dst")
        first = f"{at.buffer.name} + {text_of(segments + 2)}"
        starts = at.buffer.name, first, f"{first} + {text_of(edges)}"
        words += [*(f"(int64_t)({start})" for start in starts), text_of(edges), text_of(others)]
        reads.append(at.buffer)
        if interval is not None:
            words += [f"(int64_t)({address(interval)})", text_of(part.reading.intervals(sizes[3]))]
            reads.append(interval.buffer)
        return text_of(segments)


def _work(form: Any) -> int:
    """Multiplications with additions of a row."""
    if form.family == "formula":
        return int(form.operations) * max(form.channels, 8)
    paths = sum(len(path.terms) * math.prod(axis.length for axis in path.axes) for path in form.program.paths)
    table = 0 if form.reading is None else form.reading.reads * form.program.widths[2]
    return len(form.task.results) * (paths + table)


def address(view: View) -> str:
    """The first element of a view."""
    return f"{view.buffer.name} + {text_of(view.offset)}" if view.offset else view.buffer.name


#: Bytes of the vectors that weights of matrices are packed for; the compiler divides them where the processor's are
#: shorter.
VECTOR = PANEL_BYTES // 2


def in_panels(weight: Tensor) -> Tensor:
    """Weights ``[K, N]`` as panels of two vectors of columns, ``[N / columns, K, columns]``, filled up with zeros."""
    columns = 2 * VECTOR // weight.itemsize
    k, n = weight.shape
    full = weight.new_zeros(k, -(-n // columns) * columns)
    full[:, :n] = weight
    return full.view(k, -1, columns).permute(1, 0, 2).contiguous()


def panels_of(printed: Any, weights: View) -> Tensor | None:
    """Constant weights of a map in panels, with the factors of its paths; None if the kernel packs them itself."""
    if weights.buffer.constant is None or not printed.kernel.matrices:
        return None
    numbers, made = weights.buffer.constant.flatten()[weights.offset :], []
    for path, transposed in printed.kernel.matrices:
        matrix = numbers[path.weight :][: path.mul_in * path.mul_out].view(path.mul_in, path.mul_out) * path.factor
        made.append(in_panels(matrix.mT if transposed else matrix).flatten())
    return torch.cat(made)
