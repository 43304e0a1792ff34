"""How the operators of whole forms run under ``torch.vmap``: the mapped axis becomes rows, and one call serves all.

Weights shared by the rows of a sample are not shared by the rows of all samples where they differ, or where their
gradient is wanted sample by sample; then every row gets its own. That is done where it does not outgrow the other
operands; else, and for graphs, there is one call per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ops.form import find_form

_W = (2, 6)  # where w and its tangent stand among the arguments


def _rule(name: str, count: int) -> Callable[..., tuple[Any, Any]]:
    def rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        op = getattr(torch.ops.eqlayers, name).default
        size, operands, graph, key, rest = (
            info.batch_size,
            args[:count],
            args[count],
            args[count + 1],
            args[count + 2 :],
        )
        wanted: Sequence[bool] = rest[0] if rest else ()
        places = [place for place in _W if place < count]
        y, dim = operands[1], in_dims[1]
        rows = y.shape[0] if dim is None else y.movedim(dim, 0).shape[1]
        shared = operands[2].ndim - (in_dims[2] is not None) == 1
        spread = shared and (any(in_dims[p] is not None for p in places) or (len(wanted) > 2 and wanted[2]))
        wx, wy, ww, wz = find_form(key).program.widths
        if graph is not None or (spread and rows != 1 and ww > wx + wy + wz):
            return _one_by_one(op, size, in_dims, args)
        flat = []
        for place, (t, d) in enumerate(zip(operands, in_dims, strict=False)):
            if t is None or (shared and place in places and not spread):
                flat.append(t)
                continue
            t = t.movedim(d, 0) if d is not None else t.unsqueeze(0)
            t = t.unsqueeze(1) if t.ndim == 2 else t  # shared weights
            flat.append(t.expand(size, rows, t.shape[-1]).reshape(size * rows, t.shape[-1]))
        found = op(*flat, None, key, *rest)
        if not rest:
            return found.unflatten(0, (size, rows)), 0
        out = [t.unflatten(0, (size, rows)) if want else t for t, want in zip(found, wanted, strict=False)]
        if shared and wanted[2]:
            out[2] = out[2].sum(1)
        return tuple(out), tuple(0 if want else None for _, want in zip(out, wanted, strict=False))

    return rule


def _one_by_one(op: Any, size: int, in_dims: Sequence[Any], args: Sequence[Any]) -> tuple[Any, Any]:
    """One call per sample, stacked."""
    found = []
    for number in range(max(size, 1)):
        own = [
            t if not isinstance(t, Tensor) or d is None else _sample(t, d, number)
            for t, d in zip(args, in_dims, strict=True)
        ]
        result = op(*own)
        found.append(result if isinstance(result, tuple) else (result,))
    out = [torch.stack(parts)[:size] for parts in zip(*found, strict=True)]
    return (tuple(out), (0,) * len(out)) if isinstance(result, tuple) else (out[0], 0)


def _sample(t: Tensor, dim: int, number: int) -> Tensor:
    if t.shape[dim]:
        return t.select(dim, number)
    return t.new_zeros([n for axis, n in enumerate(t.shape) if axis != dim])  # none at all: its shape is wanted


def _tables_rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
    return _one_by_one(torch.ops.eqlayers.edge_tables.default, info.batch_size, in_dims, args)


#: By operator, as ``torch.library.register_vmap`` wants them.
RULES: dict[str, Callable[..., tuple[Any, Any]]] = {
    "form": _rule("form", 3),
    "form_backward": _rule("form_backward", 4),
    "form_double_backward": _rule("form_double_backward", 7),
    "edge_tables": _tables_rule,
}
