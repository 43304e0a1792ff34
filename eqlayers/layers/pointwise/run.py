"""Runs formulas on tensors: by the operator that calls kernels, or node by node in torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.backends import BACKENDS
from ...core.backends.forms import chosen
from ...core.backends.operands import check_operands
from ...core.backends.rows import Endpoints
from ...core.backends.torch_formulas import run_in_torch
from ...core.dtypes import ACCUMULATE
from ...core.forms.description import KNOWN
from ...core.forms.keys import describe
from ...core.forms.request import Sizes
from ...core.graph import Graph
from ...core.operator import at_once, call_form, sorted_edges
from ...core.torch_internals import is_plain


def formula_at_once(
    base: Formula, operands: Sequence[Tensor], graph: Graph | None = None, backend: str | None = None
) -> Sequence[Tensor] | None:
    """Fast path: call the kernel of a formula directly; None if operands need conversion."""
    if not is_plain(operands):
        return None
    return at_once(KNOWN.get(base.key) or describe(base.key), operands, graph, backend)


def run_formula(
    base: Formula, operands: Sequence[Tensor], graph: Graph | None = None, backend: str | None = None
) -> Sequence[Tensor]:
    """Run a formula registered by `register_formula`, differentiable to any order.

    Operands are ``[rows, width]`` each, ``[width]`` for one row that serves all; so are results, ``[width]`` if they
    are summed over all rows. Errors are as of `check_operands`; BackendError if the backend cannot run it.
    """
    if is_plain(operands):
        results = at_once(KNOWN.get(base.key) or describe(base.key), operands, graph, backend)
        if results is not None:
            return results
    first = operands[0]
    dtype, device = first.dtype, "cpu" if first.is_cpu else first.device.type  # `device.type` takes a microsecond
    sizes = Sizes(1 if base.batch is None else operands[base.batch].shape[0]) if graph is None else graph.sizes
    if dtype not in ACCUMULATE:  # report the dtype, not the backend
        check_operands(base, operands, graph is not None, sizes)
    name = chosen(device, dtype, backend, "")
    if BACKENDS[name].whole is not None:
        check_operands(base, operands, graph is not None, sizes)
        endpoints = None if graph is None else Endpoints(*graph.ends, graph.num_src, graph.num_dst)
        return tuple(run_in_torch(base, operands, endpoints, term_by_term=name == "reference"))
    tables = None if graph is None else graph.tables(sorted_edges)
    return call_form(operands, tables, sizes, base.key, name)
