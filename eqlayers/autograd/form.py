r"""Whole forms as torch operators of any number of operands, with derivatives of every order.

The form :math:`F(a_0, a_1, \ldots, g) = \sum z g` is linear in each of its operands. Its gradients are one operator,
the derivative of those along tangents another; a third derivative is made of the first two, pair by pair of operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eqlayers_kernels.writer import Kind

from ..backends.forms import BY_DEVICE, edge_tables, length_of, prepare
from ..backends.operands import check_operands, check_wanted, named_operands
from ..ops.form import find_form, weighted_key
from ..torch_internals import (
    SingleLevelFunction,
    batched_by_grad,
    below_autograd,
    followed,
    seen_by_outer_levels,
    single_level,
)
from .form_vmap import RULES

_library = torch.library.Library("eqlayers", "DEF")
_HOW = 'Tensor? graph, str key, str backend="", bool deterministic=True'
_library.define(f"form(Tensor[] operands, {_HOW}) -> Tensor")
_library.define(f"form_backward(Tensor[] operands, Tensor g, bool[] wanted, {_HOW}) -> Tensor[]")
_library.define(
    f"form_double_backward(Tensor[] operands, Tensor g, Tensor?[] tangents, bool[] wanted, {_HOW}) -> Tensor[]"
)
_library.define("edge_tables(Tensor edge_index, SymInt num_src, SymInt num_dst) -> Tensor")
form_operator, _backward, _double, _tables = (
    getattr(torch.ops.eqlayers, name).default
    for name in ("form", "form_backward", "form_double_backward", "edge_tables")
)
_Tangents = Sequence[Tensor | None]


_VALUE = Kind(0, ("z",))
#: The last arguments of each operator: key, backend and whether sums have a fixed order (the last two if not as usual).
_How = tuple[Any, ...]


def _along(how: _How, replaced: Sequence[int]) -> _How:
    """The form with other vectors in place of these operands: without weights, its paths without weights go."""
    return (weighted_key(how[0]), *how[1:]) if 2 in replaced else how


# -- what runs --------------------------------------------------------------------------------------------------------


def _run_form(operands: Sequence[Tensor], graph: Tensor | None, *how: Any) -> Tensor:
    tensors = named_operands(operands)
    run, rows = prepare(_VALUE, tensors, graph, *how)
    return run(tensors, graph, rows)["z"]


def _run_backward(
    operands: Sequence[Tensor], g: Tensor, wanted: Sequence[bool], graph: Tensor | None, *how: Any
) -> list[Tensor]:
    tensors = named_operands(operands, g)
    results = check_wanted(wanted, tuple(tensors)[:-1])
    run, rows = prepare(Kind(1, results), tensors, graph, *how)
    found = run(tensors, graph, rows)
    return [found[name] for name in results]


def _run_double(
    operands: Sequence[Tensor], g: Tensor, tangents: _Tangents, wanted: Sequence[bool], graph: Tensor | None, *how: Any
) -> list[Tensor]:
    tensors = named_operands(operands, g, tangents)
    results = check_wanted(wanted, (*tuple(tensors)[: len(operands)], "z"))
    moving = tuple(name[1] for name in tensors if len(name) > 1)
    run, rows = prepare(Kind(2, results, moving), tensors, graph, *how)
    found = run(tensors, graph, rows)
    return [found[name] for name in results]


# -- shapes, for tracing ----------------------------------------------------------------------------------------------


def _fake_form(operands: Sequence[Tensor], graph: Tensor | None, key: str, *rest: Any) -> Tensor:
    widths = find_form(key).program.widths
    rows = check_operands(widths, named_operands(operands), graph)
    return operands[0].new_empty(rows["z"], widths[-1])


def _fake_backward(
    operands: Sequence[Tensor], g: Tensor, wanted: Sequence[bool], graph: Tensor | None, key: str, *rest: Any
) -> list[Tensor]:
    tensors = named_operands(operands, g)
    check_wanted(wanted, tuple(tensors)[:-1])
    check_operands(find_form(key).program.widths, tensors, graph)
    return [operands[0].new_empty(t.shape) for t, want in zip(operands, wanted, strict=True) if want]


def _fake_double(
    operands: Sequence[Tensor],
    g: Tensor,
    tangents: _Tangents,
    wanted: Sequence[bool],
    graph: Tensor | None,
    key: str,
    *rest: Any,
) -> list[Tensor]:
    tensors = named_operands(operands, g, tangents)
    check_wanted(wanted, (*tuple(tensors)[: len(operands)], "z"))
    check_operands(find_form(key).program.widths, tensors, graph)
    return [operands[0].new_empty(t.shape) for t, want in zip((*operands, g), wanted, strict=True) if want]


def _fake_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    return edge_index.new_empty(length_of(edge_index, num_src, num_dst), dtype=torch.int64)


# -- derivatives ------------------------------------------------------------------------------------------------------
# These functions stand at the key Autograd of the operators; see SingleLevelFunction. Their tensors come last, because
# there is any number of them.


class _Form(SingleLevelFunction):
    @staticmethod
    def forward(ctx: Any, how: _How, graph: Tensor | None, *operands: Tensor) -> Tensor:
        ctx.save_for_backward(graph, *operands)
        ctx.save_for_forward(graph, *operands)
        ctx.how = how
        with below_autograd():
            return form_operator(operands, graph, *how)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[2:])
        return (None, None, *_placed(_backward(operands, grads[0], wanted, graph, *ctx.how), wanted))

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The sum over the operands with a tangent in place of each: F is linear in all."""
        graph, *operands = ctx.saved_tensors
        total: Tensor | None = None
        for slot, tangent in enumerate(tangents[2:]):
            if tangent is not None:
                moved = [tangent if other == slot else t for other, t in enumerate(operands)]
                part = form_operator(moved, graph, *_along(ctx.how, [slot]))
                total = part if total is None else total + part
        return total


