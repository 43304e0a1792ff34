r"""Forms of any number of operands as one torch operator, which is its own derivative of every order.

The gradients of a form, and its derivative along tangents, are forms of more operands
(:mod:`eqlayers_kernels.forms.product`, :mod:`eqlayers_kernels.forms.formula`): the operator differentiates itself by
calling itself with another key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_not
from typing import Any

import torch
from torch import Tensor

from .backends.forms import BY_DEVICE, chosen, edge_tables, find_runner, fits, length_of, place_tables, run_form
from .backends.operands import check_operands, check_places, length_of_places, shape_of, with_table
from .backends.request import Runner
from .forms.description import Description
from .forms.keys import describe, find, text_of
from .graph import Graph
from .torch_internals import (
    SingleLevelFunction,
    asked_for,
    batched_by_grad,
    below_autograd,
    in_forward_mode,
    is_plain,
    on_tape,
    seen_by_outer_levels,
    single_level,
    traced_for_others,
)
from .vmap import form_rule, places_rule, tables_rule

_library = torch.library.Library("eqlayers", "DEF")
_library.define(
    "form(Tensor[] operands, Tensor? graph, SymInt rows, SymInt num_src, SymInt num_dst, str key, "
    'str backend="", bool deterministic=True) -> Tensor[]'
)
_library.define("edge_tables(Tensor edge_index, SymInt num_src, SymInt num_dst) -> Tensor")
_library.define(
    "place_tables(Tensor graph, Tensor edge_index, Tensor place, SymInt num_src, SymInt num_dst, SymInt places)"
    " -> Tensor"
)
_NAMES = ("form", "edge_tables", "place_tables")
form_operator, _tables, _places = (getattr(torch.ops.eqlayers, name).default for name in _NAMES)
#: Form, rows, senders and receivers (and rows of a table), name of the backend, and whether sums have a fixed order.
_How = tuple[Description, Sequence[int], str, bool]


def _fake_form(
    operands: Sequence[Tensor], graph: Tensor | None, rows: int, num_src: int, num_dst: int, key: str, *rest: Any
) -> list[Tensor]:
    form = find(key)
    sizes = with_table(form, operands, (rows, num_src, num_dst))
    check_operands(form, operands, graph, sizes)
    return [operands[0].new_empty(shape_of(one, sizes)) for one in form.results]


def _fake_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    return edge_index.new_empty(length_of(edge_index, num_src, num_dst), dtype=torch.int64)


def _fake_places(graph: Tensor, edge_index: Tensor, place: Tensor, num_src: int, num_dst: int, places: int) -> Tensor:
    check_places(graph, edge_index, place, num_src, num_dst)
    return graph.new_empty(graph.shape[0] + length_of_places(edge_index.shape[1], places, graph.device))


class _Form(SingleLevelFunction):
    """Stands at the key Autograd of the operator; see SingleLevelFunction. Tensors come last: there is any number."""

    @staticmethod
    def forward(ctx: Any, runner: Runner | None, how: _How, graph: Tensor | None, *operands: Tensor) -> Any:
        ctx.save_for_backward(graph, *operands)
        ctx.how = how
        ctx.set_materialize_grads(False)
        if runner is not None:  # what the operator comes to is called at once
            return tuple(runner(operands, graph, how[1]))
        if in_forward_mode():
            ctx.save_for_forward(graph, *operands)
        with below_autograd():
            return tuple(_operator(how[0].key, operands, graph, how))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        has, wanted = tuple(map(is_not, grads, repeat(None))), ctx.needs_input_grad[3:]
        if True not in has or True not in wanted:
            return (None,) * (3 + len(operands))
        wanted = asked_for(ctx, wanted)
        given = grads if all(has) else [g for g in grads if g is not None]
        found = _call(ctx.how[0].gradient(has, wanted), [*operands, *given], graph, ctx.how)
        if all(wanted):
            return (None, None, None, *found)
        rest = iter(found)
        return (None, None, None, *[next(rest) if want else None for want in wanted])

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        moving = [t for t in tangents[3:] if t is not None]
        call = ctx.how[0].along(tuple(t is not None for t in tangents[3:]))
        return tuple(_operator(call.key, [*operands, *moving], graph, ctx.how))


def _operator(key: str, operands: Sequence[Tensor], graph: Tensor | None, how: _How) -> Sequence[Tensor]:
    """The torch operator, which tracers and transforms see."""
    (_, sizes, backend, deterministic) = how
    found: Sequence[Tensor] = form_operator(operands, graph, *sizes[:3], key, backend, deterministic)
    return found


def at_once(
    call: Description,
    operands: Sequence[Tensor],
    graph: Graph | None = None,
    backend: str | None = None,
    deterministic: bool = True,
) -> Sequence[Tensor] | None:
    """Run a form of operands that a kernel reads as they are; None where they need another look, or have no kernel.

    They are looked at here, once: tensors of the right shapes, of one dtype, on one device. Who runs the form is kept
    with it.

    Args:
        call: What to compute.
        operands: In its order, plain: see `is_plain`, which a caller asks before compilers would follow this.
        graph: For operands or results with rows of senders or receivers.
        backend: Name of a backend; None for the best of the operands' device.
        deterministic: Whether sums must have a fixed order.
    """
    if backend is not None and backend not in _RUN_AT_ONCE:
        return None
    first = operands[0]
    sizes: Sequence[int]
    if graph is None:
        each = None if call.batch is None else operands[call.batch]
        sizes = (1 if each is None else each.shape[0] if each.ndim else 0), 0, 0
    else:
        sizes = graph.sizes
    if not fits(call, operands, sizes):
        return None
    device = "cpu" if first.is_cpu else "cuda"
    name = chosen(device, first.dtype, backend, call.program)
    if name not in _RUN_AT_ONCE:
        return None
    tables = None
    if graph is not None:
        if graph.edge_index.device != first.device:
            return None
        tables = graph.tables(sorted_edges, plain=True)
    runner = find_runner(call, name, first, graph is not None, deterministic)
    if on_tape(operands):
        how = call, sizes, "" if name == BY_DEVICE[device] else name, deterministic
        return _Form.apply(runner, how, tables, *operands)
    return runner(operands, tables, sizes)


#: Backends with kernels of forms.
_RUN_AT_ONCE = ("cpu", "triton")


def _call(call: Description, operands: Sequence[Tensor], graph: Tensor | None, how: _How) -> Sequence[Tensor]:
    """A form along the tables of another call: its derivative."""
    _, sizes, backend, deterministic = how
    if is_plain(operands) and fits(call, operands, sizes):
        first = operands[0]
        runner = find_runner(
            call, backend or BY_DEVICE["cpu" if first.is_cpu else "cuda"], first, graph is not None, deterministic
        )
        if on_tape(operands):
            return _Form.apply(runner, (call, *how[1:]), graph, *operands)
        return runner(operands, graph, sizes)
    rows, num_src, num_dst = sizes[:3]
    return call_form(operands, graph, rows, num_src, num_dst, call.key, backend, deterministic)


def call_form(
    operands: Sequence[Tensor],
    graph: Tensor | None,
    rows: int,
    num_src: int,
    num_dst: int,
    key: str,
    backend: str = "",
    deterministic: bool = True,
) -> Sequence[Tensor]:
    """Run the form: directly in eager mode, by the torch operator under tracing; exported graphs get its text."""
    how = rows, num_src, num_dst, key, backend, deterministic
    if not is_plain(operands) or not (operands[0].is_cpu or operands[0].is_cuda):
        if traced_for_others():
            how = rows, num_src, num_dst, text_of(key), backend, deterministic
        found: Sequence[Tensor] = form_operator(operands, graph, *how)
    elif on_tape(operands):
        runner = lambda own, tables, _: run_form(own, tables, *how)  # noqa: E731
        found = _Form.apply(runner, _how(operands, *how), graph, *operands)
    else:
        found = run_form(operands, graph, *how)
    return found


def _how(
    operands: Sequence[Tensor],
    rows: int,
    num_src: int,
    num_dst: int,
    key: str,
    backend: str = "",
    deterministic: bool = True,
) -> _How:
    call = describe(key)
    return call, with_table(call.form, operands, (rows, num_src, num_dst)), backend, deterministic


def _follow(operands: Sequence[Tensor], graph: Tensor | None, *how: Any) -> list[Tensor]:
    if not (in_forward_mode() or on_tape(operands)):
        with below_autograd():
            found: list[Tensor] = form_operator(operands, graph, *how)
            return found
    with single_level():
        return list(_Form.apply(None, _how(operands, *how), graph, *operands))


for _device in ("CPU", "CUDA"):
    _library.impl("form", run_form, _device)
    _library.impl("edge_tables", edge_tables, _device)
    _library.impl("place_tables", place_tables, _device)
_library.impl("form", _follow, "Autograd")
_RULES: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
    ("form", _fake_form, form_rule),
    ("edge_tables", _fake_tables, tables_rule),
    ("place_tables", _fake_places, places_rule),
]
for _name, _fake, _rule in _RULES:
    torch.library.register_fake(f"eqlayers::{_name}", _fake, lib=_library)
    torch.library.register_vmap(f"eqlayers::{_name}", _rule, lib=_library)
    _library.impl(_name, batched_by_grad(getattr(torch.ops.eqlayers, _name).default, _rule), "Batched")


def sorted_places(graph: Tensor, edge_index: Tensor, place: Tensor, num_src: int, num_dst: int, places: int) -> Tensor:
    """The tables of a graph with its edges sorted by their places in a table behind them.

    Raises:
        IndexRangeError: A place lies outside the table.
    """
    found: Tensor = _places(graph, edge_index, place, num_src, num_dst, places)
    return found


def sorted_edges(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    """The edges sorted by receiver and by sender, in one ``int64`` tensor.

    Raises:
        IndexRangeError: An index lies outside its nodes.
    """
    found: Tensor = _tables(edge_index, num_src, num_dst)
    return found
