"""How the operators of whole forms run under ``torch.vmap``: the mapped axis becomes rows, and one call serves all.

An operand shared by the rows of a sample is not shared by the rows of all samples where samples differ in it, or where
its gradient is wanted sample by sample; then every row gets its own. That is done where it does not outgrow the other
operands; else, and for graphs, there is one call per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ops.form import find_form
from ..torch_internals import tree_flatten, tree_unflatten


def _form_rule(info: Any, in_dims: Sequence[Any], operands: Any, *rest: Any) -> Any:
    return _rule(torch.ops.eqlayers.form.default, info, in_dims, (operands,), (), rest)


def _backward_rule(info: Any, in_dims: Sequence[Any], operands: Any, g: Any, wanted: Any, *rest: Any) -> Any:
    op = torch.ops.eqlayers.form_backward.default
    return _rule(op, info, in_dims, (operands, g), (wanted,), rest)


def _double_rule(
    info: Any, in_dims: Sequence[Any], operands: Any, g: Any, tangents: Any, wanted: Any, *rest: Any
) -> Any:
    op = torch.ops.eqlayers.form_double_backward.default
    return _rule(op, info, in_dims, (operands, g, tangents), (wanted,), rest)


def _rule(
    op: Any, info: Any, in_dims: Sequence[Any], tensors: Any, wanted: Sequence[Any], rest: Sequence[Any]
) -> tuple[Any, Any]:
    """Args: tensors as op takes them, the list of what is wanted if it takes one, and graph, key and options."""
    size, operands, (graph, key, *_) = info.batch_size, tensors[0], rest
    dims = in_dims[0]
    shared = [t.ndim - (d is not None) == 1 for t, d in zip(operands, dims, strict=True)]
    rows = _rows(operands, dims, shared)
    moving = in_dims[2] if len(tensors) == 3 else [None] * len(operands)
    asked = wanted[0] if wanted else [False] * len(operands)
    spread = [
        one and (d is not None or m is not None or want)
        for one, d, m, want in zip(shared, dims, moving, asked, strict=False)
    ]
    widths = find_form(key).program.widths
    more = sum(width for width, own in zip(widths, spread, strict=False) if own)
    if graph is not None or (rows != 1 and more > sum(widths) - more):
        return one_by_one(op, size, in_dims, (*tensors, *wanted, *rest))
    kept = [one and not own for one, own in zip(shared, spread, strict=True)]

    def flat(t: Tensor | None, dim: int | None, kept: bool) -> Tensor | None:
        if t is None or kept:
            return t
        t = t.movedim(dim, 0) if dim is not None else t.unsqueeze(0)
        t = t.unsqueeze(1) if t.ndim == 2 else t  # shared
        return t.expand(size, rows, t.shape[-1]).reshape(size * rows, t.shape[-1])

    given = []
    for t, d in zip(tensors, in_dims, strict=False):
        one = isinstance(t, Tensor)
        given.append(flat(t, d, False) if one else [flat(*each) for each in zip(t, d, kept, strict=True)])
    found = op(*given, *wanted, *rest)
    if not wanted:
        return found.unflatten(0, (size, rows)), 0
    out, places = [], [place for place, want in enumerate(wanted[0]) if want]
    for place, t in zip(places, found, strict=True):
        t = t.unflatten(0, (size, rows))
        out.append(t.sum(1) if place < len(shared) and shared[place] else t)
    return out, [0] * len(out)


def _rows(operands: Sequence[Tensor], dims: Sequence[int | None], shared: Sequence[bool]) -> int:
    for t, dim, one in zip(operands, dims, shared, strict=True):
        if not one:
            return t.shape[0] if dim is None else t.movedim(dim, 0).shape[1]
    return 1


def one_by_one(op: Any, size: int, in_dims: Sequence[Any], args: Sequence[Any]) -> tuple[Any, Any]:
    """One call per sample, stacked."""
    leaves, spec = tree_flatten(list(args))
    dims = _flat_dims(list(args), list(in_dims))
    found: list[list[Tensor]] = []
    for number in range(max(size, 1)):
        own = [
            t if not isinstance(t, Tensor) or d is None else _sample(t, d, number)
            for t, d in zip(leaves, dims, strict=True)
        ]
        result = op(*tree_unflatten(own, spec))
        found.append([result] if isinstance(result, Tensor) else list(result))
    out = [torch.stack(parts)[:size] for parts in zip(*found, strict=True)]
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


def _tables_rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
    return one_by_one(torch.ops.eqlayers.edge_tables.default, info.batch_size, in_dims, args)


#: By operator, as ``torch.library.register_vmap`` wants them.
RULES: dict[str, Callable[..., tuple[Any, Any]]] = {
    "form": _form_rule,
    "form_backward": _backward_rule,
    "form_double_backward": _double_rule,
    "edge_tables": _tables_rule,
}
