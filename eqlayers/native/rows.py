"""Rows by index and numbers of many elements, such as sums, in a native program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..core.traces.trace import fake_of
from .elements import FORMULAS
from .forms import FormCalls
from .sizes import ATOMS, parts, product, text_of
from .sums import STORED
from .values import TYPES, Elementwise, Lines, Value, View


class Rows(FormCalls):
    """The steps of operators that read rows by index, or many elements for one."""

    def kept(self, node: fx.Node, value: Elementwise) -> Value:
        """A formula, stored unless one operator of elements alone reads it."""
        users = [user for user in node.users if not str(user.target).startswith("aten.sym_size")]
        alone = len(users) == 1 and users[0].op == "call_function" and kind_of(users[0]) in FORMULAS
        if alone and STORED not in node.meta:
            return value
        return self.stored(value)

    # ---- rows by index ----------------------------------------------------------------------------------------------

    def _rows(self, node: fx.Node, table: Any, index: Any, axis: int = 0, of_each: bool = False) -> Value:
        source, where = self.stored(table), self.checked(index, table.shape[axis])
        after = axis + (1 if of_each else len(where.shape))
        if self._kind_of_rows(node, table.shape[axis]) == "src":
            source = self.seen_by_receivers(source)

        def write(names: Sequence[str], lines: Lines) -> str:
            row = lines.local(torch.int64, self.at(where, names if of_each else names[axis:after], lines))
            row = f"({row} < 0 ? {row} + {text_of(table.shape[axis])} : {row})"
            terms = [text_of(source.offset)] if source.offset else []
            rest = [*names[:axis], row, *names[after:]]
            terms += [f"{name} * {text_of(stride)}" for name, stride in zip(rest, source.strides, strict=True)]
            return f"{source.buffer.name}[{' + '.join(terms)}]"

        reads = [source.buffer, where.buffer]
        return self.kept(node, Elementwise(self.shape_of(node), fake_of(node).dtype, write, reads))

    def _kind_of_rows(self, node: fx.Node, size: int) -> str:
        """The kind of the index of a node, 'src' or 'dst' of the ends of edges; empty of a table that is constant."""
        if parts(size)[:2] == (0, 0):
            return ""
        index = next(one for one in node.args[1:] if not isinstance(one, int))
        kind = self.end_at(index[0] if isinstance(index, (list, tuple)) else index)
        if size != ATOMS or kind not in ("src", "dst"):
            self.undivide("its index is not an end of edges into rows of atoms")
        return kind

    def checked(self, index: Any, size: int) -> View:
        """An index in a buffer, after a step that ends the program if a row is outside of its table."""
        view = self.stored(index)
        if view.dtype is not torch.int64:
            raise self.refuse(f"an index is {view.dtype}")
        if (key := (id(view.buffer), view.offset, *view.shape, size)) in self.in_range:  # layers share their species
            return view
        self.in_range.add(key)
        lines, names = Lines(), [f"i{axis}" for axis in range(len(view.shape))]
        row, end = lines.local(torch.int64, self.at(view, names, lines)), text_of(size)
        loops = self.loops(names, view.shape)
        self.add(
            f"{loops}{{ {' '.join(lines.lines)} if ({row} < -{end} || {row} >= {end}) return ROW; }}",
            [view.buffer],
            [],
            "loop",
        )
        return view

    def _op_index(self, node: fx.Node, table: Any, index: Sequence[Any]) -> Value:
        if len(index) != 1 or index[0] is None:
            raise self.refuse("it has several indices")
        return self._rows(node, table, index[0])

    def _op_index_select(self, node: fx.Node, table: Any, axis: int, index: Any) -> Value:
        return self._rows(node, table, index, axis % len(table.shape))

    def _op_gather(self, node: fx.Node, table: Any, axis: int, index: Any, **kwargs: Any) -> Value:
        axis %= len(table.shape)
        if index.shape[:axis] + index.shape[axis + 1 :] != table.shape[:axis] + table.shape[axis + 1 :]:
            raise self.refuse("its index has fewer elements")
        return self._rows(node, table, index, axis, of_each=True)

    def _op_embedding(self, node: fx.Node, table: Any, index: Any, *_: Any) -> Value:
        return self._rows(node, table, index)

    def _op_index_add(self, node: fx.Node, to: Any, axis: int, index: Any, rows: Any) -> Value:
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        kind = self._kind_of_rows(node, out.shape[axis])
        self.fill(out, (0.0 if out.dtype.is_floating_point else 0) if kind == "src" else to)
        self._scatter(out, self.checked(index, out.shape[axis]), rows, "{0} += {1};", axis % len(out.shape))
        if kind != "src":
            return out
        self.summed_for_senders(out)
        total = self.new(out.shape, out.dtype)
        self.fill(total, out)
        self.fill(total, to, add=True)
        return total

    def _op_index_put(self, node: fx.Node, to: Any, index: Sequence[Any], rows: Any, add: bool = False) -> Value:
        if not add or len(index) != 1 or index[0] is None or len(index[0].shape) != 1:
            raise self.refuse("it does not add rows by one index")
        return self._op_index_add(node, to, 0, index[0], rows)

    def _op_scatter_add(self, node: fx.Node, to: Any, axis: int, index: Any, rows: Any) -> Value:
        if index.shape != rows.shape:
            raise self.refuse("its index has fewer elements")
        return self._op_index_add(node, to, axis, index, rows)

    def _op_scatter(self, node: fx.Node, to: Any, axis: int, index: Any, rows: Any) -> Value:
        if parts(to.shape[axis])[:2] != (0, 0) or index.shape != getattr(rows, "shape", None):
            raise self.refuse("it is no change of some columns")
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        self.fill(out, to)
        self._scatter(out, self.checked(index, to.shape[axis]), rows, "{0} = {1};", axis % len(to.shape))
        return out

    def _op_scatter_reduce(
        self, node: fx.Node, to: Any, axis: int, index: Any, rows: Any, how: str, include_self: bool = True
    ) -> Value:
        axis %= len(to.shape)
        if how != "amax" or index.shape != rows.shape:
            raise self.refuse("it is no largest value of rows")
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        self.fill(out, to)
        if self._kind_of_rows(node, out.shape[axis]) == "src":
            self.undivide("it is a largest value of rows of senders")
        index = self.checked(index, out.shape[axis])
        if not include_self:
            self._scatter(out, index, rows, "{0} = -INFINITY; (void){1};", axis)
        self._scatter(out, index, rows, "if ({1} > {0} || {1} != {1}) {0} = {1};", axis)
        return out

    def _scatter(self, out: View, index: View, rows: Any, how: str, axis: int = 0) -> None:
        lines, names = Lines(), [f"i{axis}" for axis in range(len(rows.shape))]
        text = lines.local(rows.dtype, self.element(rows, names, lines))
        start = 0 if len(index.shape) == len(names) else axis
        row = lines.local(torch.int64, self.at(index, names[start : start + len(index.shape)], lines))
        row = f"({row} < 0 ? {row} + {text_of(out.shape[axis])} : {row})"
        to = self.at(out, [*names[:axis], row, *names[axis + 1 :]], lines)
        loops = self.loops(names, rows.shape)
        out.buffer.everywhere = False
        self.check_sum(rows.shape[axis], out.shape[axis])
        body = " ".join([*lines.lines, how.format(to, text)])
        self.add(f"{loops}{{ {body} }}", [*self.reads_of(rows), index.buffer, out.buffer], [out.buffer], "loop")

    # ---- one number of many -----------------------------------------------------------------------------------------

    def _op_sum(self, node: fx.Node, value: Any, axes: Any = None, keepdim: bool = False, **kwargs: Any) -> Value:
        return self._reduced(node, value, axes, keepdim, [("s = 0;", "s += {0};")])

    def _op_mean(self, node: fx.Node, value: Any, axes: Any = None, keepdim: bool = False, **kwargs: Any) -> Value:
        return self._reduced(node, value, axes, keepdim, [("s = 0;", "s += {0};")], "s / n")

    def _op_var(self, node: fx.Node, value: Any, axes: Any = None, correction: Any = 1, keepdim: bool = False) -> Value:
        passes = [("s = 0;", "s += {0};"), ("m = s / n; s = 0;", "s += ({0} - m) * ({0} - m);")]
        return self._reduced(node, value, axes, keepdim, passes, f"s / (n - {1 if correction is None else correction})")

    def _op_var_mean(self, node: fx.Node, *args: Any, **kwargs: Any) -> list[Value]:
        fakes = node.meta["val"]
        kwargs_of_mean = {name: value for name, value in kwargs.items() if name != "correction"}
        return [self._op_var(fakes[0], *args, **kwargs), self._op_mean(fakes[1], *args, **kwargs_of_mean)]

    def _op_max(self, node: fx.Node, value: Any, axis: int, keepdim: bool = False) -> list[Value]:
        return self._largest(node, value, axis, keepdim, "s = -INFINITY;", "{0} <= s")

    def _op_min(self, node: fx.Node, value: Any, axis: int, keepdim: bool = False) -> list[Value]:
        return self._largest(node, value, axis, keepdim, "s = INFINITY;", "{0} >= s")

    def _largest(self, node: fx.Node, value: Any, axis: int, keepdim: bool, start: str, other: str) -> list[Value]:
        """The first of the largest elements along an axis, and its number."""
        each = f"if (s == s && !({other})) {{{{ s = {{0}}; m = i{axis % len(value.shape)}; }}}}"
        return [
            self._reduced(fake, value, [axis], keepdim, [(f"m = 0; {start}", each)], end)
            for fake, end in zip(node.meta["val"], "sm", strict=True)
        ]

    def _op_amax(self, node: fx.Node, value: Any, axes: Any = (), keepdim: bool = False) -> Value:
        passes = [("s = -INFINITY;", "if ({0} > s || {0} != {0}) s = {0};")]
        return self._reduced(node, value, axes, keepdim, passes)

    def _op_amin(self, node: fx.Node, value: Any, axes: Any = (), keepdim: bool = False) -> Value:
        passes = [("s = INFINITY;", "if ({0} < s || {0} != {0}) s = {0};")]
        return self._reduced(node, value, axes, keepdim, passes)

    def _reduced(
        self, node: Any, value: Any, axes: Any, keepdim: bool, passes: Sequence[tuple[str, str]], end: str = "s"
    ) -> Value:
        """One number ``s`` of all elements along axes: C before each loop over them, and of each element."""
        fake = node if isinstance(node, Tensor) else fake_of(node)
        out, count = self.new(self.shape_of(fake), fake.dtype), len(value.shape)
        listed = ([axes] if isinstance(axes, int) else axes or range(count)) if count else ()
        axes = [axis % count for axis in listed]
        if any(parts(value.shape[axis])[:2] != (0, 0) for axis in axes):
            self.undivide("it reads all atoms or edges")
        names, lines, to = [f"i{axis}" for axis in range(count)], Lines(), Lines()
        text = lines.local(value.dtype, self.element(value, names, lines))
        kept = [name for axis, name in enumerate(names) if keepdim or axis not in axes]

        def loop(chosen: Sequence[int]) -> str:
            return self.loops([names[axis] for axis in chosen], [value.shape[axis] for axis in chosen])

        number = text_of(product(value.shape[axis] for axis in axes))
        inner = " ".join(
            f"{before} {loop(axes)}{{ {' '.join(lines.lines)} {each.format(text)} }}" for before, each in passes
        )
        outer = loop([axis for axis in range(count) if axis not in axes])
        kind = TYPES[out.dtype if out.dtype.is_floating_point or not value.dtype.is_floating_point else value.dtype]
        variables = f"{kind} s, m = 0; const {kind} n = {number}; (void)m; (void)n;"
        body = f"{outer}{{ {variables} {inner} {self.at(out, kept, to)} = {end}; }}"
        self.add(body, self.reads_of(value), [out.buffer], "loop")
        return out


def kind_of(node: fx.Node) -> str:
    """The name of an operator of torch without overload and trailing underscore; empty for other functions."""
    names = str(node.target).split(".")
    return names[1].removesuffix("_") if names[0] in ("aten", "prims") else ""
