"""Calls of the kernels of forms, and of the sorts of edges that they need, in a native program."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from eqlayers_kernels.c.print.maps import PACKED, PANEL_BYTES
from eqlayers_kernels.c.run.edges import graph_offsets, interval_offsets

from ..core.backends import cpu
from ..core.forms.description import describe
from ..core.forms.request import SIZE_INDEX
from ..core.traces.trace import fake_of
from .memory import Memory
from .sizes import ATOMS, Symbols, local, parts, product, rows_of, text_of
from .values import TYPES, Buffer, View

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

    def sort(self, kind: str, *args: Any) -> View:
        """A step that sorts edges, or the rows of atoms."""
        if kind == "edge_tables":
            ends, senders, receivers = args
            ends = self.stored(ends) if self.stored(ends).strides[1] == 1 else self.packed(ends)
            count = ends.shape[1]
            out = self.new([graph_offsets(count, senders, receivers).length], torch.int64)
            starts = [View(ends.buffer, ends.offset + row * ends.strides[0], [count], [1]) for row in (0, 1)]
            rows = ", ".join(map(address, starts))
            self.ends_of[id(out.buffer)] = kinds = self.ends_at(self.node.args[0])
            sizes = self.sizes_of_tables(kinds, (count, senders, receivers))
            text = f"if (sort_ends({rows}, {', '.join(map(text_of, sizes))}, {out.buffer.name}) >= 0) return END;"
            self.add(text, [ends.buffer], [out.buffer], "sort")
            return out
        tables, ends, interval, senders, receivers, intervals = args
        ends, interval = self.packed(ends), self.packed(interval)
        edges, *sizes = self.sizes_of_tables(self.ends_of[id(tables.buffer)], (ends.shape[1], senders, receivers))
        before = graph_offsets(edges, *sizes).length
        room = graph_offsets(ends.shape[1], senders, receivers).length
        out = self.new([room + interval_offsets(ends.shape[1], intervals).length], torch.int64)
        self.ends_of[id(out.buffer)] = self.ends_of[id(tables.buffer)]
        text = (
            f"memcpy({out.buffer.name}, {tables.buffer.name}, {text_of(before)} * sizeof(int64_t)); "
            f"if (sort_places({address(ends)}, {address(interval)}, {text_of(edges)}, {text_of(sizes[0])}, "
            f"{text_of(intervals)}, {out.buffer.name} + {text_of(before)}) >= 0) return END;"
        )
        self.add(text, [tables.buffer, ends.buffer, interval.buffer], [out.buffer], "sort")
        return out

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
        stored = [self.stored(one) for one in operands]
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
            segments = self._along(words, part, traversal, tables.buffer, sizes)
            reads.append(tables.buffer)
        args = ", ".join([segments, "1", "0", *words])
        call = f"{{ const int64_t args[] = {{{args}}}; if ({name}_run(args, 0, 1)) return MEMORY; }}"
        self.add(" ".join([*before, call]), reads, [view.buffer for view in results], "form")

    def _along(self, words: list[str], part: Any, traversal: str, tables: Buffer, sizes: list[int]) -> str:
        kinds, table = self.ends_of[id(tables)], sizes[3]
        edges, senders, receivers = self.sizes_of_tables(kinds, sizes[:3])
        of_graph = graph_offsets(edges, senders, receivers)
        intervals = 0 if part.reading is None else part.reading.intervals(table)
        of_intervals = None if part.reading is None else interval_offsets(edges, intervals)
        if traversal == "by_place" and of_intervals is not None:
            raise self.refuse("a result has rows of a table")
        segments, others = (senders, receivers) if traversal == "by_src" else (receivers, senders)
        words += [f"(int64_t)({tables.name} + {text_of(offset)})" for offset in getattr(of_graph, traversal)]
        words += [text_of(edges), text_of(others)]
        if of_intervals is not None:
            words += [
                f"(int64_t)({tables.name} + {text_of(of_graph.length + of_intervals.interval)})",
                text_of(intervals),
            ]
        return text_of(segments)


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
