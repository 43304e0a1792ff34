r"""Forms of any number of operands as one torch operator, which is its own derivative of every order.

The gradients of a form, and its derivative along tangents, are forms of more operands
(:mod:`eqlayers_kernels.forms.product`, :mod:`eqlayers_kernels.forms.formula`): the operator differentiates itself by
calling itself with another key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import is_not
from typing import Any

import torch
from torch import Tensor

from ..backends.forms import edge_tables, length_of, place_tables, run_form
from ..backends.operands import check_operands, check_places, length_of_places, shape_of, with_table
from ..forms.keys import find, text_of
from ..torch_internals import (
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
from .form_vmap import form_rule, places_rule, tables_rule

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
#: The last arguments of the operator: three sizes, key, backend and whether sums have a fixed order.
_How = tuple[Any, ...]


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
    def forward(ctx: Any, plain: bool, how: _How, graph: Tensor | None, *operands: Tensor) -> Any:
        ctx.save_for_backward(graph, *operands)
        ctx.how = how
        ctx.set_materialize_grads(False)
        if plain:  # what the operator comes to is called at once
            return tuple(run_form(operands, graph, *how))
        if in_forward_mode():
            ctx.save_for_forward(graph, *operands)
        with below_autograd():
            return tuple(form_operator(operands, graph, *how))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        has, wanted = tuple(map(is_not, grads, repeat(None))), ctx.needs_input_grad[3:]
        if True not in has or True not in wanted:
            return (None,) * (3 + len(operands))
        wanted = asked_for(ctx, wanted)
        given = grads if all(has) else [g for g in grads if g is not None]
        how = ctx.how
        found = call_form([*operands, *given], graph, *how[:3], _gradient(how[3], has, wanted), *how[4:])
        if all(wanted):
            return (None, None, None, *found)
        rest = iter(found)
        return (None, None, None, *[next(rest) if want else None for want in wanted])

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        moving = [t for t in tangents[3:] if t is not None]
        how = ctx.how
        key = f"{how[3]}/a{_flags([t is not None for t in tangents[3:]])}"
        return tuple(form_operator([*operands, *moving], graph, *how[:3], key, *how[4:]))


def call_form(operands: Sequence[Tensor], graph: Tensor | None, *how: Any) -> Sequence[Tensor]:
    """Run the form: directly in eager mode, by the torch operator under tracing; exported graphs get its text."""
    if not is_plain(operands) or not (operands[0].is_cpu or operands[0].is_cuda):
        if traced_for_others():
            how = (*how[:3], text_of(how[3]), *how[4:])
        found: Sequence[Tensor] = form_operator(operands, graph, *how)
    elif on_tape(operands):
        found = _Form.apply(True, how, graph, *operands)
    else:
        found = run_form(operands, graph, *how)
    return found


def _flags(values: Sequence[bool]) -> str:
    return "".join(["1" if value else "0" for value in values])


@lru_cache(maxsize=1024)  # one object for a key, whose hash is known from then on
def _gradient(key: str, given: tuple[bool, ...], wanted: tuple[bool, ...]) -> str:
    return f"{key}/g{_flags(given)}:{_flags(wanted)}"


def _follow(operands: Sequence[Tensor], graph: Tensor | None, *how: Any) -> list[Tensor]:
    if not (in_forward_mode() or on_tape(operands)):
        with below_autograd():
            found: list[Tensor] = form_operator(operands, graph, *how)
            return found
    with single_level():
        return list(_Form.apply(False, how, graph, *operands))


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
