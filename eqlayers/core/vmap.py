"""Rules of the form operators for ``torch.vmap``: the mapped axis becomes rows of one call.

An operand that the rows of a sample share is expanded to every row if samples differ in it, or if its gradient is
needed per sample, unless it would become larger than the other operands. Else, and for graphs, there is one call per
sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .forms.description import describe, split_key, with_rows
from .torch_internals import tree_flatten, tree_unflatten


def form_rule(info: Any, in_dims: Any, operands: Any, graph: Any, rows: int, *rest: Any) -> Any:
    """Rule for ``torch.library.register_vmap``."""
    (*nodes, key), how = rest[:3], rest[3:]
    op, form, size, dims = torch.ops.eqlayers.form.default, describe(key).form, info.batch_size, in_dims[0]
    shared = [one.rows == "one" for one in form.operands]
    spread = any(one.rows == "one" for one in form.results)
    spread = spread or any(one and d is not None for one, d in zip(shared, dims, strict=True))
    more = sum(one.width for one, is_shared in zip(form.operands, shared, strict=True) if is_shared)
    outgrows = 2 * more > sum(one.width for one in form.operands)  # expanded to a row per sample, larger than the rest
    if graph is not None or (spread and rows != 1 and outgrows):
        return one_by_one(op, size, in_dims, (operands, graph, rows, *rest))

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
    results = op(operands, None, size * rows, *nodes, key, *how)
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