class _Backward(SingleLevelFunction):
    @staticmethod
    def forward(ctx: Any, how: _How, wanted: Any, graph: Tensor | None, *tensors: Tensor) -> Any:
        ctx.save_for_backward(graph, *tensors)
        ctx.save_for_forward(graph, *tensors)
        ctx.how, ctx.wanted = how, wanted
        ctx.set_materialize_grads(False)
        *operands, g = tensors
        with below_autograd():
            return tuple(_backward(operands, g, wanted, graph, *how))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        graph, *operands, g = ctx.saved_tensors
        if all(t is None for t in grads):
            return (None,) * (4 + len(operands))
        wanted = list(ctx.needs_input_grad[3:])
        found = _double(operands, g, _placed(grads, ctx.wanted), wanted, graph, *ctx.how)
        return (None, None, None, *_placed(found, wanted))

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        """Second derivatives are symmetric: the change of the gradients is the gradient of the change."""
        graph, *operands, g = ctx.saved_tensors
        *moving, along_g = tangents[3:]
        out: list[Tensor | None] = [None] * len(operands)
        if any(t is not None for t in moving):
            wanted = [*ctx.wanted, False]
            _add(out, _placed(_double(operands, g, moving, wanted, graph, *ctx.how), wanted))
        if along_g is not None:
            _add(out, _placed(_backward(operands, along_g, ctx.wanted, graph, *ctx.how), ctx.wanted))
        return tuple(t for t, want in zip(out, ctx.wanted, strict=True) if want)


class _Double(SingleLevelFunction):
    @staticmethod
    def forward(ctx: Any, how: _How, wanted: Any, graph: Tensor | None, *tensors: Any) -> Any:
        ctx.save_for_backward(graph, *tensors)
        ctx.save_for_forward(graph, *tensors)
        ctx.how, ctx.wanted = how, wanted
        ctx.set_materialize_grads(False)
        primal, tangents = _halves(tensors)
        with below_autograd():
            return tuple(_double(primal[:-1], primal[-1], tangents, wanted, graph, *how))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        graph, *tensors = ctx.saved_tensors
        primal, tangents = _halves(tensors)
        out: list[Tensor | None] = [None] * len(tensors)
        for a, b, gradients in _pairs(primal, tangents, _placed(grads, ctx.wanted), graph, ctx.how):
            targets = [len(primal) + slot if slot == a else slot for slot in range(len(primal))]
            wanted = [slot != b and ctx.needs_input_grad[3 + target] for slot, target in enumerate(targets)]
            for target, found in zip(targets, gradients(wanted), strict=True):
                if found is not None:
                    known = out[target]
                    out[target] = found if known is None else known + found
        return (None, None, None, *out)

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        graph, *tensors = ctx.saved_tensors
        primal, first = _halves(tensors)
        along, moving = _halves(tangents[3:])
        out: list[Tensor | None] = [None] * len(primal)
        for a, b, gradients in _pairs(primal, first, along, graph, ctx.how):
            _add(out, gradients([want and slot not in (a, b) for slot, want in enumerate(ctx.wanted)]))
        if any(t is not None for t in moving):
            found = _double(primal[:-1], primal[-1], moving, ctx.wanted, graph, *ctx.how)
            _add(out, _placed(found, ctx.wanted))
        pairs = zip(out, primal, ctx.wanted, strict=True)
        return tuple(torch.zeros_like(like) if t is None else t for t, like, want in pairs if want)


