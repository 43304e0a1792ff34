r"""Whole tensor products and convolutions as torch operators, with derivatives of every order.

The form :math:`F(x, y, w, g) = \sum z g` is linear in each of its four operands. Its gradients are one operator, the
derivative of those along tangents another; a third derivative is made of the first two, pair by pair of operands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eqlayers_kernels.c.edges import tables

from ..backends.cpu import edge_tables, receivers_of, run_form
from ..ops.form import Request, find_form

_NAMES = ("x", "y", "w", "z")
_library = torch.library.Library("eqlayers", "DEF")
_library.define("form(Tensor x, Tensor y, Tensor w, Tensor? graph, str key) -> Tensor")
_library.define(
    "form_backward(Tensor x, Tensor y, Tensor w, Tensor g, Tensor? graph, str key, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "form_double_backward(Tensor x, Tensor y, Tensor w, Tensor g, Tensor? dx, Tensor? dy, Tensor? dw, Tensor? graph, "
    "str key, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define("edge_tables(Tensor edge_index, SymInt num_src, SymInt num_dst) -> Tensor")
_form, _backward, _double, _tables = (
    getattr(torch.ops.eqlayers, name).default
    for name in ("form", "form_backward", "form_double_backward", "edge_tables")
)


# -- what runs on CPU tensors -----------------------------------------------------------------------------------------


def _run_form(x: Tensor, y: Tensor, w: Tensor, graph: Tensor | None, key: str) -> Tensor:
    return run_form(key, Request(0, ("z",)), {"x": x, "y": y, "w": w}, graph)["z"]


def _run_backward(
    x: Tensor, y: Tensor, w: Tensor, g: Tensor, graph: Tensor | None, key: str, wanted: list[bool]
) -> tuple[Tensor, ...]:
    results = tuple(name for name, want in zip(_NAMES, wanted, strict=False) if want)
    found = run_form(key, Request(1, results), {"x": x, "y": y, "w": w, "g": g}, graph) if results else {}
    return tuple(found[name] if name in found else x.new_empty(0) for name in _NAMES[:3])


def _run_double(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    g: Tensor,
    dx: Tensor | None,
    dy: Tensor | None,
    dw: Tensor | None,
    graph: Tensor | None,
    key: str,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    results = tuple(name for name, want in zip(_NAMES, wanted, strict=True) if want)
    tangents = {name: t for name, t in (("x", dx), ("y", dy), ("w", dw)) if t is not None}
    tensors = {"x": x, "y": y, "w": w, "g": g} | {f"d{name}": t for name, t in tangents.items()}
    found = run_form(key, Request(2, results, tuple(tangents)), tensors, graph) if results else {}
    return tuple(found[name] if name in found else x.new_empty(0) for name in _NAMES)


# -- shapes, for tracing ----------------------------------------------------------------------------------------------


def _fake_form(x: Tensor, y: Tensor, w: Tensor, graph: Tensor | None, key: str) -> Tensor:
    rows = x.shape[0] if graph is None else receivers_of(graph, x.shape[0], y.shape[0])
    return x.new_empty(rows, find_form(key).program.widths[3])


def _fake_backward(
    x: Tensor, y: Tensor, w: Tensor, g: Tensor, graph: Tensor | None, key: str, wanted: list[bool]
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(t.shape if want else 0) for t, want in zip((x, y, w), wanted, strict=True))


def _fake_double(x: Tensor, y: Tensor, w: Tensor, g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(t.shape if want else 0) for t, want in zip((x, y, w, g), rest[-1], strict=True))


def _fake_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    length = tables(edge_index.shape[1], num_src, num_dst).length
    return edge_index.new_empty(length, dtype=torch.int64)


# -- derivatives ------------------------------------------------------------------------------------------------------


class _Form(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor, graph: Tensor | None, key: str) -> Tensor:
        ctx.save_for_backward(x, y, w, graph)
        ctx.key = key
        with torch._C._AutoDispatchBelowAutograd():
            return _form(x, y, w, graph, key)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x, y, w, graph = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        found = _backward(x, y, w, grads[0], graph, ctx.key, wanted)
        return (*(g if want else None for g, want in zip(found, wanted, strict=True)), None, None)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor, g: Tensor, graph: Any, key: str, wanted: Any) -> Any:
        ctx.save_for_backward(x, y, w, g, graph)
        ctx.key, ctx.wanted = key, wanted
        ctx.set_materialize_grads(False)
        with torch._C._AutoDispatchBelowAutograd():
            found = _backward(x, y, w, g, graph, key, wanted)
        ctx.mark_non_differentiable(*(t for t, want in zip(found, wanted, strict=True) if not want))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x, y, w, g, graph = ctx.saved_tensors
        dx, dy, dw = (t if want else None for t, want in zip(grads, ctx.wanted, strict=True))
        wanted = list(ctx.needs_input_grad[:4])
        if dx is None and dy is None and dw is None:
            return (None,) * 7
        found = _double(x, y, w, g, dx, dy, dw, graph, ctx.key, wanted)
        return (*(t if want else None for t, want in zip(found, wanted, strict=True)), None, None, None)


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        w: Tensor,
        g: Tensor,
        dx: Any,
        dy: Any,
        dw: Any,
        graph: Any,
        key: str,
        wanted: Any,
    ) -> Any:
        ctx.save_for_backward(x, y, w, g, dx, dy, dw, graph)
        ctx.key, ctx.wanted = key, wanted
        ctx.set_materialize_grads(False)
        with torch._C._AutoDispatchBelowAutograd():
            found = _double(x, y, w, g, dx, dy, dw, graph, key, wanted)
        ctx.mark_non_differentiable(*(t for t, want in zip(found, wanted, strict=True) if not want))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """The sum of F over all pairs of a tangent's and a cotangent's place, differentiated term by term."""
        x, y, w, g, dx, dy, dw, graph = ctx.saved_tensors
        primal, tangent = (x, y, w, g), (dx, dy, dw)
        needs = ctx.needs_input_grad
        out: list[Tensor | None] = [None] * 7
        for a, along in enumerate(tangent):
            for b, cotangent in enumerate(grads):
                if along is None or cotangent is None or not ctx.wanted[b] or a == b:
                    continue
                key = find_form(ctx.key).weighted.key if 2 in (a, b) else ctx.key  # F of other paths has no w
                places = list(primal)
                places[a], places[b] = along, cotangent
                targets = {slot: 4 + slot if slot == a else slot for slot in range(4) if slot != b}
                wanted = {slot for slot, target in targets.items() if needs[target]}
                found: list[Any] = [None] * 4
                if wanted & {0, 1, 2}:
                    found[:3] = _backward(*places, graph, key, [slot in wanted for slot in range(3)])
                if 3 in wanted:
                    found[3] = _form(*places[:3], graph, key)
                for slot in wanted:
                    known = out[targets[slot]]
                    out[targets[slot]] = found[slot] if known is None else known + found[slot]
        return (*out, None, None, None)


for _name, _implementation, _fake, _function in (
    ("form", _run_form, _fake_form, _Form),
    ("form_backward", _run_backward, _fake_backward, _Backward),
    ("form_double_backward", _run_double, _fake_double, _Double),
    ("edge_tables", edge_tables, _fake_tables, None),
):
    _library.impl(_name, _implementation, "CPU")
    torch.library.register_fake(f"eqlayers::{_name}", _fake, lib=_library)
    if _function is not None:
        _library.impl(_name, _function.apply, "Autograd")


def apply_form(x: Tensor, y: Tensor, w: Tensor, graph: Tensor | None, key: str) -> Tensor:
    """Run the form of that key.

    Args:
        x, y: ``[N, width]``. With a graph x has a row per sender and y per edge.
        w: ``[N, width]``, or ``[width]`` shared by all rows.
        graph: None, or the sorted edges of a graph.
        key: Of a :class:`eqlayers.ops.form.Form`.

    Returns:
        ``[N, width]``; with a graph a row per receiver.
    """
    return _form(x, y, w, graph, key)


def sorted_edges(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """The edges sorted by receiver and by sender, in one ``int64`` tensor.

    Raises:
        IndexRangeError: An index lies outside its nodes.
    """
    return _tables(edge_index, num_src, num_dst)
