r"""Formulas of any number of operands as one torch operator, which is its own derivative of every order.

The gradients of a formula, and its derivative along tangents, are formulas of more operands
(:meth:`eqlayers_kernels.formula.Formula.gradient`): the operator differentiates itself by calling itself with another
key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eqlayers_kernels.formula import Formula

from ..backends import BACKENDS
from ..backends.formulas import BY_DEVICE, check_formula, runner_of
from ..backends.torch_formulas import run_in_torch
from ..info.graph import Graph
from ..ops.formula import find_formula, formula_text, register_formula
from ..torch_internals import (
    SingleLevelFunction,
    batched_by_grad,
    below_autograd,
    followed,
    seen_by_outer_levels,
    single_level,
    traced_for_others,
)
from .form import sorted_edges
from .form_vmap import one_by_one
from .tensor_product import chosen

_library = torch.library.Library("eqlayers", "FRAGMENT")
_library.define('formula(Tensor[] operands, Tensor? graph, SymInt[] sizes, str key, str backend="") -> Tensor[]')
_operator = torch.ops.eqlayers.formula.default


def run_formula(
    base: Formula, operands: Sequence[Tensor], graph: Graph | None = None, backend: str | None = None
) -> tuple[Tensor, ...]:
    """Run a formula, differentiable to any order.

    Args:
        base: What to compute.
        operands: ``[rows, width]`` each, of one dtype and device; ``[width]`` for one row that serves all.
        graph: Sender and receiver of each row of the batch, for operands or results with rows of those.
        backend: Name of the backend that runs it; None for the best of the operands' device.

    Returns:
        ``[rows, width]`` of every result, ``[width]`` of one that is summed over all rows.

    Raises:
        ShapeError, DTypeError, DeviceError: The tensors do not fit the formula.
        BackendError: The backend cannot run it. IndexRangeError: A row has no such sender or receiver.
    """
    first = operands[0]
    name = chosen(first.device.type, first.dtype, backend, "")
    sizes = _sizes(base, operands, graph)
    if BACKENDS[name].whole is not None:
        check_formula(base, operands, sizes, graph is not None)
        ends = None if graph is None else (*graph.ends, graph.num_src, graph.num_dst)
        return tuple(run_in_torch(base, operands, ends, term_by_term=name == "reference"))
    key = register_formula(base)
    key = formula_text(key) if traced_for_others() else key
    own = name == BY_DEVICE.get(first.device.type)
    tables = None if graph is None else graph.tables(sorted_edges)
    return tuple(_operator(operands, tables, sizes, key, "" if own else name))


def _sizes(base: Formula, operands: Sequence[Tensor], graph: Graph | None) -> list[int]:
    """Rows of the batch, senders and receivers."""
    if graph is not None:
        return [graph.num_edges, graph.num_src, graph.num_dst]
    rows = next((t.shape[0] for one, t in zip(base.operands, operands, strict=True) if one.rows == "each"), 1)
    return [rows, 0, 0]


def _run(
    operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int], key: str, backend: str = ""
) -> list[Tensor]:
    base = find_formula(key)
    check_formula(base, operands, sizes, graph)
    return runner_of(key, operands, graph, backend)(operands, graph, sizes)


def _fake(
    operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int], key: str, backend: str = ""
) -> list[Tensor]:
    base = find_formula(key)
    check_formula(base, operands, sizes, graph)
    count = dict(zip(("each", "src", "dst"), sizes, strict=True))
    shapes = [(one.width,) if one.rows == "one" else (count[one.rows], one.width) for one in base.results]
    return [operands[0].new_empty(shape) for shape in shapes]


class _Formula(SingleLevelFunction):
    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], graph: Tensor | None, *operands: Tensor) -> Any:
        ctx.save_for_backward(graph, *operands)
        ctx.save_for_forward(graph, *operands)
        ctx.how = how
        ctx.set_materialize_grads(False)
        with below_autograd():
            return tuple(_operator(operands, graph, *how))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        given = [g for g in grads if g is not None]
        wanted = ctx.needs_input_grad[2:]
        if not given or not any(wanted):
            return (None,) * (2 + len(operands))
        sizes, key, *rest = ctx.how
        key = f"{key}/g{_flags(g is not None for g in grads)}:{_flags(wanted)}"
        found = iter(_operator([*operands, *given], graph, sizes, key, *rest))
        return (None, None, *(next(found) if want else None for want in wanted))

    @staticmethod
    @seen_by_outer_levels
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        graph, *operands = ctx.saved_tensors
        sizes, key, *rest = ctx.how
        moving = [t for t in tangents[2:] if t is not None]
        key = f"{key}/a{_flags(t is not None for t in tangents[2:])}"
        return tuple(_operator([*operands, *moving], graph, sizes, key, *rest))


def _flags(values: Any) -> str:
    return "".join("1" if value else "0" for value in values)


def _follow(
    operands: Sequence[Tensor], graph: Tensor | None, sizes: Sequence[int], *how: Any
) -> list[Tensor]:
    if not followed(operands):
        with below_autograd():
            return _operator(operands, graph, sizes, *how)
    with single_level():
        return list(_Formula.apply((sizes, *how), graph, *operands))


def _rule(info: Any, in_dims: Any, operands: Any, graph: Any, sizes: Any, key: str, *rest: Any) -> Any:
    """Rows of all samples in one call where every row stands alone; else one call per sample."""
    base = find_formula(key)
    if graph is not None or any(one.rows != "each" for one in (*base.operands, *base.results)):
        return one_by_one(_operator, info.batch_size, in_dims, (operands, graph, sizes, key, *rest))
    size, rows = info.batch_size, sizes[0]

    def flat(t: Tensor, dim: int | None) -> Tensor:
        t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        return t.reshape(size * rows, t.shape[-1])

    given = [flat(t, dim) for t, dim in zip(operands, in_dims[0], strict=True)]
    found = _operator(given, None, [size * rows, *sizes[1:]], key, *rest)
    return [t.unflatten(0, (size, rows)) for t in found], [0] * len(found)


for _device in ("CPU", "CUDA"):
    _library.impl("formula", _run, _device)
torch.library.register_fake("eqlayers::formula", _fake, lib=_library)
_library.impl("formula", _follow, "Autograd")
torch.library.register_vmap("eqlayers::formula", _rule, lib=_library)
_library.impl("formula", batched_by_grad(_operator, _rule), "Batched")
