"""Turns the graph of a potential into steps: formulas of elements, products of matrices, forms, and sorts of edges."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..core.errors import ConfigError
from ..core.traces.trace import fake_of
from .elements import formula, number
from .forms import FormCalls
from .sizes import Symbols, text_of
from .values import TYPES, Buffer, Formula, Lines, Value, View, steps

#: Operators whose result is a view of their operand, or has the same numbers.
SAME = ("clone", "detach", "alias", "contiguous", "lift_fresh_copy")


class NotCompiled(ConfigError):
    """A graph has an operator that no native program can have."""


@dataclass(eq=False)
class Step:
    """A part of a program.

    Attributes:
        text: C.
        reads, writes: Buffers that it uses.
        kind: For reports: loop, matrix, form or sort.
        node: The node that it computes, for tests.
    """

    text: str
    reads: list[Buffer]
    writes: list[Buffer]
    kind: str
    node: str = ""


class Compiler(FormCalls):
    """The steps of a graph, in their order.

    Args:
        module: Has inputs ``z [A]``, ``vectors [E, 3]`` and ``edge_index [2, E]``, and all constants.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self.module, self.steps, self.buffers = module, list[Step](), list[Buffer]()
        self.values: dict[fx.Node, Any] = {}
        self._constants: dict[int, View] = {}
        placeholders = module.graph.find_nodes(op="placeholder")
        z, vectors, _ = (fake_of(node) for node in placeholders)
        self.size = Symbols(z.shape[0], vectors.shape[0])
        self.inputs = [self._outside(node, name) for node, name in zip(placeholders, ("z", "vectors", "ends"), strict=True)]
        self.values |= zip(placeholders, self.inputs, strict=True)
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self.values[node] = getattr(module, node.target).detach()
            elif node.op == "call_function":
                self.node = node
                self.values[node] = self._call(node)
            elif node.op == "output":
                self.node = node
                self.outputs = [self._output(one, name) for one, name in zip(node.args[0], ("energies", "slopes"), strict=True)]

    # ---- memory -----------------------------------------------------------------------------------------------------

    def new(self, shape: Sequence[int], dtype: torch.dtype, constant: Tensor | None = None) -> View:
        """A buffer of contiguous elements."""
        buffer = Buffer(f"b{len(self.buffers)}", dtype, math.prod(shape), constant)
        self.buffers.append(buffer)
        return View(buffer, 0, list(shape), steps(shape))

    def shape_of(self, node_or_fake: Any) -> list[int]:
        """Coded sizes of the result of a node."""
        fake = fake_of(node_or_fake) if isinstance(node_or_fake, fx.Node) else node_or_fake
        return [self.size(size) for size in fake.shape]

    def _outside(self, node: fx.Node, name: str) -> View:
        view = self.new(self.shape_of(node), fake_of(node).dtype)
        view.buffer.name, view.buffer.outside = name, True
        return view

    def _output(self, node: fx.Node, name: str) -> View:
        view = self._outside(node, name)
        self.fill(view, self.values[node])
        return view

    def stored(self, value: Any) -> View:
        """The numbers in a buffer."""
        if isinstance(value, Tensor):
            known = self._constants.get(id(value))
            if known is None:
                known = self._constants[id(value)] = self.new(value.shape, value.dtype, value.contiguous())
            return known
        if isinstance(value, View):
            return value
        out = self.new(value.shape, value.dtype)
        self.fill(out, value)
        return out

    def packed(self, value: Any) -> View:
        """The numbers in a buffer, one after the other."""
        view = self.stored(value)
        if view.contiguous():
            return view
        out = self.new(view.shape, view.dtype)
        self.fill(out, view)
        return out

    # ---- elements ---------------------------------------------------------------------------------------------------

    def fill(self, out: View, value: Any, add: bool = False) -> None:
        """A step that writes a value to a view, or adds it."""
        lines, names = Lines(), [f"i{axis}" for axis in range(len(out.shape))]
        text = self.element(value, names, lines)
        to = self.at(out, names, lines)
        loops = "".join(
            f"for (int64_t {name} = 0; {name} < {text_of(size)}; {name}++) "
            for name, size in zip(names, out.shape, strict=True)
            if size != 1
        )
        for name, size in zip(names, out.shape, strict=True):
            if size == 1:
                lines.lines.insert(0, f"const int64_t {name} = 0; (void){name};")
        body = " ".join([*lines.lines, f"{to} {'+=' if add else '='} {text};"])
        self.add(f"{loops}{{ {body} }}", self.reads_of(value), [out.buffer], "loop")

    def add(self, text: str, reads: Sequence[Buffer], writes: Sequence[Buffer], kind: str) -> None:
        """Append a step."""
        self.steps.append(Step(text, list(reads), list(writes), kind, self.node.name))

    def reads_of(self, value: Any) -> list[Buffer]:
        """Buffers that a value is computed from."""
        if isinstance(value, Formula):
            return value.reads
        return [self.stored(value).buffer] if isinstance(value, (View, Tensor)) else []

    def at(self, view: View, names: Sequence[str], lines: Lines) -> str:
        """The element of a view in C."""
        terms = [text_of(view.offset)] if view.offset else []
        for name, size, stride in zip(names, view.shape, view.strides, strict=True):
            if size != 1 and stride:
                terms.append(name if stride == 1 else f"{name} * {text_of(stride)}")
        return f"{view.buffer.name}[{' + '.join(terms) or '0'}]"

    def element(self, value: Any, names: Sequence[str], lines: Lines) -> str:
        """An element of a value in C, whose last axes have the indices ``names``."""
        if isinstance(value, (bool, int, float)):
            return number(value, torch.float64 if isinstance(value, float) else torch.int64)
        if isinstance(value, Tensor):
            if value.numel() == 1:
                return number(value.item(), value.dtype)
            value = self.stored(value)
        names = names[len(names) - len(value.shape) :] if value.shape else []
        if isinstance(value, View):
            return self.at(value, names, lines)
        own = ["0" if size == 1 else name for name, size in zip(names, value.shape, strict=True)]
        return lines.local(value.dtype, value.write(own, lines))

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> Any:
        args = fx.map_arg(node.args, self.values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self.values.__getitem__)
        fake = node.meta.get("val")
        if node.target is operator.getitem:
            return args[0][args[1]]
        if fake is not None and not isinstance(fake, (Tensor, list, tuple)):
            return self.size(fake)  # a size
        name = str(node.target)
        if name == "eqlayers.form.default":
            return self.form(node, *args)
        if name in ("eqlayers.edge_tables.default", "eqlayers.place_tables.default"):
            return self.sort(name.split(".")[1], *args)
        kind = name.split(".")[1] if name.startswith("aten.") else ""
        make: Callable[..., Any] | None = getattr(self, f"_{kind}", None) if kind else None
        if make is not None:
            return make(node, *args, **kwargs)
        if kind in SAME:
            return args[0]
        return self._elements(node, kind, args, kwargs)

    def refuse(self, why: str) -> NotCompiled:
        """The error for a node."""
        return NotCompiled(
            f"the network must consist of operators that a native program has, got {self.node.target} ({self.node.name}): "
            f"{why}. Run it by Python."
        )

    def _elements(self, node: fx.Node, kind: str, args: Any, kwargs: Any) -> Value:
        fake = fake_of(node)
        shape, dtype = self.shape_of(node), fake.dtype
        operands = list(args)
        if kind == "clamp":
            operands += [kwargs[name] for name in ("min", "max") if name in kwargs]
        tensors = [one.dtype for one in operands if isinstance(one, (View, Formula, Tensor))]
        inner = next(iter(tensors), dtype)  # comparisons have operands of another type than their result
        for one in tensors:
            inner = torch.promote_types(inner, one) if kind != "where" else dtype
        if kind in ("_to_copy", "where", "masked_fill", "masked_fill_", "clamp", "nan_to_num"):
            inner = dtype
        if kind in ("add", "sub") and kwargs.get("alpha", 1) != 1:
            raise self.refuse("alpha is not 1")
        if formula(kind, ["a"] * 4, inner, kwargs) is None:
            raise self.refuse("it is unknown")

        def write(names: Sequence[str], lines: Lines) -> str:
            texts = []
            for place, one in enumerate(operands):
                if one is None:
                    texts.append(None)
                    continue
                is_mask = place == (0 if kind == "where" else 1) and kind in ("where", "masked_fill", "masked_fill_")
                if isinstance(one, (int, float)):
                    texts.append(number(one, inner))
                else:
                    text = self.element(one, names, lines)
                    texts.append(text if is_mask or one.dtype == inner else f"({TYPES[inner]}){text}")
            texts = [text if text is None else f"({text})" for text in texts]
            made = formula(kind, texts, inner, {k: number(v, inner) for k, v in kwargs.items() if isinstance(v, (int, float))})
            return f"({TYPES[dtype]})({made})"

        if kind == "pow" and isinstance(operands[1], (int, float)):
            two = operands[1] == 2
            operands[1] = 2.0 if two else operands[1]

            def write(names: Sequence[str], lines: Lines) -> str:  # noqa: F811
                base = self.element(operands[0], names, lines)
                return f"{base} * {base}" if two else f"pow{'f' if dtype == torch.float32 else ''}({base}, {number(operands[1], dtype)})"

        reads = [buffer for one in operands for buffer in self.reads_of(one)]
        return self.kept(node, Formula(shape, dtype, write, reads))

    def kept(self, node: fx.Node, value: Formula) -> Value:
        """A formula, stored unless one operator of elements alone reads it."""
        users = [user for user in node.users if not str(user.target).startswith("aten.sym_size")]
        if len(users) == 1 and users[0].op == "call_function":
            kind = str(users[0].target).split(".")[1] if str(users[0].target).startswith("aten.") else ""
            if not hasattr(self, f"_{kind}") and formula(kind, ["a"] * 4, value.dtype, {}) is not None:
                return value
        return self.stored(value)

    # ---- tensors without numbers of their own -----------------------------------------------------------------------

    def _filled(self, node: fx.Node, value: Any) -> Formula:
        dtype = fake_of(node).dtype
        return Formula(self.shape_of(node), dtype, lambda names, lines: number(value, dtype))

    def _new_zeros(self, node: fx.Node, *args: Any, **kwargs: Any) -> Formula:
        return self._filled(node, 0)

    def _new_ones(self, node: fx.Node, *args: Any, **kwargs: Any) -> Formula:
        return self._filled(node, 1)

    _zeros_like = _new_empty = _new_zeros
    _ones_like = _new_ones

    def _new_full(self, node: fx.Node, _: Any, __: Any, value: Any, **kwargs: Any) -> Formula:
        return self._filled(node, value)

    def _scalar_tensor(self, node: fx.Node, value: Any, **kwargs: Any) -> Formula:
        return self._filled(node, value)

    def _arange(self, node: fx.Node, *args: Any, **kwargs: Any) -> Formula:
        if len(args) != 1:
            raise self.refuse("it has a start")
        return Formula(self.shape_of(node), fake_of(node).dtype, lambda names, lines: names[0])

    # ---- views ------------------------------------------------------------------------------------------------------

    def _view(self, node: fx.Node, value: Any, *_: Any) -> Value:
        shape = self.shape_of(node)
        view = self.stored(value)
        strides = strides_of(view.shape, view.strides, shape)
        if strides is None:
            view = self.packed(view)
            strides = steps(shape)
        return View(view.buffer, view.offset, shape, strides)

    __unsafe_view = _view
    _reshape = _view

    def _expand(self, node: fx.Node, value: Any, *_: Any, **kwargs: Any) -> Value:
        shape = self.shape_of(node)
        if isinstance(value, Formula) and not value.reads:
            return Formula(shape, value.dtype, lambda names, lines: self.element(value, names, lines))
        view = self.stored(value)
        lead = len(shape) - len(view.shape)
        strides = [0] * lead + [
            0 if old == 1 and new != 1 else stride
            for old, new, stride in zip(view.shape, shape[lead:], view.strides, strict=True)
        ]
        return View(view.buffer, view.offset, shape, strides)

    def _permuted(self, value: Any, order: Sequence[int]) -> View:
        view = self.stored(value)
        return View(view.buffer, view.offset, [view.shape[a] for a in order], [view.strides[a] for a in order])

    def _t(self, node: fx.Node, value: Any) -> View:
        return self._permuted(value, range(len(fake_of(node).shape))[::-1])

    def _transpose(self, node: fx.Node, value: Any, first: int, second: int) -> View:
        order = list(range(fake_of(node).ndim))
        order[first], order[second] = order[second], order[first]
        return self._permuted(value, order)

    def _permute(self, node: fx.Node, value: Any, order: Sequence[int]) -> View:
        return self._permuted(value, [axis % len(order) for axis in order])

    def _unsqueeze(self, node: fx.Node, value: Any, axis: int) -> View:
        view = self.stored(value)
        axis %= len(view.shape) + 1
        shape, strides = list(view.shape), list(view.strides)
        shape.insert(axis, 1)
        strides.insert(axis, 0)
        return View(view.buffer, view.offset, shape, strides)

    def _squeeze(self, node: fx.Node, value: Any, axis: int) -> View:
        view = self.stored(value)
        keep = [number for number in range(len(view.shape)) if number != axis % len(view.shape) or view.shape[number] != 1]
        return View(view.buffer, view.offset, [view.shape[n] for n in keep], [view.strides[n] for n in keep])

    def _slice(self, node: fx.Node, value: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> View:
        view = self.stored(value)
        size, start = view.shape[axis], 0 if start is None else start
        start = start + size if start < 0 else start
        strides = list(view.strides)
        strides[axis] *= step
        return View(view.buffer, view.offset + start * view.strides[axis], self.shape_of(node), strides)

    def _select(self, node: fx.Node, value: Any, axis: int, index: int) -> View:
        return self._selected(self.stored(value), axis, index)

    def _selected(self, view: View, axis: int, index: int) -> View:
        axis %= len(view.shape)
        index = index + view.shape[axis] if index < 0 else index
        drop: Callable[[list[int]], list[int]] = lambda listed: listed[:axis] + listed[axis + 1 :]  # noqa: E731
        offset = view.offset + index * view.strides[axis]
        return View(view.buffer, offset, drop(view.shape), drop(view.strides))

    def _unbind(self, node: fx.Node, value: Any, axis: int = 0) -> list[View]:
        view = self.stored(value)
        return [self._selected(view, axis, index) for index in range(len(node.meta["val"]))]

    def _split(self, node: fx.Node, value: Any, _: Any, axis: int = 0) -> list[View]:
        view, start, made = self.stored(value), 0, []
        axis %= len(view.shape)
        for fake in node.meta["val"]:
            shape = self.shape_of(fake)
            made.append(View(view.buffer, view.offset + start * view.strides[axis], shape, list(view.strides)))
            start += shape[axis]
        return made

    _split_with_sizes = _split

    # ---- joined tensors ---------------------------------------------------------------------------------------------

    def _cat(self, node: fx.Node, values: Sequence[Any], axis: int = 0) -> Value:
        out, start = self.new(self.shape_of(node), fake_of(node).dtype), 0
        axis %= len(out.shape)
        for value in values:
            shape = list(value.shape)
            self.fill(View(out.buffer, start * out.strides[axis], shape, out.strides), value)
            start += shape[axis]
        return out

    def _stack(self, node: fx.Node, values: Sequence[Any], axis: int = 0) -> Value:
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        for index, value in enumerate(values):
            self.fill(self._selected(out, axis, index), value)
        return out

    def _slice_backward(
        self, node: fx.Node, value: Any, _: Any, axis: int, start: Any, end: Any, step: int
    ) -> Value:
        shape, dtype = self.shape_of(node), fake_of(node).dtype
        size, count = shape[axis], value.shape[axis]
        if step != 1:
            raise self.refuse("its step is not 1")
        start = start + size if start < 0 else start
        if count == size:
            return value
        out = self.new(shape, dtype)
        self.fill(out, 0 if not dtype.is_floating_point else 0.0)
        self.fill(View(out.buffer, start * out.strides[axis], list(value.shape), out.strides), value)
        return out

    def _select_backward(self, node: fx.Node, value: Any, _: Any, axis: int, index: int) -> Value:
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        if out.shape[axis] != 1:
            self.fill(out, 0.0)
        self.fill(self._selected(out, axis, index), value)
        return out

    # ---- rows by index ----------------------------------------------------------------------------------------------

    def _rows(self, node: fx.Node, table: Any, index: Any) -> Value:
        source, where = self.stored(table), self.stored(index)
        lead = len(where.shape)

        def write(names: Sequence[str], lines: Lines) -> str:
            row = self.at(where, names[:lead], lines)
            terms = [text_of(source.offset)] if source.offset else []
            rest = [row, *names[lead:]]
            terms += [f"{name} * {text_of(stride)}" for name, stride in zip(rest, source.strides, strict=True)]
            return f"{source.buffer.name}[{' + '.join(terms)}]"

        reads = [source.buffer, where.buffer]
        return self.kept(node, Formula(self.shape_of(node), fake_of(node).dtype, write, reads))

    def _index(self, node: fx.Node, table: Any, index: Sequence[Any]) -> Value:
        if len(index) != 1 or index[0] is None:
            raise self.refuse("it has several indices")
        return self._rows(node, table, index[0])

    def _index_select(self, node: fx.Node, table: Any, axis: int, index: Any) -> Value:
        if axis:
            raise self.refuse("it takes columns")
        return self._rows(node, table, index)

    def _embedding(self, node: fx.Node, table: Any, index: Any, *_: Any) -> Value:
        return self._rows(node, table, index)

    def _index_add(self, node: fx.Node, to: Any, axis: int, index: Any, rows: Any) -> Value:
        if axis:
            raise self.refuse("it adds columns")
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        self.fill(out, to)
        self._scatter(out, self.stored(index), rows, "{0} += {1};")
        return out

    def _scatter_reduce(self, node: fx.Node, to: Any, axis: int, index: Any, rows: Any, how: str, **kwargs: Any) -> Value:
        if axis or how != "amax":
            raise self.refuse("it is no largest value of rows")
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        self.fill(out, to)
        self._scatter(out, self.stored(index), rows, "if ({1} > {0} || {1} != {1}) {0} = {1};")
        return out

    def _scatter(self, out: View, index: View, rows: Any, how: str) -> None:
        lines, names = Lines(), [f"i{axis}" for axis in range(len(rows.shape))]
        text = lines.local(rows.dtype, self.element(rows, names, lines))
        row = lines.local(torch.int64, self.at(index, names[: len(index.shape)], lines))
        to = self.at(out, [row, *names[1:]], lines)
        loops = "".join(
            f"for (int64_t {name} = 0; {name} < {text_of(size)}; {name}++) "
            for name, size in zip(names, rows.shape, strict=True)
        )
        body = " ".join([*lines.lines, how.format(to, text)])
        self.add(f"{loops}{{ {body} }}", [*self.reads_of(rows), index.buffer, out.buffer], [out.buffer], "loop")

    # ---- sums and products of matrices ------------------------------------------------------------------------------

    def _sum(self, node: fx.Node, value: Any, axes: Sequence[int] | None = None, keepdim: bool = False, **kwargs: Any) -> Any:
        if axes is None:
            return self._filled(node, math.nan)  # the sum of all energies, which is differentiated and not read
        return self._reduced(node, value, axes, keepdim, "s += {0};", "s")

    def _mean(self, node: fx.Node, value: Any, axes: Sequence[int], keepdim: bool = False, **kwargs: Any) -> Value:
        count = math.prod(value.shape[axis] for axis in axes)
        return self._reduced(node, value, axes, keepdim, "s += {0};", f"s / {text_of(count)}")

    def _linalg_vector_norm(
        self, node: fx.Node, value: Any, order: float = 2, axes: Any = None, keepdim: bool = False, **kwargs: Any
    ) -> Value:
        if order != 2 or axes is None:
            raise self.refuse("it is no root of a sum of squares along axes")
        end = "f" if fake_of(node).dtype == torch.float32 else ""
        return self._reduced(node, value, axes, keepdim, "s += {0} * {0};", f"sqrt{end}(s)")

    def _reduced(self, node: fx.Node, value: Any, axes: Sequence[int], keepdim: bool, each: str, end: str) -> Value:
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        axes = [axis % len(value.shape) for axis in axes]
        names = [f"i{axis}" for axis in range(len(value.shape))]
        lines, to = Lines(), Lines()
        text = lines.local(value.dtype, self.element(value, names, lines))
        kept = [name for axis, name in enumerate(names) if keepdim or axis not in axes]

        def loop(chosen: Sequence[int]) -> str:
            return "".join(
                f"for (int64_t {names[axis]} = 0; {names[axis]} < {text_of(value.shape[axis])}; {names[axis]}++) "
                for axis in chosen
            )

        inner = f"{loop(axes)}{{ {' '.join(lines.lines)} {each.format(text)} }}"
        target = self.at(out, kept, to)
        outer = loop([axis for axis in range(len(names)) if axis not in axes])
        body = f"{outer}{{ {TYPES[out.dtype]} s = 0; {inner} {target} = {end}; }}"
        self.add(body, self.reads_of(value), [out.buffer], "loop")
        return out

    def _mm(self, node: fx.Node, rows: Any, weight: Any) -> Value:
        if not isinstance(weight, Tensor):
            raise self.refuse("both operands depend on the structure")
        dtype = fake_of(node).dtype
        a = self.stored(rows)
        if a.strides[1] != 1 and a.shape[1] != 1:
            a = self.packed(a)
        out = self.new(self.shape_of(node), dtype)
        panels = self.stored(in_panels(weight))
        start = f"{a.buffer.name} + {text_of(a.offset)}"
        self.add(
            f"gemm_{TYPES[dtype]}({start}, {text_of(a.strides[0])}, {out.buffer.name}, {text_of(a.shape[0])}, "
            f"{panels.buffer.name}, {weight.shape[0]}, {weight.shape[1]});",
            [a.buffer, panels.buffer],
            [out.buffer],
            "matrix",
        )
        return out


#: Bytes of the vectors that weights of matrices are packed for; the compiler divides them where the processor's are
#: shorter.
VECTOR = 64


def in_panels(weight: Tensor) -> Tensor:
    """Weights ``[K, N]`` as panels of two vectors of columns, ``[N / columns, K, columns]``, filled up with zeros."""
    columns = 2 * VECTOR // weight.itemsize
    k, n = weight.shape
    full = weight.new_zeros(k, -(-n // columns) * columns)
    full[:, :n] = weight
    return full.view(k, -1, columns).permute(1, 0, 2).contiguous()


def strides_of(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """Strides of a view of other sizes; None if elements would have to be moved."""
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    made: list[int] = []
    for size in new:
        if size == 1:
            made.append(0)
            continue
        have = 1
        while have < size:  # merge axes that follow one another, or divide one
            if not old:
                return None
            length, stride = old.pop(0)
            if have > 1 and last != length * stride:
                return None
            need = size // have
            if size % have:
                return None
            if length > need:
                if length % need:
                    return None
                old.insert(0, (length // need, stride))
                length, stride = need, stride * (length // need)
            have, last = have * length, stride
        made.append(last)
    return made
