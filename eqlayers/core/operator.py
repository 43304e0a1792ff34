r"""Forms of any number of operands as one torch operator, which is its own derivative of every order.

The gradients of a form, and its derivative along tangents, are forms of more operands
(:mod:`eqlayers_kernels.forms.product`, :mod:`eqlayers_kernels.forms.formula`): the operator differentiates itself by
calling itself with another key.

Under ``torch.vmap`` the mapped axis becomes rows of one call. An operand that the rows of a sample share is expanded to
every row if samples differ in it, or if its gradient is needed per sample, unless it would become larger than the other
operands. Else, and for graphs, there is one call per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .backends.forms import BY_DEVICE, find_runner, fits, run_form
from .backends.operands import check_operands, shape_of, with_table
from .backends.tables import (
    check_edges,
    check_intervals,
    edge_tables,
    interval_tables,
    length_of,
    length_of_intervals,
    sort_edges,
)
from .forms.description import Description, describe, split_key, text_of, with_rows
from .forms.request import Runner, Sizes
from .graph import Graph
from .torch_internals import (
    SingleLevelFunction,
    batched_by_grad,
    below_autograd,
    in_forward_mode,
    is_plain,
    on_tape,
    seen_by_outer_levels,
    single_level,
    traced_for_others,
    tree_flatten,
    tree_unflatten,
    used_gradients,
)

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
form_operator: Callable[..., list[Tensor]] = torch.ops.eqlayers.form.default
#: The edges sorted by receiver and by sender, in one ``int64`` tensor; IndexRangeError for an end out of range.
sorted_edges: Any = torch.ops.eqlayers.edge_tables.default
#: The tables of a graph, then its edges sorted by knot interval; IndexRangeError for an interval out of range.
sorted_intervals: Any = torch.ops.eqlayers.place_tables.default
#: Backends with kernels of forms.
WITH_KERNELS = ("cpu", "triton")


class OperatorCall(NamedTuple):
    """The arguments of one call of a form but operands and tables; its derivatives differ in the form alone."""

    description: Description
    sizes: Sizes
    backend: str = ""  # the backend that runs it; empty for the backend of the operands' device
    deterministic: bool = True  # whether sums must have a fixed order

    def of(self, description: Description) -> OperatorCall:
        """Copy the call with another form."""
        return OperatorCall(description, self.sizes, self.backend, self.deterministic)


def _fake_form(
    operands: Sequence[Tensor], graph: Tensor | None, rows: int, num_src: int, num_dst: int, key: str, *rest: Any
) -> list[Tensor]:
    form = describe(key).form
    sizes = with_table(form, operands, Sizes(rows, num_src, num_dst))
    check_operands(form, operands, graph, sizes)
    return [operands[0].new_empty(shape_of(one, sizes)) for one in form.results]


def _fake_tables(edge_index: Tensor, num_src: int, num_dst: int) -> Tensor:
    check_edges(edge_index, num_src, num_dst)
    length = length_of(edge_index.shape[1], num_src, num_dst, edge_index.device)
    return edge_index.new_empty(length, dtype=torch.int64)


def _fake_intervals(
    graph: Tensor, edge_index: Tensor, interval: Tensor, num_src: int, num_dst: int, intervals: int
) -> Tensor:
    check_intervals(graph, edge_index, interval, num_src, num_dst)
    return graph.new_empty(graph.shape[0] + length_of_intervals(edge_index.shape[1], intervals, graph.device))


class _Form(SingleLevelFunction):
    """The autograd.Function of the operator (key Autograd); tensors are last because their number varies."""

    @staticmethod
    def forward(ctx: Any, runner: Runner | None, call: OperatorCall, graph: Tensor | None, *operands: Tensor) -> Any:
        ctx.save_for_backward(graph, *operands)
        ctx.call = call
        ctx.set_materialize_grads(False)
        if runner is not None:  # the kernel directly, without the operator
            return tuple(runner(operands, graph, call.sizes))
        if in_forward_mode():
            ctx.save_for_forward(graph, *operands)
        with below_autograd():
            return tuple(_operator(call, operands, graph))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        call: OperatorCall = ctx.call
        has, requested = tuple(map(is_not, grads, repeat(None))), ctx.needs_input_grad[3:]
        if True not in has or True not in requested:
            return (None,) * (3 + len(operands))
        requested = used_gradients(ctx, requested)
        description = call.description.vjp(has, requested)
        if False in description.moving:  # gradients that are 0
            requested = description.requested(requested)
            if True not in requested:
                return (None,) * (3 + len(operands))
            description = call.description.vjp(has, requested)
        cotangents = grads if all(has) else [g for g in grads if g is not None]
        results = _derivative(call.of(description), [*operands, *cotangents], graph)
        if all(requested):
            return (None, None, None, *results)
        rest = iter(results)
        return (None, None, None, *[next(rest) if want else None for want in requested])

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        moving = [t for t in tangents[3:] if t is not None]
        along = ctx.call.description.jvp(tuple(t is not None for t in tangents[3:]))
        return tuple(_operator(ctx.call.of(along), [*operands, *moving], graph))


def _operator(call: OperatorCall, operands: Sequence[Tensor], graph: Tensor | None) -> Sequence[Tensor]:
    """Call the torch operator, which tracers and transforms record."""
    (description, (rows, senders, receivers, _), *how) = call
    return form_operator(operands, graph, rows, senders, receivers, description.key, *how)


def at_once(
    description: Description,
    operands: Sequence[Tensor],
    graph: Graph | None = None,
    backend: str | None = None,
    deterministic: bool = True,
    tables: Tensor | None = None,
) -> Sequence[Tensor] | None:
    """Fast path: call the kernel of a form directly; None if operands need conversion or there is no kernel.

    Operands must be plain (the caller checks `is_plain`), of the right shapes and of one dtype and device, which is
    checked here. ``tables`` are the tables of the graph with knot intervals, for weights that are interpolated.
    """
    if backend is not None and backend not in WITH_KERNELS:
        return None
    first = operands[0]
    if graph is None:
        each = None if description.batch is None else operands[description.batch]
        sizes = Sizes(1 if each is None else each.shape[0] if each.ndim else 0)
    elif graph.edge_index.device == first.device:
        sizes = graph.sizes
    else:
        return None
    if tables is not None:
        sizes = with_table(description.form, operands, sizes)
    if not fits(description, operands, sizes):
        return None
    home = "cpu" if first.is_cpu else "triton"
    name = backend or home
    runner = find_runner(description, name, first, graph is not None, deterministic, backend)
    if runner is None:
        return None
    if graph is not None and tables is None:
        tables = graph.tables(sort_edges, plain=True)
    if on_tape(operands):
        call = OperatorCall(description, sizes, "" if name == home else name, deterministic)
        return _Form.apply(runner, call, tables, *operands)
    return runner(operands, tables, sizes)


def _derivative(call: OperatorCall, operands: Sequence[Tensor], graph: Tensor | None) -> Sequence[Tensor]:
    """Run the derivative of a call, with the same tables: by the fast path if operands allow it."""
    description, sizes, backend, deterministic = call
    if is_plain(operands) and fits(description, operands, sizes):
        first = operands[0]
        name = backend or ("cpu" if first.is_cpu else "triton")
        runner = find_runner(description, name, first, graph is not None, deterministic)
        assert runner is not None
        if on_tape(operands):
            return _Form.apply(runner, call, graph, *operands)
        return runner(operands, graph, sizes)
    return call_form(operands, graph, sizes, description.key, backend, deterministic)


def call_form(
    operands: Sequence[Tensor],
    graph: Tensor | None,
    sizes: Sizes,
    key: str,
    backend: str = "",
    deterministic: bool = True,
) -> Sequence[Tensor]:
    """Run a form by the torch operator, which checks operands; exported graphs get the text of the form."""
    backend = "" if backend == BY_DEVICE.get(operands[0].device.type) else backend
    key = text_of(key) if traced_for_others() else key
    return form_operator(operands, graph, sizes.rows, sizes.senders, sizes.receivers, key, backend, deterministic)


def _follow(operands: Sequence[Tensor], graph: Tensor | None, *how: Any) -> list[Tensor]:
    if not (in_forward_mode() or on_tape(operands)):
        with below_autograd():
            return form_operator(operands, graph, *how)
    description = describe(how[3])
    sizes = with_table(description.form, operands, Sizes(*how[:3]))
    with single_level():
        return list(_Form.apply(None, OperatorCall(description, sizes, *how[4:]), graph, *operands))


def form_rule(info: Any, in_dims: Any, operands: Any, graph: Any, rows: int, *rest: Any) -> Any:
    """Rule for ``torch.library.register_vmap``."""
    (*nodes, key), how = rest[:3], rest[3:]
    form, size, dims = describe(key).form, info.batch_size, in_dims[0]
    shared = [one.rows == "one" for one in form.operands]
    spread = any(one.rows == "one" for one in form.results)
    spread = spread or any(one and d is not None for one, d in zip(shared, dims, strict=True))
    more = sum(one.width for one, is_shared in zip(form.operands, shared, strict=True) if is_shared)
    outgrows = 2 * more > sum(one.width for one in form.operands)  # expanded to a row per sample, larger than the rest
    if graph is not None or (spread and rows != 1 and outgrows):
        return one_by_one(form_operator, size, in_dims, (operands, graph, rows, *rest))

    def flat(t: Tensor, dim: int | None, one: bool) -> Tensor:
        if one and not spread:
            return t
        t = t.movedim(dim, 0) if dim is not None else t.unsqueeze(0)
        t = t.unsqueeze(1) if one else t
        return t.expand(size, rows, t.shape[-1]).reshape(size * rows, t.shape[-1])

    operands = [flat(*each) for each in zip(operands, dims, shared, strict=True)]
    root, _, steps = split_key(key)
    if spread:
        base = describe(root).form
        key = with_rows(root, *["each"] * (len(base.operands) + len(base.results))) + steps
    results = form_operator(operands, None, size * rows, *nodes, key, *how)
    parts = [t.unflatten(0, (size, rows)) for t in results]
    return [t.sum(1) if one.rows == "one" else t for t, one in zip(parts, form.results, strict=True)], [0] * len(parts)


def one_by_one(op: Any, size: int, in_dims: Sequence[Any], args: Sequence[Any]) -> tuple[Any, Any]:
    """One call per sample, stacked."""
    leaves, spec = tree_flatten(list(args))
    dims = _flat_dims(list(args), list(in_dims))
    samples: list[list[Tensor]] = []
    for number in range(max(size, 1)):
        arguments = [
            t if not isinstance(t, Tensor) or d is None else _sample(t, d, number)
            for t, d in zip(leaves, dims, strict=True)
        ]
        result = op(*tree_unflatten(arguments, spec))
        samples.append([result] if isinstance(result, Tensor) else list(result))
    out = [torch.stack(parts)[:size] for parts in zip(*samples, strict=True)]
    return (out[0], 0) if isinstance(result, Tensor) else (out, [0] * len(out))


def _flat_dims(args: Any, dims: Any) -> list[int | None]:
    """The mapped axis of every leaf of the arguments."""
    if isinstance(args, (list, tuple)):
        dims = dims if isinstance(dims, (list, tuple)) else [dims] * len(args)
        return [dim for each in zip(args, dims, strict=True) for dim in _flat_dims(*each)]
    return [dims]


def _sample(t: Tensor, dim: int, number: int) -> Tensor:
    if t.shape[dim]:
        return t.select(dim, number)
    return t.new_zeros([n for axis, n in enumerate(t.shape) if axis != dim])  # none at all: its shape is wanted


def rule_by_sample(name: str) -> Callable[..., tuple[Any, Any]]:
    """The rule for ``torch.library.register_vmap`` of the operator ``eqlayers::name``: one call per sample."""
    op = getattr(torch.ops.eqlayers, name).default
    return lambda info, in_dims, *args: one_by_one(op, info.batch_size, in_dims, args)


for _device in ("CPU", "CUDA"):
    _library.impl("form", run_form, _device)
    _library.impl("edge_tables", edge_tables, _device)
    _library.impl("place_tables", interval_tables, _device)
_library.impl("form", _follow, "Autograd")
_RULES: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
    ("form", _fake_form, form_rule),
    ("edge_tables", _fake_tables, rule_by_sample("edge_tables")),
    ("place_tables", _fake_intervals, rule_by_sample("place_tables")),
]
for _name, _fake, _rule in _RULES:
    torch.library.register_fake(f"eqlayers::{_name}", _fake, lib=_library)
    torch.library.register_vmap(f"eqlayers::{_name}", _rule, lib=_library)
    _library.impl(_name, batched_by_grad(getattr(torch.ops.eqlayers, _name).default, _rule), "Batched")