def _placed(found: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """What was found, each in its place among all; None elsewhere."""
    given = iter(found)
    return [next(given) if want else None for want in wanted]


def _halves(tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Operands with their cotangent g, and the tangents of the operands alone."""
    count = len(tensors) // 2
    return list(tensors[: count + 1]), list(tensors[count + 1 :])


def _add(out: list[Tensor | None], found: Sequence[Any]) -> None:
    for slot, value in enumerate(found):
        if value is not None:
            known = out[slot]
            out[slot] = value if known is None else known + value


def _pairs(
    primal: Sequence[Tensor], first: Sequence[Any], second: Sequence[Any], graph: Tensor | None, how: _How
) -> Iterator[tuple[int, int, Callable[[Sequence[bool]], list[Any]]]]:
    """F with two operands replaced, for all pairs of places: what second derivatives of F are sums of.

    Yields:
        The two places, and a function that gives the wanted gradients of that F, in their places.
    """
    for a, along in enumerate(first):
        for b, other in enumerate(second):
            if along is None or other is None or a == b:
                continue
            places = list(primal)
            places[a], places[b] = along, other
            yield a, b, partial(_gradients, places, graph, _along(how, [a, b]))


def _gradients(places: Sequence[Tensor], graph: Tensor | None, how: _How, wanted: Sequence[bool]) -> list[Any]:
    *operands, g = places
    *inputs, last = wanted
    found = _placed(_backward(operands, g, inputs, graph, *how), inputs) if any(inputs) else [None] * len(inputs)
    return [*found, form_operator(operands, graph, *how) if last else None]


def _follow_form(operands: Sequence[Tensor], graph: Tensor | None, *how: Any) -> Tensor:
    if not followed(operands):
        with below_autograd():
            return form_operator(operands, graph, *how)
    with single_level():
        return _Form.apply(how, graph, *operands)


def _follow_backward(
    operands: Sequence[Tensor], g: Tensor, wanted: Sequence[bool], graph: Tensor | None, *how: Any
) -> list[Tensor]:
    if not any(wanted):  # a Function has results
        with below_autograd():
            return _backward(operands, g, wanted, graph, *how)
    with single_level():
        return list(_Backward.apply(how, wanted, graph, *operands, g))


def _follow_double(
    operands: Sequence[Tensor], g: Tensor, tangents: _Tangents, wanted: Sequence[bool], graph: Tensor | None, *how: Any
) -> list[Tensor]:
    if not any(wanted) or len(tangents) != len(operands):  # which the kernel refuses
        with below_autograd():
            return _double(operands, g, tangents, wanted, graph, *how)
    with single_level():
        return list(_Double.apply(how, wanted, graph, *operands, g, *tangents))


for _name, _implementation, _fake, _follow in (
    ("form", _run_form, _fake_form, _follow_form),
    ("form_backward", _run_backward, _fake_backward, _follow_backward),
    ("form_double_backward", _run_double, _fake_double, _follow_double),
    ("edge_tables", edge_tables, _fake_tables, None),
):
    for _device in BY_DEVICE:
        _library.impl(_name, _implementation, _device.upper())
    torch.library.register_fake(f"eqlayers::{_name}", _fake, lib=_library)
    if _follow is not None:
        _library.impl(_name, _follow, "Autograd")
for _name, _rule in RULES.items():
    torch.library.register_vmap(f"eqlayers::{_name}", _rule, lib=_library)
    _library.impl(_name, batched_by_grad(getattr(torch.ops.eqlayers, _name).default, _rule), "Batched")


def sorted_edges(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """The edges sorted by receiver and by sender, in one ``int64`` tensor.

    Raises:
        IndexRangeError: An index lies outside its nodes.
    """
    return _tables(edge_index, num_src, num_dst)
