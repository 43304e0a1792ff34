r"""Whole tensor products and convolutions as torch operators, with derivatives of every order.

The form :math:`F(x, y, w, g) = \sum z g` is linear in each of its four operands. Its gradients are one operator, the
derivative of those along tangents another; a third derivative is made of the first two, pair by pair of operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

from ..backends.forms import BY_DEVICE, edge_tables, length_of, run_form
from ..backends.operands import check_operands, check_wanted
from ..ops.form import Form, How, Request, find_form, text_of, weighted_key
from ..ops.tracing import seen_by_outer_levels, traced_for_others
from .form_vmap import RULES

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


# -- what runs --------------------------------------------------------------------------------------------------------


def _run_form(x: Tensor, y: Tensor, w: Tensor, graph: Tensor | None, key: str) -> Tensor:
    return run_form(key, Request(0, ("z",)), {"x": x, "y": y, "w": w}, graph)["z"]


def _run_backward(
    x: Tensor, y: Tensor, w: Tensor, g: Tensor, graph: Tensor | None, key: str, wanted: list[bool]
) -> tuple[Tensor, ...]:
    check_wanted(wanted, _NAMES[:3])
    results = tuple(name for name, want in zip(_NAMES, wanted, strict=False) if want)
    found = run_form(key, Request(1, results), {"x": x, "y": y, "w": w, "g": g}, graph)
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
    check_wanted(wanted, _NAMES)
    results = tuple(name for name, want in zip(_NAMES, wanted, strict=True) if want)
    tensors = {"x": x, "y": y, "w": w, "g": g} | _tangents(dx, dy, dw)
    found = run_form(key, Request(2, results, tuple(name[1] for name in tensors if len(name) > 1)), tensors, graph)
    return tuple(found[name] if name in found else x.new_empty(0) for name in _NAMES)


def _tangents(dx: Tensor | None, dy: Tensor | None, dw: Tensor | None) -> dict[str, Tensor]:
    return {name: t for name, t in (("dx", dx), ("dy", dy), ("dw", dw)) if t is not None}


# -- shapes, for tracing ----------------------------------------------------------------------------------------------


def _fake_form(x: Tensor, y: Tensor, w: Tensor, graph: Tensor | None, key: str) -> Tensor:
    widths = find_form(key).program.widths
    return x.new_empty(check_operands(widths, {"x": x, "y": y, "w": w}, graph)["z"], widths[3])


def _fake_backward(
    x: Tensor, y: Tensor, w: Tensor, g: Tensor, graph: Tensor | None, key: str, wanted: list[bool]
) -> tuple[Tensor, ...]:
    check_wanted(wanted, _NAMES[:3])
    check_operands(find_form(key).program.widths, {"x": x, "y": y, "w": w, "g": g}, graph)
    return tuple(x.new_empty(t.shape if want else 0) for t, want in zip((x, y, w), wanted, strict=True))


def _fake_double(
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
    check_wanted(wanted, _NAMES)
    check_operands(find_form(key).program.widths, {"x": x, "y": y, "w": w, "g": g} | _tangents(dx, dy, dw), graph)
    return tuple(x.new_empty(t.shape if want else 0) for t, want in zip((x, y, w, g), wanted, strict=True))


def _fake_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    return edge_index.new_empty(length_of(edge_index, num_src, num_dst), dtype=torch.int64)


# -- derivatives ------------------------------------------------------------------------------------------------------
# These functions stand at the key Autograd of the operators, so torch.func has taken its own wrappers off before they
# run: they belong to one level of it, which is what the base class says. (autograd.Function would want setup_context,
# which costs a plain call more than the rest of its overhead.)


class _Form(_SingleLevelFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor, graph: Tensor | None, key: str) -> Tensor:
        ctx.save_for_backward(x, y, w, graph)
        ctx.save_for_forward(x, y, w, graph)
        ctx.key = key
        return _below(_form, x, y, w, graph, key)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x, y, w, graph = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        found = _backward(x, y, w, grads[0], graph, ctx.key, wanted)
        return (*(g if want else None for g, want in zip(found, wanted, strict=True)), None, None)

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> Any:
        *primal, graph = ctx.saved_tensors
        return _along(primal, tangents[:3], graph, ctx.key)


class _Backward(_SingleLevelFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor, g: Tensor, graph: Any, key: str, wanted: Any) -> Any:
        ctx.save_for_backward(x, y, w, g, graph)
        ctx.save_for_forward(x, y, w, g, graph)
        ctx.key, ctx.wanted = key, wanted
        ctx.set_materialize_grads(False)
        found = _below(_backward, x, y, w, g, graph, key, wanted)
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

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        """Second derivatives are symmetric: the change of the gradients is the gradient of the change."""
        x, y, w, g, graph = ctx.saved_tensors
        out: list[Tensor | None] = [None] * 3
        if any(t is not None for t in tangents[:3]):
            _add(out, _double(x, y, w, g, *tangents[:3], graph, ctx.key, [*ctx.wanted, False]), ctx.wanted)
        if tangents[3] is not None:
            _add(out, _backward(x, y, w, tangents[3], graph, ctx.key, ctx.wanted), ctx.wanted)
        return tuple(out)


class _Double(_SingleLevelFunction):
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
        ctx.save_for_forward(x, y, w, g, dx, dy, dw, graph)
        ctx.key, ctx.wanted = key, wanted
        ctx.set_materialize_grads(False)
        found = _below(_double, x, y, w, g, dx, dy, dw, graph, key, wanted)
        ctx.mark_non_differentiable(*(t for t, want in zip(found, wanted, strict=True) if not want))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        *primal_tangent, graph = ctx.saved_tensors
        primal, tangent = primal_tangent[:4], primal_tangent[4:]
        cotangents = [t if want else None for t, want in zip(grads, ctx.wanted, strict=True)]
        out: list[Tensor | None] = [None] * 7
        for a, b, pair in _pairs(primal, tangent, cotangents, graph, ctx.key):
            targets = [4 + slot if slot == a else slot for slot in range(4)]
            wanted = [slot != b and ctx.needs_input_grad[targets[slot]] for slot in range(4)]
            found = pair(wanted)
            for slot in range(4):
                if wanted[slot]:
                    known = out[targets[slot]]
                    out[targets[slot]] = found[slot] if known is None else known + found[slot]
        return (*out, None, None, None)

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        *primal_tangent, graph = ctx.saved_tensors
        primal, tangent = primal_tangent[:4], primal_tangent[4:]
        out: list[Tensor | None] = [None] * 4
        for a, b, pair in _pairs(primal, tangent, tangents[:4], graph, ctx.key):
            wanted = [want and slot not in (a, b) for slot, want in enumerate(ctx.wanted)]
            _add(out, pair(wanted), wanted)
        if any(t is not None for t in tangents[4:7]):
            _add(out, _double(*primal, *tangents[4:7], graph, ctx.key, ctx.wanted), ctx.wanted)
        return tuple(out)


def _add(out: list[Tensor | None], found: Sequence[Any], wanted: Sequence[bool]) -> None:
    for slot, want in enumerate(wanted):
        if want:
            known = out[slot]
            out[slot] = found[slot] if known is None else known + found[slot]


def _along(primal: Sequence[Tensor], tangents: Sequence[Any], graph: Tensor | None, key: str) -> Tensor | None:
    """The change of z along tangents of x, y and w: F is linear in each."""
    total: Tensor | None = None
    for slot, tangent in enumerate(tangents):
        if tangent is not None:
            places = [tangent if other == slot else t for other, t in enumerate(primal)]
            part = _form(*places, graph, weighted_key(key) if slot == 2 else key)
            total = part if total is None else total + part
    return total


def _pairs(
    primal: Sequence[Tensor], first: Sequence[Any], second: Sequence[Any], graph: Tensor | None, key: str
) -> Iterator[tuple[int, int, Callable[[Sequence[bool]], list[Any]]]]:
    """F with two operands replaced, for all pairs of places: what second derivatives of F are sums of.

    Yields:
        The two places, and a function that gives the wanted gradients of that F: of x, y, w, g.
    """
    for a, along in enumerate(first):
        for b, other in enumerate(second):
            if along is None or other is None or a == b:
                continue
            places = list(primal)
            places[a], places[b] = along, other
            yield a, b, partial(_gradients, places, graph, weighted_key(key) if 2 in (a, b) else key)


def _gradients(places: Sequence[Tensor], graph: Tensor | None, key: str, wanted: Sequence[bool]) -> list[Any]:
    found: list[Any] = [None] * 4
    if any(wanted[:3]):
        found[:3] = _backward(*places, graph, key, list(wanted[:3]))
    if wanted[3]:
        found[3] = _form(*places[:3], graph, key)
    return found


def _below(op: Any, *args: Any) -> Any:
    """The operator below Autograd: the kernel, or the next level of torch.func, which knows what it has to follow."""
    with torch._C._AutoDispatchBelowAutograd():
        if not torch._C._are_functorch_transforms_active():
            return op(*args)
        with torch.enable_grad(), _set_fwd_grad_enabled(True):
            return op(*args)


def _at_autograd(function: Any) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            with enable_single_level_autograd_function():
                return function.apply(*args)
        return function.apply(*args)

    return run


for _name, _implementation, _fake, _function in (
    ("form", _run_form, _fake_form, _Form),
    ("form_backward", _run_backward, _fake_backward, _Backward),
    ("form_double_backward", _run_double, _fake_double, _Double),
    ("edge_tables", edge_tables, _fake_tables, None),
):
    for _device in BY_DEVICE:
        _library.impl(_name, _implementation, _device.upper())
    torch.library.register_fake(f"eqlayers::{_name}", _fake, lib=_library)
    if _function is not None:
        _library.impl(_name, _at_autograd(_function), "Autograd")
for _name, _rule in RULES.items():
    torch.library.register_vmap(f"eqlayers::{_name}", _rule, lib=_library)


def apply_form(
    x: Tensor, y: Tensor, w: Tensor, graph: Tensor | None, form: Form, backend: str = "", deterministic: bool = True
) -> Tensor:
    """Run a form.

    Args:
        x, y: ``[N, width]``. With a graph x has a row per sender and y per edge.
        w: ``[N, width]``, or ``[width]`` shared by all rows.
        graph: None, or the sorted edges of a graph.
        form: The program.
        backend: Name of the backend, empty for that of the device.
        deterministic: Whether sums must have a fixed order.

    Returns:
        ``[N, width]``; with a graph a row per receiver.
    """
    key = text_of(form.key) if traced_for_others() else form.key
    how = How("" if backend == BY_DEVICE.get(x.device.type) else backend, deterministic)
    return _form(x, y, w, graph, how.before(key))


def sorted_edges(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """The edges sorted by receiver and by sender, in one ``int64`` tensor.

    Raises:
        IndexRangeError: An index lies outside its nodes.
    """
    return _tables(edge_index, num_src, num_dst)
