"""Operators of torch in a native program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..core.traces.trace import fake_of
from .elements import COMPARE, FORMULAS, formula, number, unread
from .forms import in_panels
from .rows import Rows
from .sizes import ATOMS, never_negative, parts, rows_of, text_of
from .values import TYPES, Elementwise, Lines, Value, View, steps


class Operators(Rows):
    """Values and steps of operators: the method ``_op_name`` is of the operator ``name``."""

    # ---- elements ---------------------------------------------------------------------------------------------------

    def _elements(self, node: fx.Node, kind: str, args: Any, kwargs: Any) -> Value:
        kind = kind.removesuffix("_")
        if kind not in FORMULAS:
            raise self.refuse("it is unknown")
        shape, dtype, operands = self.shape_of(node), fake_of(node).dtype, list(args)
        if (extra := unread(kind, operands, kwargs)) is not None:
            raise self.refuse(f"no formula reads {extra}")
        inner = self._type_of_operands(node, kind, operands)
        if kind == "floor_divide" and inner.is_floating_point:
            raise self.refuse("it divides integers alone")
        divides = kind in ("remainder", "fmod", "floor_divide") and not inner.is_floating_point
        if divides and not (type(args[1]) is int and args[1] > 0):
            raise self.refuse("integers are divided by what may be zero")
        mask = {"where": 0, "masked_fill": 1}.get(kind, -1)
        if kind == "pow" and isinstance(operands[1], (int, float)) and operands[1] == 2:
            kind, operands[1] = "mul", operands[0]

        def write(names: Sequence[str], lines: Lines) -> str:
            texts = []
            for index, one in enumerate(operands):
                if isinstance(one, (int, float)):
                    texts.append(self.number(one, inner))
                    continue
                text = self.element(one, names, lines)
                texts.append(f"({text})" if index == mask or one.dtype == inner else f"(({TYPES[inner]}){text})")
            made = formula(kind, texts, inner)
            return f"({made}) != 0" if dtype is torch.bool else f"({TYPES[dtype]})({made})"

        reads = [buffer for one in operands for buffer in self.reads_of(one)]
        return self.kept(node, Elementwise(shape, dtype, write, reads))

    def _type_of_operands(self, node: fx.Node, kind: str, operands: Sequence[Any]) -> torch.dtype:
        """The type that an operator computes in: of its result, and for truth values of its operands."""
        dtype: torch.dtype = fake_of(node).dtype
        if dtype is not torch.bool:
            return dtype
        if kind in COMPARE:
            first, second = (self.fake(one) for one in node.args[:2])
            both: torch.dtype = torch.result_type(first, second)
            return torch.int64 if both is torch.bool else both
        if kind == "where":
            return torch.int64
        floats = [one.dtype for one in operands if hasattr(one, "dtype") and one.dtype.is_floating_point]
        return max(floats, key=lambda one: one.itemsize, default=torch.int64)

    def fake(self, value: Any) -> Any:
        """The tensor without numbers of an argument of a node, or a number."""
        fake = fake_of(value) if isinstance(value, fx.Node) else value
        return fake if isinstance(fake, (Tensor, bool, int, float)) else 0  # a size

    # ---- tensors without numbers of their own -----------------------------------------------------------------------

    def _filled(self, node: fx.Node, value: Any) -> Elementwise:
        dtype = fake_of(node).dtype
        return Elementwise(self.shape_of(node), dtype, lambda names, lines: number(value, dtype), number=value)

    def _op_new_zeros(self, node: fx.Node, *args: Any, **kwargs: Any) -> Elementwise:
        return self._filled(node, 0)

    def _op_new_ones(self, node: fx.Node, *args: Any, **kwargs: Any) -> Elementwise:
        return self._filled(node, 1)

    _op_zeros = _op_zeros_like = _op_empty = _op_empty_like = _op_new_empty = _op_new_zeros
    _op_ones = _op_ones_like = _op_new_ones

    def _op_new_full(self, node: fx.Node, _: Any, __: Any, value: Any, **kwargs: Any) -> Elementwise:
        return self._filled(node, value)

    def _op_full(self, node: fx.Node, _: Any, value: Any, **kwargs: Any) -> Elementwise:
        return self._filled(node, value)

    _op_full_like = _op_full

    def _op_scalar_tensor(self, node: fx.Node, value: Any, **kwargs: Any) -> Elementwise:
        return self._filled(node, value)

    def _op_arange(self, node: fx.Node, *args: Any, **kwargs: Any) -> Elementwise:
        start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
        shape, dtype = self.shape_of(node), fake_of(node).dtype
        return Elementwise(
            shape, dtype, lambda names, lines: f"{number(start, dtype)} + {number(step, dtype)} * {names[0]}"
        )

    # ---- views ------------------------------------------------------------------------------------------------------

    def _op_view(self, node: fx.Node, value: Any, *_: Any) -> Value:
        shape = self.shape_of(node)
        view = self.stored(value)
        if fake_of(node).dtype != view.dtype:
            raise self.refuse("it reads the bits of numbers of another dtype")
        strides = strides_of(view.shape, view.strides, shape)
        if any(parts(size)[1] > 1 for size in (*view.shape, *shape)) and not (
            view.buffer.by_atom and parts(shape[0])[1] and parts(view.shape[0])[1]
        ):
            self.undivide("it joins the axis of atoms with another")
        if strides is None:
            view = self.packed(view)
            strides = steps(shape)
        return View(view.buffer, view.offset, shape, strides)

    _op__unsafe_view = _op_view
    _op_reshape = _op_view

    def _op_expand(self, node: fx.Node, value: Any, *_: Any, **kwargs: Any) -> Value:
        shape = self.shape_of(node)
        if isinstance(value, Elementwise) and not value.reads:
            return Elementwise(shape, value.dtype, lambda names, lines: self.element(value, names, lines))
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

    def _op_t(self, node: fx.Node, value: Any) -> View:
        return self._permuted(value, range(len(fake_of(node).shape))[::-1])

    def _op_transpose(self, node: fx.Node, value: Any, first: int, second: int) -> View:
        order = list(range(fake_of(node).ndim))
        order[first], order[second] = order[second], order[first]
        return self._permuted(value, order)

    def _op_permute(self, node: fx.Node, value: Any, order: Sequence[int]) -> View:
        return self._permuted(value, [axis % len(order) for axis in order])

    def _op_unsqueeze(self, node: fx.Node, value: Any, axis: int) -> View:
        view = self.stored(value)
        axis %= len(view.shape) + 1
        shape, strides = list(view.shape), list(view.strides)
        shape.insert(axis, 1)
        strides.insert(axis, 0)
        return View(view.buffer, view.offset, shape, strides)

    def _op_squeeze(self, node: fx.Node, value: Any, axes: Any) -> View:
        view = self.stored(value)
        listed = [axis % len(view.shape) for axis in ([axes] if isinstance(axes, int) else axes)]
        keep = [number for number, size in enumerate(view.shape) if number not in listed or size != 1]
        return View(view.buffer, view.offset, [view.shape[n] for n in keep], [view.strides[n] for n in keep])

    def _op_slice(
        self, node: fx.Node, value: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
    ) -> View:
        view = self.stored(value)
        size, start, shape = view.shape[axis], 0 if start is None else start, self.shape_of(node)
        start = start + size if start < 0 else start
        start = max(start, 0) if size < ATOMS // 2 else start
        last = start + (shape[axis] - 1) * step + 1
        self._whole(size, shape[axis])
        if not (never_negative(start) and (shape[axis] == 0 or never_negative(size - last))):
            raise self.refuse("there may be fewer rows")
        strides = list(view.strides)
        strides[axis] *= step
        return View(view.buffer, view.offset + start * view.strides[axis], shape, strides)

    def _op_select(self, node: fx.Node, value: Any, axis: int, index: int) -> View:
        return self._selected(self.stored(value), axis, index)

    def _selected(self, view: View, axis: int, index: int) -> View:
        axis %= len(view.shape)
        self._whole(view.shape[axis])
        index = index + view.shape[axis] if index < 0 else index
        if not (never_negative(index) and never_negative(view.shape[axis] - 1 - index)):
            raise self.refuse("there may be fewer rows")
        drop: Callable[[list[int]], list[int]] = lambda listed: listed[:axis] + listed[axis + 1 :]  # noqa: E731
        offset = view.offset + index * view.strides[axis]
        return View(view.buffer, offset, drop(view.shape), drop(view.strides))

    def _whole(self, size: int, part: int = 0) -> None:
        """Note that a part of the atoms or edges is read by its number."""
        if size != part and parts(size)[:2] != (0, 0):
            self.undivide("it reads some of the atoms or edges by their number")

    def _op_unbind(self, node: fx.Node, value: Any, axis: int = 0) -> list[View]:
        view = self.stored(value)
        return [self._selected(view, axis, index) for index in range(len(node.meta["val"]))]

    def _op_split(self, node: fx.Node, value: Any, _: Any, axis: int = 0) -> list[View]:
        view, start, made = self.stored(value), 0, []
        axis %= len(view.shape)
        self._whole(view.shape[axis])
        for fake in node.meta["val"]:
            shape = self.shape_of(fake)
            made.append(View(view.buffer, view.offset + start * view.strides[axis], shape, list(view.strides)))
            start += shape[axis]
        return made

    _op_split_with_sizes = _op_split

    # ---- joined tensors ---------------------------------------------------------------------------------------------

    def _op_cat(self, node: fx.Node, values: Sequence[Any], axis: int = 0) -> Value:
        out, start = self.new(self.shape_of(node), fake_of(node).dtype), 0
        axis %= len(out.shape)
        self._whole(out.shape[axis], out.shape[axis] if len(values) == 1 else 0)
        for value in values:
            shape = list(value.shape)
            self.fill(View(out.buffer, start * out.strides[axis], shape, out.strides), value)
            start += shape[axis]
        return out

    def _op_stack(self, node: fx.Node, values: Sequence[Any], axis: int = 0) -> Value:
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        for index, value in enumerate(values):
            self.fill(self._selected(out, axis, index), value)
        return out

    def _op_slice_backward(
        self, node: fx.Node, value: Any, _: Any, axis: int, start: Any, end: Any, step: int
    ) -> Value:
        shape, dtype = self.shape_of(node), fake_of(node).dtype
        size, count = shape[axis], value.shape[axis]
        self._whole(size, count)
        if step != 1:
            raise self.refuse("its step is not 1")
        start = max(start + size, 0) if start < 0 else start
        if count == size:
            return value
        out = self.new(shape, dtype)
        self.fill(out, 0 if not dtype.is_floating_point else 0.0)
        self.fill(View(out.buffer, start * out.strides[axis], list(value.shape), out.strides), value)
        return out

    def _op_select_backward(self, node: fx.Node, value: Any, _: Any, axis: int, index: int) -> Value:
        out = self.new(self.shape_of(node), fake_of(node).dtype)
        self._whole(out.shape[axis])
        if out.shape[axis] != 1:
            self.fill(out, 0.0)
        self.fill(self._selected(out, axis, index), value)
        return out

    # ---- products of matrices ---------------------------------------------------------------------------------------

    def _op_mm(self, node: fx.Node, rows: Any, weight: Any) -> Value:
        if not isinstance(weight, Tensor):
            return self._op_bmm(node, rows, weight)
        dtype = fake_of(node).dtype
        a = self.stored(rows)
        if a.strides[1] != 1 and a.shape[1] != 1:
            a = self.packed(a)
        out = self.new(self.shape_of(node), dtype)
        panels = self.stored(in_panels(weight))
        start = f"{a.buffer.name} + {text_of(a.offset)}"
        self.add(
            f"gemm_{TYPES[dtype]}({start}, {text_of(a.strides[0])}, {out.buffer.name}, {rows_of(a.shape[0])}, "
            f"{panels.buffer.name}, {weight.shape[0]}, {weight.shape[1]});",
            [a.buffer, panels.buffer],
            [out.buffer],
            "matrix",
            a.shape[0] * weight.numel(),
        )
        return out

    def _op_bmm(self, node: fx.Node, first: Any, second: Any) -> View:
        """Products of small matrices, both of which depend on the structure, one for each index of the leading axes."""
        out, a, b = self.new(self.shape_of(node), fake_of(node).dtype), self.stored(first), self.stored(second)
        self._whole(a.shape[-1])
        *lead, row, column = names = [f"i{axis}" for axis in range(len(out.shape))]
        lines = Lines()
        left, right = self.at(a, [*lead, row, "k"], lines), self.at(b, [*lead, "k", column], lines)
        loops = self.loops(names, out.shape)
        inner = f"for (int64_t k = 0; k < {text_of(a.shape[-1])}; k++) s += {left} * {right};"
        text = f"{loops}{{ {TYPES[out.dtype]} s = 0; {inner} {self.at(out, names, lines)} = s; }}"
        self.add(text, [a.buffer, b.buffer], [out.buffer], "loop")
        return out

    def _op_addmm(self, node: fx.Node, bias: Any, rows: Any, weight: Any, **kwargs: Any) -> Value:
        if kwargs:
            raise self.refuse("it has factors")
        out = self.stored(self._op_mm(node, rows, weight))
        self.fill(out, bias, add=True)
        return out


def strides_of(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """Strides of a view of other sizes; None if elements would have to be moved."""
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    made: list[int] = []
    for size in new:
        if size == 1:
            made.append(0)
            continue
        have, last = 1, 0
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
